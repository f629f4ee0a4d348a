//! Flags that scripts written for sealos and buildah pass and that have no effect here: taken,
//! with one note that says why, instead of breaking the script. Hidden from the help.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// One flag without effect.
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
    /// `--flag` or `--flag=true`, as Go's boolean flags.
    MaybeBool,
    Value,
}

use Takes::{MaybeBool, Nothing, Value};

const fn flag(long: &'static str, takes: Takes, why: &'static str) -> Flag {
    Flag {
        long,
        short: None,
        takes,
        why,
    }
}

const NO_STORAGE_DRIVER: &str = "imgctl has one store, under --root";
const NO_REGISTRY: &str = "nothing is fetched from registries yet";

/// For every verb: buildah's hidden global flags.
const GLOBAL: &[Flag] = &[
    flag("storage-driver", Value, NO_STORAGE_DRIVER),
    flag("storage-opt", Value, NO_STORAGE_DRIVER),
    flag("runroot", Value, NO_STORAGE_DRIVER),
    flag("registries-conf", Value, NO_REGISTRY),
    flag("registries-conf-dir", Value, NO_REGISTRY),
    flag("short-name-alias-conf", Value, NO_REGISTRY),
    flag("cgroup-manager", Value, "RUN steps get no control group"),
    flag("userns-uid-map", Value, "the mapping is found out"),
    flag("userns-gid-map", Value, "the mapping is found out"),
];

/// For single verbs.
const VERBS: &[(&str, &[Flag])] = &[];

/// Adds the flags to the grammar.
pub(crate) fn extend(mut command: Command) -> Command {
    for flag in GLOBAL {
        command = command.arg(argument(flag).global(true));
    }
    for (verb, flags) in VERBS {
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
    let argument = Arg::new(flag.long)
        .long(flag.long)
        .hide(true)
        .action(match flag.takes {
            Nothing => ArgAction::Count,
            MaybeBool | Value => ArgAction::Append,
        });
    let argument = match flag.short {
        Some(short) => argument.short(short),
        None => argument,
    };
    match flag.takes {
        MaybeBool => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Nothing | Value => argument,
    }
}

/// A note for each such flag that was given.
pub(crate) fn notes(matches: &ArgMatches) -> Vec<String> {
    let Some((verb, inner)) = matches.subcommand() else {
        return Vec::new();
    };
    let of_verb = VERBS
        .iter()
        .filter(|(name, _)| *name == verb)
        .flat_map(|(_, flags)| *flags);
    GLOBAL
        .iter()
        .chain(of_verb)
        .filter(|flag| {
            inner.value_source(flag.long) == Some(clap::parser::ValueSource::CommandLine)
        })
        .map(|flag| format!("--{} has no effect: {}", flag.long, flag.why))
        .collect()
}
