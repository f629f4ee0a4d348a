//! Flags without effect that scripts for sealos and buildah pass: accepted with a note that
//! explains why, so that the scripts keep working. Hidden from the help.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// Flags without effect for one reason, which completes "--flag has no effect: …". A letter before
/// the name is a short flag.
type Group = (Takes, &'static str, &'static [&'static str]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// `--flag` or `--flag=true`, like Go's boolean flags.
    MaybeBool,
    Value,
}

use Takes::{MaybeBool, Nothing, Value};

/// Flags of all verbs: buildah's hidden global flags.
const GLOBAL: &[Group] = &[
    (Value, "imgctl has one store, under --root", &["storage-driver", "storage-opt", "runroot"]),
    (
        Value,
        "set CONTAINERS_REGISTRIES_CONF or CONTAINERS_REGISTRIES_CONF_DIR instead",
        &["registries-conf", "registries-conf-dir"],
    ),
    (Value, "imgctl reads podman's alias file", &["short-name-alias-conf"]),
    (Value, NO_CONTROL_GROUP, &["cgroup-manager"]),
    (Value, "imgctl determines the mapping", &["userns-uid-map", "userns-gid-map"]),
];

const NO_CONTROL_GROUP: &str = "RUN steps have no control group";
const NO_CONTAINERS: &str = "there are no intermediate containers";
const NO_SIGNATURES: &str =
    "signatures are stored with images in registries: imgctl sign, imgctl verify";
const COMPRESSION: Group = (MaybeBool, "use --compression none", &["D,disable-compression"]);

/// Flags of individual verbs.
const VERBS: &[(&str, &[Group])] = &[
    ("build", BUILD),
    ("load", &[(Value, NO_SIGNATURES, &["signature-policy"])]),
    (
        "merge",
        &[
            (MaybeBool, "embedded images do not change", &["all"]),
            (Value, "embedded images do not change", &["max-pull-procs"]),
            (MaybeBool, "nothing is built", &["no-cache"]),
            (MaybeBool, NO_CONTAINERS, &["rm", "force-rm"]),
        ],
    ),
    ("pull", PULL),
    ("copy", PULL),
    ("push", &[(MaybeBool, NO_SIGNATURES, &["disable-content-trust"]), COMPRESSION]),
    (
        "save",
        &[
            (MaybeBool, "layers are saved unchanged", &["compress", "uncompressed"]),
            (MaybeBool, "an archive always holds all given images", &["m,multi-image-archive"]),
            (Value, NO_SIGNATURES, &["signature-policy"]),
        ],
    ),
];

const PULL: &[Group] =
    &[(MaybeBool, NO_SIGNATURES, &["disable-content-trust", "remove-signatures"])];

const BUILD: &[Group] = &[
    (
        Value,
        "RUN steps always have their own namespaces",
        &["isolation", "cgroupns", "ipc", "pid", "uts", "userns", "runtime", "runtime-flag"],
    ),
    (MaybeBool, "each step is a layer and is cached, unless --squash", &["layers"]),
    (MaybeBool, NO_CONTAINERS, &["rm", "force-rm"]),
    (Value, "the build cache stays in the store", &["cache-from", "cache-to"]),
    (Value, "use imgctl prune --filter until=…", &["cache-ttl"]),
    (Value, NO_SIGNATURES, &["sign-by"]),
    (MaybeBool, NO_SIGNATURES, &["disable-content-trust"]),
    COMPRESSION,
    (
        Value,
        "RUN steps have no limits of their own",
        &[
            "ulimit",
            "shm-size",
            "m,memory",
            "memory-swap",
            "cpu-shares",
            "cpu-period",
            "cpu-quota",
            "cpuset-cpus",
            "cpuset-mems",
        ],
    ),
    (Value, NO_CONTROL_GROUP, &["cgroup-parent"]),
    (Value, "RUN steps use this machine's resolv.conf", &["dns", "dns-option", "dns-search"]),
    (MaybeBool, "no such label is written", &["identity-label"]),
    (Value, "redirect stderr instead", &["logfile"]),
    (Nothing, "RUN steps have no input", &["stdin"]),
];

/// A flag without effect.
struct Flag {
    long: &'static str,
    short: Option<char>,
    takes: Takes,
    why: &'static str,
}

fn flags(groups: &'static [Group]) -> impl Iterator<Item = Flag> {
    groups.iter().flat_map(|(takes, why, names)| {
        names.iter().map(|name| {
            let (short, long) = name.split_once(',').unwrap_or(("", name));
            Flag { long, short: short.chars().next(), takes: *takes, why }
        })
    })
}

/// Adds the flags to the grammar.
pub(crate) fn extend(command: Command) -> Command {
    let mut command = command.args(flags(GLOBAL).map(|flag| argument(&flag).global(true)));
    for (verb, groups) in VERBS {
        // clap panics on an unknown name; the test below reports it instead.
        if command.find_subcommand(verb).is_some() {
            let arguments = flags(groups).map(|flag| argument(&flag));
            command = command.mut_subcommand(verb, |verb| verb.args(arguments));
        }
    }
    command
}

fn argument(flag: &Flag) -> Arg {
    let argument = Arg::new(flag.long).long(flag.long).short(flag.short).hide(true);
    match flag.takes {
        Nothing => argument.action(ArgAction::Count),
        Value => argument.action(ArgAction::Append),
        MaybeBool => argument
            .action(ArgAction::Append)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

/// Returns a note for each of these flags on the command line.
pub(crate) fn notes(matches: &ArgMatches) -> Vec<String> {
    let Some((verb, inner)) = matches.subcommand() else {
        return Vec::new();
    };
    let is_given =
        |flag: &Flag| inner.value_source(flag.long) == Some(clap::parser::ValueSource::CommandLine);
    let of_verb = VERBS.iter().filter(|(name, _)| *name == verb);
    flags(GLOBAL)
        .chain(of_verb.flat_map(|(_, groups)| flags(groups)))
        .filter(is_given)
        .map(|flag| format!("--{} has no effect: {}", flag.long, flag.why))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments;

    fn notes_of(words: &[&str]) -> Vec<String> {
        notes(&arguments::command().try_get_matches_from(words).unwrap())
    }

    #[test]
    fn flags_of_other_tools_give_one_note_each() {
        let words = [
            "imgctl",
            "build",
            "--isolation=chroot",
            "--layers",
            "--rm=false",
            "--ulimit",
            "nofile=1",
            "--ulimit",
            "nproc=2",
            "--storage-driver",
            "vfs",
            ".",
        ];
        let notes = notes_of(&words);
        let flags: Vec<&str> = notes.iter().filter_map(|note| note.split(' ').next()).collect();
        assert_eq!(flags, ["--storage-driver", "--isolation", "--layers", "--rm", "--ulimit"]);
    }

    #[test]
    fn none_given_none_noted() {
        assert!(notes_of(&["imgctl", "images"]).is_empty());
        // A boolean flag does not consume the context argument.
        let matches =
            arguments::command().try_get_matches_from(["imgctl", "build", "--pull", "dir"]);
        let build = matches.unwrap();
        let (_, build) = build.subcommand().unwrap();
        let context = build.get_one::<std::path::PathBuf>("context").unwrap();
        assert_eq!(context, std::path::Path::new("dir"));
    }

    #[test]
    fn the_grammar_is_sound() {
        arguments::command().debug_assert();
        for (verb, _) in VERBS {
            assert!(arguments::command().find_subcommand(verb).is_some(), "{verb}");
        }
    }
}
