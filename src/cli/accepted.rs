//! Flags that scripts for sealos, buildah and docker pass. Those without effect are accepted with a
//! note that explains why, so that the scripts keep working; those that a script relies on are refused
//! with the reason and the way out. Hidden from the help.

use clap::{Arg, ArgAction, ArgMatches, Command};

use imgctl_base::error::Error;
use imgctl_frontend::environment::Environment;

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
    (Value, "mounts have no default files", &["default-mounts-file"]),
    (Value, "no profile is written", &["cpu-profile", "memory-profile"]),
    (Value, "imgctl reads podman's alias file", &["short-name-alias-conf"]),
    (Value, NO_CONTROL_GROUP, &["cgroup-manager"]),
    (Value, "imgctl determines the mapping", &["userns-uid-map", "userns-gid-map"]),
];

/// Flags of all verbs that stand for a variable, as in buildah.
const VARIABLES: &[(&str, &str)] = &[
    ("registries-conf", "CONTAINERS_REGISTRIES_CONF"),
    ("registries-conf-dir", "CONTAINERS_REGISTRIES_CONF_DIR"),
];

/// Variables of the other tools that have no effect here, and why.
const UNREAD: &[(&str, &str)] = &[
    ("CONTAINERS_STORAGE_CONF", "imgctl has one store, under --root"),
    ("CONTAINERS_CONF", "imgctl has flags and IMGCTL_ variables"),
    ("STORAGE_DRIVER", "imgctl has one store, under --root"),
    ("BUILDAH_ISOLATION", "RUN steps always have their own namespaces"),
    ("BUILDAH_LAYERS", "each step is a layer and is cached, unless --squash"),
    ("BUILDAH_RUNTIME", "RUN steps need no runtime"),
    ("SEALOS_SEALCTL_PATH", "imgctl brings its own agent"),
];

const NO_CONTROL_GROUP: &str = "RUN steps have no control group";
const NO_CONTAINERS: &str = "there are no intermediate containers";
const NO_SIGNATURES: &str =
    "signatures are stored with images in registries: imgctl sign, imgctl verify";
const COMPRESSION: Group = (MaybeBool, "use --compression none", &["D,disable-compression"]);
const BLOBS: Group = (Value, "the store keeps every blob once", &["blob-cache"]);

/// A flag that is refused, why, and what to do instead.
type Refused = (Takes, &'static str, &'static str, &'static str);

const DECRYPTION: Refused = (
    Value,
    "decryption-key",
    "imgctl does not decrypt layers",
    "decrypt the image first: skopeo copy --decryption-key KEY docker://NAME oci-archive:FILE",
);
const SIGN_BY: Refused = (
    Value,
    "sign-by",
    "signatures are made after the push",
    "push the image, then run `imgctl sign --key FILE NAME`",
);
const ENCRYPTION: &str = "imgctl does not encrypt layers";
const ENCRYPT: &str = "save the image, then encrypt it: skopeo copy --encryption-key KEY oci-archive:FILE docker://NAME";
const MERGE_STORES: &str = "merge writes to the store";
const DIFF_SHOWS: &str = "diff makes no images";
const PATCHES: &str = "an update of only what is new: imgctl diff --patch OLD NEW -o FILE";
const RUN_RIGHTS: &str = "a RUN step can do no more than its sandbox allows";

/// Flags of individual verbs, and of `manifest push`, that are refused.
const REFUSED: &[(&str, &[Refused])] = &[
    ("build", REFUSED_OF_BUILD),
    (
        "merge",
        &[
            DECRYPTION,
            (Value, "output", MERGE_STORES, "run `imgctl save` or `imgctl export` on the result"),
            (MaybeBool, "push", MERGE_STORES, "run `imgctl push` on the result"),
            (Value, "manifest", MERGE_STORES, "run `imgctl manifest add` with the result"),
        ],
    ),
    ("pull", &[DECRYPTION]),
    ("from", &[DECRYPTION]),
    ("diff", &[(Value, "tag", DIFF_SHOWS, PATCHES), (MaybeBool, "save", DIFF_SHOWS, PATCHES)]),
    (
        "push",
        &[
            SIGN_BY,
            (Value, "encryption-key", ENCRYPTION, ENCRYPT),
            (Value, "encrypt-layer", ENCRYPTION, ENCRYPT),
        ],
    ),
    ("manifest push", &[SIGN_BY]),
];

const REFUSED_OF_BUILD: &[Refused] = &[
    DECRYPTION,
    (
        Value,
        "cap-add",
        RUN_RIGHTS,
        "use `RUN --security=insecure` and --allow security.insecure for a step that needs more",
    ),
    (
        Value,
        "device",
        RUN_RIGHTS,
        "use `RUN --security=insecure` and --allow security.insecure for a step that needs devices",
    ),
    (
        Value,
        "volume",
        "directories of this machine are not in RUN steps: the image would depend on them",
        "use `RUN --mount=type=bind,from=NAME` with --build-context NAME=DIR, or type=cache",
    ),
    (
        Value,
        "security-opt",
        "the sandbox of RUN steps is fixed",
        "use `RUN --security=insecure` and --allow security.insecure for a step that needs more",
    ),
];

/// Flags of individual verbs.
const VERBS: &[(&str, &[Group])] = &[
    ("build", BUILD),
    ("diff", &[(Value, "there are only images to compare", &["diff-type"])]),
    ("mounts", &[(Value, "all mounts are shown", &["f,filter"])]),
    (
        "from",
        &[
            (Value, NOTHING_RUNS, FROM_VALUES),
            (MaybeBool, NOTHING_RUNS, &["http-proxy"]),
            (Value, "the mount prints its name", &["cidfile"]),
            (Value, "a mount has no format", &["f,format"]),
        ],
    ),
    (
        "merge",
        &[
            (
                MaybeBool,
                "embedded images do not change",
                &["all", "save-image", "registry-namespace"],
            ),
            (Value, "embedded images do not change", &["max-pull-procs"]),
            (MaybeBool, NOTHING_BUILT, MERGE_SWITCHES),
            (Value, NOTHING_BUILT, MERGE_VALUES),
            (Value, NOTHING_CACHED, &["cache-from", "cache-to", "cache-ttl"]),
            (MaybeBool, NO_CONTAINERS, &["rm", "force-rm"]),
            (MaybeBool, NO_SIGNATURES, &["disable-content-trust"]),
            (Value, NO_SIGNATURES, &["sign-by"]),
            COMPRESSION,
            BLOBS,
        ],
    ),
    ("pull", PULL),
    ("copy", PULL),
    ("push", &[(MaybeBool, NO_SIGNATURES, &["disable-content-trust"]), COMPRESSION, BLOBS]),
    (
        "save",
        &[
            (MaybeBool, "layers are saved unchanged", &["compress", "uncompressed"]),
            (MaybeBool, "an archive always holds all given images", &["m,multi-image-archive"]),
        ],
    ),
];

const PULL: &[Group] =
    &[(MaybeBool, NO_SIGNATURES, &["disable-content-trust", "remove-signatures"]), BLOBS];

const NOTHING_RUNS: &str = "nothing runs in a mount";
const FROM_VALUES: &[&str] = &[
    "add-host",
    "cap-add",
    "cap-drop",
    "cgroup-parent",
    "cgroupns",
    "cpu-period",
    "cpu-quota",
    "cpu-shares",
    "cpuset-cpus",
    "cpuset-mems",
    "device",
    "dns",
    "dns-option",
    "dns-search",
    "ipc",
    "isolation",
    "m,memory",
    "memory-swap",
    "network",
    "pid",
    "security-opt",
    "shm-size",
    "ulimit",
    "userns",
    "userns-uid-map-user",
    "userns-gid-map-group",
    "uts",
    "volume",
];

const NOTHING_CACHED: &str = "merge runs no steps whose results could be cached";
const NOTHING_BUILT: &str = "merge only combines layers";

/// Flags of `build` that `merge` of sealos also has.
const MERGE_SWITCHES: &[&str] = &[
    "no-cache",
    "layers",
    "squash",
    "http-proxy",
    "stdin",
    "identity-label",
    "log-rusage",
    "logsplit",
    "no-hosts",
    "no-hostname",
    "omit-history",
    "skip-unused-stages",
    "compress",
    "reproducible",
];
const MERGE_VALUES: &[&str] = &[
    "isolation",
    "cgroupns",
    "ipc",
    "pid",
    "uts",
    "userns",
    "runtime",
    "runtime-flag",
    "ulimit",
    "shm-size",
    "m,memory",
    "memory-swap",
    "cpu-shares",
    "cpu-period",
    "cpu-quota",
    "cpuset-cpus",
    "cpuset-mems",
    "cgroup-parent",
    "dns",
    "dns-option",
    "dns-search",
    "logfile",
    "rusage-logfile",
    "cni-config-dir",
    "cni-plugin-path",
    "cpp-flag",
    "hooks-dir",
    "group-add",
    "userns-uid-map-user",
    "userns-gid-map-group",
    "build-arg",
    "build-arg-file",
    "build-context",
    "f,file",
    "from",
    "target",
    "ignorefile",
    "jobs",
    "network",
    "secret",
    "ssh",
    "add-host",
    "cap-add",
    "cap-drop",
    "device",
    "volume",
    "security-opt",
    "allow",
    "unsetenv",
    "os-version",
    "os-feature",
    "format",
    "compression-level",
    "iidfile",
    "metadata-file",
];

const BUILD: &[Group] = &[
    (
        Value,
        "RUN steps always have their own namespaces",
        &["isolation", "cgroupns", "ipc", "pid", "uts", "userns", "runtime", "runtime-flag"],
    ),
    (MaybeBool, "each step is a layer and is cached, unless --squash", &["layers"]),
    (MaybeBool, NO_CONTAINERS, &["rm", "force-rm"]),
    (Value, "use imgctl prune --filter until=…", &["cache-ttl"]),
    (MaybeBool, "file times never exceed the timestamp", &["rewrite-timestamp"]),
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
    BLOBS,
    (Value, "RUN steps have the capabilities of Docker's default", &["cap-drop"]),
    (Value, "RUN steps have no network of their own", &["cni-config-dir", "cni-plugin-path"]),
    (MaybeBool, "layers are always compressed, unless --compression none", &["compress"]),
    (Value, "Kubefiles are not preprocessed", &["cpp-flag"]),
    (Value, "RUN steps have the groups of their USER", &["group-add"]),
    (Value, "RUN steps have no OCI hooks", &["hooks-dir"]),
    (MaybeBool, "resource usage is not recorded", &["log-rusage"]),
    (Value, "resource usage is not recorded", &["rusage-logfile"]),
    (MaybeBool, "all platforms log to stderr", &["logsplit"]),
    (MaybeBool, "/etc/hosts of RUN steps is not part of the image", &["no-hosts", "no-hostname"]),
    (MaybeBool, "only the stages that the target needs are built", &["skip-unused-stages"]),
    (Value, "imgctl determines the mapping", &["userns-uid-map-user", "userns-gid-map-group"]),
    (Value, "imgctl builds by itself", &["builder"]),
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
pub(crate) fn extend(mut command: Command) -> Command {
    for (path, refused) in REFUSED {
        let (verb, inner) = path.split_once(' ').unwrap_or((path, ""));
        let add = |command: Command| command.args(refused.iter().map(refusing));
        if command.find_subcommand(verb).is_some() {
            command = command.mut_subcommand(verb, |verb| match inner {
                "" => add(verb),
                inner => verb.mut_subcommand(inner, add),
            });
        }
    }
    let variable = |(long, _): &(&'static str, &str)| {
        let flag = Flag { long, short: None, takes: Value, why: "" };
        argument(&flag).value_parser(clap::value_parser!(std::ffi::OsString)).global(true)
    };
    let command = command.args(VARIABLES.iter().map(variable));
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

fn refusing((takes, long, ..): &Refused) -> Arg {
    argument(&Flag { long, short: None, takes: *takes, why: "" })
}

/// Returns the error for the first flag on the command line that is refused.
pub(crate) fn refusal(matches: &ArgMatches) -> Option<Error> {
    let (verb, matches) = matches.subcommand()?;
    REFUSED.iter().find_map(|(path, refused)| {
        let (outer, inner) = path.split_once(' ').unwrap_or((path, ""));
        let matches = match inner {
            _ if outer != verb => None,
            "" => Some(matches),
            inner => matches.subcommand().filter(|(name, _)| *name == inner).map(|found| found.1),
        }?;
        let (_, long, why, hint) = refused.iter().find(|(_, long, ..)| {
            matches.value_source(long) == Some(clap::parser::ValueSource::CommandLine)
        })?;
        Some(Error::usage(format!("--{long} is not supported: {why}")).hint(*hint))
    })
}

/// Returns the variables that flags of the command line stand for.
pub(crate) fn variables(matches: &ArgMatches) -> Vec<(&'static str, std::ffi::OsString)> {
    let given = |(flag, variable): &(&str, &'static str)| {
        let mut values = matches.get_many::<std::ffi::OsString>(flag)?;
        Some((*variable, values.next_back()?.clone()))
    };
    VARIABLES.iter().filter_map(given).collect()
}

/// Says which variables of other tools are set and not read.
pub(crate) fn unread(environment: &Environment) -> Vec<String> {
    let is_set = |name: &str| environment.path(name).is_some();
    UNREAD
        .iter()
        .filter(|(name, _)| is_set(name))
        .map(|(name, why)| format!("the variable {name} has no effect: {why}"))
        .collect()
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
