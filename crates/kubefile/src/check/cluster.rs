//! Rules for cluster images: labels that determine the type of an image, commands that are executed one
//! by one, and a `COPY` that puts archives of `images/skopeo` into the image although the build embeds their
//! images (every host would receive them twice).

use super::{CheckOptions, Diagnostic, Instruction, InstructionKind, Kubefile, Stage, name_span};
use crate::ast::{CommandForm, Source, Transfer};
use crate::expand;
use crate::glob::{self, SegmentPattern};
use crate::ignore::IgnoreRules;
use imgctl_base::suggest::closest;

/// The label that states the type of an image, in both spellings.
const TYPE_LABELS: [&str; 2] = ["sealos.io.type", "apps.sealos.io/type"];

/// Labels of cluster images that imgctl reads (docs/cluster-image.md).
const LABELS: [&str; 37] = [
    "apps.sealos.io/distribution",
    "apps.sealos.io/type",
    "apps.sealos.io/version",
    "backup",
    "before",
    "can-upgrade",
    "check",
    "clean",
    "clean-cri",
    "clean-registry",
    "health",
    "image",
    "imgctl.io/certificates",
    "imgctl.io/cgroup",
    "imgctl.io/cri-version",
    "imgctl.io/etcd-version",
    "imgctl.io/kubelet-hash-compat",
    "imgctl.io/min-kernel",
    "imgctl.io/probe-image",
    "imgctl.io/sandbox-image",
    "imgctl.io/upgrade-from",
    "imgctl.io/version",
    "init",
    "init-cri",
    "init-registry",
    "join",
    "join-worker",
    "leave",
    "renumber",
    "restore",
    "rollback",
    "sealos.io.distribution",
    "sealos.io.type",
    "sealos.io.version",
    "settle",
    "uninstall",
    "upgrade",
];
/// Labels that resemble one of these and mean something else.
const OTHERS: [&str; 3] = ["vip", "version", "auth"];
/// Beginnings of labels that nobody else uses.
const OWN_LABELS: [&str; 3] = ["sealos.io.", "apps.sealos.io/", "imgctl.io/"];

const TYPES: [&str; 3] = ["rootfs", "patch", "application"];

/// Returns whether the file describes a cluster image, judging by its name or a label.
pub(super) fn is_cluster_image(kubefile: &Kubefile) -> bool {
    let file = kubefile.name.rsplit('/').next().unwrap_or_default();
    let file = file.to_lowercase();
    file.starts_with("kubefile")
        || file.ends_with(".kubefile")
        || labels(kubefile).iter().any(|label| TYPE_LABELS.contains(&label.key.as_str()))
}

pub(super) fn check(kubefile: &Kubefile, options: &CheckOptions<'_>, found: &mut Vec<Diagnostic>) {
    if !is_cluster_image(kubefile) {
        return;
    }
    let labels = labels(kubefile);
    for label in labels.iter().filter(|label| TYPE_LABELS.contains(&label.key.as_str())) {
        kind(label, &labels, options, found);
    }
    labels.iter().for_each(|label| unknown(label, found));
    let stage = kubefile.stages.last();
    for instruction in stage.iter().flat_map(|stage| &stage.instructions) {
        if let InstructionKind::Cmd(CommandForm::Exec(elements))
        | InstructionKind::Entrypoint(CommandForm::Exec(elements)) = &instruction.kind
        {
            commands(instruction, elements, found);
        }
    }
}

/// Returns the value of a raw word, unless it depends on variables.
fn fixed(raw: &str, escape: char) -> Option<String> {
    let used = expand::variables(raw, escape).ok()?;
    used.is_empty().then(|| expand::expand(raw, escape, &|_| None))?.ok()
}

/// A label of the final stage.
struct Label<'a> {
    key: String,
    /// `None` if it depends on variables.
    value: Option<String>,
    raw: &'a str,
    instruction: &'a Instruction,
}

fn labels(kubefile: &Kubefile) -> Vec<Label<'_>> {
    let escape = kubefile.directives.escape;
    let instructions = kubefile.stages.last().map(|stage| &stage.instructions);
    let mut labels = Vec::new();
    for instruction in instructions.into_iter().flatten() {
        let InstructionKind::Label(pairs) = &instruction.kind else {
            continue;
        };
        for (key, raw) in pairs {
            labels.extend(fixed(key, escape).map(|key| {
                let value = fixed(raw, escape);
                Label { key, value, raw, instruction }
            }));
        }
    }
    labels
}

fn kind(
    label: &Label<'_>,
    labels: &[Label<'_>],
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let Some(value) = label.value.as_deref() else {
        return;
    };
    let span = label.instruction.span_of(label.raw);
    if !TYPES.contains(&value) {
        let diagnostic = Diagnostic::warning(
            "ClusterImageType",
            format!("{}={value}: unknown cluster image type", label.key),
            span,
        );
        found.push(match closest(value, TYPES) {
            Some(known) => diagnostic.hint(format!("did you mean {known}?")),
            None => diagnostic.hint("the types are rootfs, patch and application"),
        });
    }
    let versioned = labels.iter().any(|label| label.key == "version")
        || options.labels.iter().any(|label| label == "version");
    if value == "rootfs" && !versioned {
        let message = "a rootfs image needs the label version, which upgrades rely on";
        let warning = Diagnostic::warning("RootfsVersionLabel", message, span);
        found.push(warning.hint("add LABEL version=\"v1.29.9\", or build with --label version=…"));
    }
}

/// Warns about a label that looks like one that imgctl reads, and is none.
fn unknown(label: &Label<'_>, found: &mut Vec<Diagnostic>) {
    let key = label.key.as_str();
    if LABELS.contains(&key) || OTHERS.contains(&key) {
        return;
    }
    let near = closest(key, LABELS);
    if near.is_none() && !OWN_LABELS.iter().any(|start| key.starts_with(start)) {
        return;
    }
    let span = name_span(label.instruction);
    let diagnostic =
        Diagnostic::warning("UnknownLabel", format!("nothing reads the label {key}"), span);
    found.push(match near {
        Some(near) => diagnostic.hint(format!("did you mean {near}?")),
        None => diagnostic,
    });
}

/// Warns about a command line that is split into elements as in Docker: in a cluster image, each
/// element is a command line of its own.
fn commands(instruction: &Instruction, elements: &[String], found: &mut Vec<Diagnostic>) {
    // These two are dropped, so the shell form is one command.
    let elements: Vec<&String> =
        elements.iter().filter(|element| *element != "/bin/sh" && *element != "-c").collect();
    let looks_split =
        elements.len() > 1 && elements.iter().all(|element| !element.contains(char::is_whitespace));
    if looks_split {
        let name = instruction.name();
        let whole: Vec<&str> = elements.iter().map(|element| element.as_str()).collect();
        found.push(
            Diagnostic::warning(
                "CommandElementsAreCommands",
                format!("in a cluster image each element of {name} is a separate command"),
                name_span(instruction),
            )
            .hint(format!("write CMD [\"{}\"] if this is one command", whole.join(" "))),
        );
    }
}

/// Checks the file; `archives` are clean paths in the build context.
pub(super) fn check_archives(
    kubefile: &Kubefile,
    parents: &[Option<usize>],
    archives: &[String],
    found: &mut Vec<Diagnostic>,
) {
    for stage in shipped(kubefile, parents) {
        for instruction in &stage.instructions {
            let (transfer, unpacks) = match &instruction.kind {
                InstructionKind::Copy(transfer) => (transfer, false),
                InstructionKind::Add(transfer) => (transfer, true),
                _ => continue,
            };
            if transfer.flags.from.is_none() {
                copied(instruction, transfer, unpacks, archives, kubefile, found);
            }
        }
    }
}

/// Returns the stages whose files are in the image: the last one and the stages it builds on.
fn shipped<'a>(kubefile: &'a Kubefile, parents: &[Option<usize>]) -> Vec<&'a Stage> {
    let mut stages = Vec::new();
    let mut next = kubefile.stages.len().checked_sub(1);
    while let Some(stage) = next.and_then(|index| kubefile.stages.get(index)) {
        stages.push(stage);
        next = parents.get(stage.index).copied().flatten();
    }
    stages
}

fn copied(
    instruction: &Instruction,
    transfer: &Transfer,
    unpacks: bool,
    archives: &[String],
    kubefile: &Kubefile,
    found: &mut Vec<Diagnostic>,
) {
    let escape = kubefile.directives.escape;
    // Patterns that depend on variables produce no finding.
    let excluded: Option<Vec<String>> =
        transfer.flags.exclude.iter().map(|raw| fixed(raw, escape)).collect();
    let Some(Ok(excluded)) =
        excluded.map(|patterns| IgnoreRules::parse(patterns.join("\n").as_bytes()))
    else {
        return;
    };
    for source in &transfer.sources {
        let Source::Path(raw) = source else { continue };
        let Some(source) = fixed(raw, escape) else { continue };
        let below: Vec<&str> = archives
            .iter()
            .filter_map(|archive| {
                let below = below(archive, &source)?;
                // ADD unpacks an archive that it names directly.
                let stays = below.is_empty() && unpacks;
                let name = archive.rsplit('/').next().unwrap_or(archive);
                let path = if below.is_empty() { name } else { below };
                (!stays && !excluded.matches(path.as_bytes())).then_some(path)
            })
            .collect();
        let Some(first) = below.first() else { continue };
        let what = match below.len() {
            1 => format!("{first} of {source} is already embedded, and is copied as well"),
            more => format!(
                "{first} and {} more of {source} are already embedded, and are copied as well",
                more - 1
            ),
        };
        let leave_out = first.rsplit_once('/').map_or(*first, |(folder, _)| folder);
        found.push(
            Diagnostic::warning("EmbeddedArchiveCopied", what, name_span(instruction))
                .hint(format!("every host would receive them twice: add --exclude={leave_out}")),
        );
        return;
    }
}

/// Returns the path of `archive` relative to what `source` names; empty if the source is the
/// archive itself, `None` if the source does not include it.
fn below<'a>(archive: &'a str, source: &str) -> Option<&'a str> {
    let mut rest = archive;
    for wanted in source.split('/').filter(|part| !matches!(*part, "" | ".")) {
        let (part, behind) = rest.split_once('/').unwrap_or((rest, ""));
        let is_same = if glob::has_meta(wanted.as_bytes()) {
            SegmentPattern::compile(wanted.as_bytes()).ok()?.matches(part.as_bytes())
        } else {
            wanted == part
        };
        if part.is_empty() || !is_same {
            return None;
        }
        rest = behind;
    }
    Some(rest)
}
