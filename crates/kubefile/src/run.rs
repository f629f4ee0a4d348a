//! `RUN`: its flags and its form.

use super::ast::{MountSpec, Run, RunNetwork, RunSecurity};
use super::instruction::Reader;
use super::problem::Problem;
use imgctl_base::suggest::closest;

const FLAGS: [&str; 4] = ["mount", "network", "security", "device"];

/// Parses a `RUN`.
pub(super) fn parse(reader: &mut Reader<'_>) -> Option<Run> {
    let mut mounts = Vec::new();
    for raw in reader.flags.many("mount", &mut reader.problems) {
        match MountSpec::parse(&raw, reader.escape) {
            Ok(mount) => mounts.push(mount),
            Err(problem) => reader.problem(problem),
        }
    }
    let network = reader.flags.one("network", &mut reader.problems);
    let network = network.and_then(|word| {
        let known = [
            ("default", RunNetwork::Default),
            ("none", RunNetwork::None),
            ("host", RunNetwork::Host),
        ];
        one_of(reader, "network", &word, &known)
    });
    let security = reader.flags.one("security", &mut reader.problems);
    let security = security.and_then(|word| {
        let known = [("sandbox", RunSecurity::Sandbox), ("insecure", RunSecurity::Insecure)];
        one_of(reader, "security", &word, &known)
    });
    let devices = reader.flags.many("device", &mut reader.problems);
    reader.finish_flags(&FLAGS);
    // Without a command, the shell runs an empty one (BuildKit).
    Some(Run {
        mounts,
        network,
        security,
        devices,
        form: reader.form(reader.rest)?,
        heredocs: reader.heredocs.to_vec(),
    })
}

fn one_of<T: Copy>(
    reader: &mut Reader<'_>,
    flag: &str,
    word: &str,
    known: &[(&'static str, T)],
) -> Option<T> {
    let names = || known.iter().map(|(name, _)| *name);
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == word) {
        return Some(*value);
    }
    let hint = match closest(word, names()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("it is one of {}", names().collect::<Vec<_>>().join(", ")),
    };
    reader.problem(Problem::new(format!("unknown value --{flag}={word}")).at(word).hint(hint));
    None
}
