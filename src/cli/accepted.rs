//! Flags without effect that scripts for sealos and buildah pass: accepted with a note that
//! explains why, so that the scripts keep working. Hidden from the help.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// A flag without effect.
#[derive(Clone, Copy)]
struct Flag {
    long: &'static str,
    short: Option<char>,
    takes: Takes,
    /// Completes "--flag has no effect: …".
    why: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// `--flag` or `--flag=true`, like Go's boolean flags.
    MaybeBool,
    Value,
}

use Takes::{MaybeBool, Nothing, Value};

const fn flag(long: &'static str, takes: Takes, why: &'static str) -> Flag {
    Flag { long, short: None, takes, why }
}

const NO_STORAGE_DRIVER: &str = "imgctl has one store, under --root";
const REGISTRIES_CONF: &str =
    "set CONTAINERS_REGISTRIES_CONF or CONTAINERS_REGISTRIES_CONF_DIR instead";

/// Flags of all verbs: buildah's hidden global flags.
const GLOBAL: &[Flag] = &[
    flag("storage-driver", Value, NO_STORAGE_DRIVER),
    flag("storage-opt", Value, NO_STORAGE_DRIVER),
    flag("runroot", Value, NO_STORAGE_DRIVER),
    flag("registries-conf", Value, REGISTRIES_CONF),
    flag("registries-conf-dir", Value, REGISTRIES_CONF),
    flag("short-name-alias-conf", Value, "imgctl reads podman's alias file"),
    flag("cgroup-manager", Value, "RUN steps have no control group"),
    flag("userns-uid-map", Value, "imgctl determines the mapping"),
    flag("userns-gid-map", Value, "imgctl determines the mapping"),
];

const NO_CONTAINERS: &str = "there are no intermediate containers";
const OWN_SANDBOX: &str = "RUN steps always have their own namespaces";
const NO_LIMITS: &str = "RUN steps have no limits of their own";
const NO_SIGNATURES: &str =
    "signatures are stored with images in registries: imgctl sign, imgctl verify";
const NO_CACHE_EXPORT: &str = "the build cache stays in the store";

/// Flags of individual verbs.
const VERBS: &[(&str, &[Flag])] = &[
    ("build", BUILD),
    ("load", &[flag("signature-policy", Value, NO_SIGNATURES)]),
    ("merge", MERGE),
    ("pull", PULL),
    ("copy", PULL),
    ("push", PUSH),
    (
        "save",
        &[
            flag("compress", MaybeBool, "layers are saved unchanged"),
            short(
                'm',
                flag("multi-image-archive", MaybeBool, "an archive always holds all given images"),
            ),
            flag("uncompressed", MaybeBool, "layers are saved unchanged"),
            flag("signature-policy", Value, NO_SIGNATURES),
        ],
    ),
];

const MERGE: &[Flag] = &[
    flag("all", MaybeBool, "embedded images do not change"),
    flag("max-pull-procs", Value, "embedded images do not change"),
    flag("no-cache", MaybeBool, "nothing is built"),
    flag("rm", MaybeBool, NO_CONTAINERS),
    flag("force-rm", MaybeBool, NO_CONTAINERS),
];

const PULL: &[Flag] = &[
    flag("disable-content-trust", MaybeBool, NO_SIGNATURES),
    flag("remove-signatures", MaybeBool, NO_SIGNATURES),
];

const PUSH: &[Flag] = &[
    flag("disable-content-trust", MaybeBool, NO_SIGNATURES),
    short('D', flag("disable-compression", MaybeBool, "use --compression none")),
];

const BUILD: &[Flag] = &[
    flag("isolation", Value, OWN_SANDBOX),
    flag("layers", MaybeBool, "each step is a layer and is cached, unless --squash"),
    flag("rm", MaybeBool, NO_CONTAINERS),
    flag("force-rm", MaybeBool, NO_CONTAINERS),
    flag("cache-from", Value, NO_CACHE_EXPORT),
    flag("cache-to", Value, NO_CACHE_EXPORT),
    flag("cache-ttl", Value, "use imgctl prune --filter until=…"),
    flag("sign-by", Value, NO_SIGNATURES),
    flag("disable-content-trust", MaybeBool, NO_SIGNATURES),
    short('D', flag("disable-compression", MaybeBool, "use --compression none")),
    flag("ulimit", Value, NO_LIMITS),
    flag("shm-size", Value, NO_LIMITS),
    short('m', flag("memory", Value, NO_LIMITS)),
    flag("memory-swap", Value, NO_LIMITS),
    flag("cpu-shares", Value, NO_LIMITS),
    flag("cpu-period", Value, NO_LIMITS),
    flag("cpu-quota", Value, NO_LIMITS),
    flag("cpuset-cpus", Value, NO_LIMITS),
    flag("cpuset-mems", Value, NO_LIMITS),
    flag("cgroup-parent", Value, "RUN steps have no control group"),
    flag("cgroupns", Value, OWN_SANDBOX),
    flag("ipc", Value, OWN_SANDBOX),
    flag("pid", Value, OWN_SANDBOX),
    flag("uts", Value, OWN_SANDBOX),
    flag("userns", Value, OWN_SANDBOX),
    flag("runtime", Value, OWN_SANDBOX),
    flag("runtime-flag", Value, OWN_SANDBOX),
    flag("dns", Value, "RUN steps use this machine's resolv.conf"),
    flag("dns-option", Value, "RUN steps use this machine's resolv.conf"),
    flag("dns-search", Value, "RUN steps use this machine's resolv.conf"),
    flag("identity-label", MaybeBool, "no such label is written"),
    flag("logfile", Value, "redirect stderr instead"),
    flag("stdin", Nothing, "RUN steps have no input"),
];

const fn short(letter: char, flag: Flag) -> Flag {
    Flag { short: Some(letter), ..flag }
}

/// Adds the flags to the grammar.
pub(crate) fn extend(mut command: Command) -> Command {
    for flag in GLOBAL {
        command = command.arg(argument(flag).global(true));
    }
    for (verb, flags) in VERBS {
        // clap panics on an unknown name; the test below reports it instead.
        if command.find_subcommand(verb).is_none() {
            continue;
        }
        command = command.mut_subcommand(verb, |mut verb| {
            for flag in *flags {
                verb = verb.arg(argument(flag));
            }
            verb
        });
    }
    command
}

fn argument(flag: &Flag) -> Arg {
    let argument = Arg::new(flag.long).long(flag.long).hide(true).action(match flag.takes {
        Nothing => ArgAction::Count,
        MaybeBool | Value => ArgAction::Append,
    });
    let argument = match flag.short {
        Some(short) => argument.short(short),
        None => argument,
    };
    match flag.takes {
        MaybeBool => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Nothing | Value => argument,
    }
}

/// Returns a note for each of these flags on the command line.
pub(crate) fn notes(matches: &ArgMatches) -> Vec<String> {
    let Some((verb, inner)) = matches.subcommand() else {
        return Vec::new();
    };
    let of_verb = VERBS.iter().filter(|(name, _)| *name == verb).flat_map(|(_, flags)| *flags);
    GLOBAL
        .iter()
        .chain(of_verb)
        .filter(|flag| {
            inner.value_source(flag.long) == Some(clap::parser::ValueSource::CommandLine)
        })
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
