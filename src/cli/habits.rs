//! Errors of the command line, in the words of other tools: what somebody who comes from docker, kubectl, sealos
//! or k3sup types is answered with the command that does it here. Tips name nothing that the help hides.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// What other tools call a command, and the command here.
const HABITS: &[(&[&str], &str)] = &[
    (&["get", "nodes", "node", "pods"], "`imgctl status` shows the hosts and Nodes of a cluster"),
    (
        &["info", "doctor"],
        "`imgctl env` shows the settings of this machine, `imgctl status` the state of a cluster",
    ),
    (
        &["stop", "restart", "pause", "halt"],
        "`imgctl exec 'systemctl stop SERVICE'` stops a service on hosts; `imgctl reset` removes the cluster",
    ),
    (
        &["cluster", "get-clusters", "contexts", "context"],
        "`imgctl clusters` lists the clusters of this machine",
    ),
    (
        &["describe", "show"],
        "`imgctl inspect IMAGE` describes an image, `imgctl report cluster` a cluster",
    ),
    (
        &["logs", "log", "events"],
        "`imgctl journal last --failed` shows what failed, `imgctl support-bundle` collects logs",
    ),
    (
        &["up", "install", "deploy", "start", "launch", "bootstrap"],
        "`imgctl run IMAGE --masters HOSTS` makes a cluster and installs images on it",
    ),
    (
        &["new", "scaffold", "recipes", "catalog", "quickstart"],
        "`imgctl init` makes a folder for an image of your own, `imgctl recipe ls` lists what it can contain",
    ),
    (
        &["down", "destroy", "teardown", "remove", "purge"],
        "`imgctl reset --cluster NAME` removes a cluster, `imgctl uninstall IMAGE` an application",
    ),
    (
        &["patch", "set"],
        "`imgctl upgrade IMAGE` upgrades a cluster, `imgctl inplace` changes images of Pods",
    ),
    (&["rollout", "undo"], "`imgctl upgrade status` shows an upgrade, `imgctl rollback` goes back"),
    (&["top", "stats", "watch"], "`imgctl status --watch` refreshes the status of a cluster"),
    (&["join", "scale"], "`imgctl add --nodes HOSTS` adds hosts to a cluster"),
    (
        &["drain", "cordon", "leave"],
        "`imgctl delete --nodes HOSTS` drains hosts and removes them from a cluster",
    ),
    (
        &["config", "kubeconfig"],
        "`imgctl env` shows settings, `imgctl state cat etc/admin.conf` prints the kubeconfig of a cluster",
    ),
    (
        &["kubectl", "shell", "ssh"],
        "`imgctl exec --roles master 'kubectl get nodes'` runs a command on hosts",
    ),
    (
        &["cp"],
        "`imgctl scp` copies files to hosts, `imgctl cat IMAGE:/PATH` prints a file of an image",
    ),
    (
        &["image", "img"],
        "`imgctl images` lists images; other commands on images are verbs of their own: pull, rmi, …",
    ),
    (&["container", "volume"], "`imgctl mounts` lists mounts; imgctl has no containers"),
    (&["buildx", "builder", "commit"], "`imgctl build` builds images from a Kubefile"),
    (&["compose"], "`imgctl bake -f compose.yaml` builds what a compose file lists"),
    (&["lint", "check", "hadolint"], "`imgctl build --check` checks a Kubefile"),
    (&["outdated"], "`imgctl update --check` lists what imgctl.lock has in an older version"),
    (&["helm", "chart"], "`imgctl init --from-helm CHART` makes an application of a chart"),
    (
        &["import"],
        "`imgctl load` reads images from an archive, `imgctl state import` the state of a cluster",
    ),
    (&["untag"], "`imgctl rmi NAME` removes a name, and the image with its last name"),
    (&["du"], "`imgctl df` shows disk usage"),
    (&["system"], "`imgctl df` shows disk usage, `imgctl prune` removes what nothing needs"),
    (&["fetch", "download"], "`imgctl pull IMAGE` pulls an image"),
    (
        &["export-image", "package"],
        "`imgctl save` writes images into an archive, `imgctl bundle` a set with a list",
    ),
    (&["dashboard", "console", "web"], "`imgctl ui` serves the console"),
    (&["certs", "certificates"], "`imgctl cert` shows and renews certificates"),
    (&["snapshot", "etcd-snapshot"], "`imgctl backup` and `imgctl restore`"),
    (&["dry-run", "diff-cluster"], "`imgctl plan VERB …` shows what a command would do"),
];

/// Commands of two words whose second word is a verb here, or nearly.
const GROUPS: &[&str] = &["image", "img", "buildx", "builder", "system", "cluster"];

/// What the second word of such a command is here.
const SECOND: &[(&str, &str, &str)] = &[
    ("image", "ls", "images"),
    ("image", "list", "images"),
    ("image", "rm", "rmi"),
    ("system", "prune", "prune"),
    ("system", "df", "df"),
    ("cluster", "ls", "clusters"),
    ("cluster", "list", "clusters"),
    ("cluster", "create", "run"),
    ("cluster", "delete", "reset"),
    ("cluster", "report", "report"),
];

/// Flags of other tools that choose the form of the output.
const OUTPUT: [&str; 2] = ["-o", "--output"];

/// Returns `error` with tips that fit: the command that does what was asked for, and no hidden flags or
/// verbs. `command` is the whole grammar.
pub(crate) fn corrected(
    error: clap::Error,
    command: &Command,
    arguments: &[OsString],
) -> clap::Error {
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let invalid = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let tip = match error.kind() {
        // Below this verb anything else is a word to search for.
        ErrorKind::InvalidSubcommand if words.contains(&"search") => Some(
            "`imgctl tags REPOSITORY` lists the tags of a repository; nothing finds repositories"
                .to_owned(),
        ),
        ErrorKind::InvalidSubcommand => {
            invalid(ContextKind::InvalidSubcommand).and_then(|word| habit(word, &words, command))
        }
        ErrorKind::UnknownArgument => invalid(ContextKind::InvalidArg)
            .filter(|flag| OUTPUT.contains(flag))
            .map(|_| "`--json` prints JSON, and lists take `--format`".to_owned()),
        _ => return error,
    };
    let mut told = clap::Error::new(error.kind()).with_cmd(command);
    for (kind, value) in error.context() {
        let is_tip = matches!(
            kind,
            ContextKind::SuggestedSubcommand | ContextKind::SuggestedArg | ContextKind::Suggested
        );
        match value {
            _ if is_tip && tip.is_some() => {}
            ContextValue::String(flag) if kind == ContextKind::SuggestedArg => {
                if is_shown(flag, command, &words) {
                    told.insert(kind, value.clone());
                }
            }
            ContextValue::Strings(verbs) if kind == ContextKind::SuggestedSubcommand => {
                let is_hidden = |verb: &&String| {
                    command.find_subcommand(verb).is_some_and(|_| visible(command, verb).is_none())
                };
                let shown: Vec<String> =
                    verbs.iter().filter(|verb| !is_hidden(verb)).cloned().collect();
                if !shown.is_empty() {
                    told.insert(kind, ContextValue::Strings(shown));
                }
            }
            _ => {
                told.insert(kind, value.clone());
            }
        }
    }
    if let Some(tip) = tip {
        let tip = StyledStr::from(tip);
        told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    told
}

/// Returns the answer to a verb that imgctl does not have.
fn habit(word: &str, words: &[&str], command: &Command) -> Option<String> {
    if GROUPS.contains(&word) {
        let second = words.iter().skip_while(|found| **found != word).nth(1);
        let here = |second: &&str| {
            let known = SECOND.iter().find(|(group, other, _)| {
                (*group == word || (*group == "image" && word == "img")) && other == second
            });
            known.map(|(.., here)| *here).or_else(|| Some(visible(command, second)?.get_name()))
        };
        if let Some(verb) = second.and_then(here) {
            return Some(format!("`imgctl {verb}` does that"));
        }
    }
    let found = HABITS.iter().find(|(others, _)| others.contains(&word));
    found.map(|(_, tip)| (*tip).to_owned())
}

/// Returns the verb that the help shows under this name.
fn visible<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    let verb = command.find_subcommand(name)?;
    let is_named = verb.get_name() == name || verb.get_visible_aliases().any(|alias| alias == name);
    (is_named && !verb.is_hide_set()).then_some(verb)
}

/// Returns whether the help of the command that `words` begin shows the flag.
fn is_shown(flag: &str, command: &Command, words: &[&str]) -> bool {
    let flag = flag.trim_start_matches('-');
    let is_it = |argument: &&Arg| {
        let aliases = argument.get_visible_aliases().unwrap_or_default();
        argument.get_long() == Some(flag) || aliases.contains(&flag)
    };
    let is_shown_by = |command: &Command| {
        command.get_arguments().find(is_it).is_some_and(|argument| !argument.is_hide_set())
    };
    let mut inner = command;
    let mut shown = is_shown_by(inner);
    for word in words {
        if let Some(verb) = inner.find_subcommand(word) {
            inner = verb;
            shown |= is_shown_by(inner);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments;

    #[test]
    fn habits_are_no_verbs_and_name_verbs() {
        let command = arguments::command();
        for (others, tip) in HABITS {
            for other in *others {
                assert!(command.find_subcommand(other).is_none(), "{other} is a verb");
            }
            for named in tip.split("`imgctl ").skip(1) {
                let verb = named.split([' ', '`']).next().unwrap();
                assert!(command.find_subcommand(verb).is_some(), "{tip}");
            }
        }
        for (_, _, verb) in SECOND {
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
        }
    }
}
