//! Rules for cluster images: labels that determine the type of an image, and commands that are
//! executed one by one.

use super::{CheckOptions, Diagnostic, Instruction, InstructionKind, Kubefile, name_span};
use crate::ast::CommandForm;
use crate::expand;
use imgctl_base::suggest::closest;

/// The label that states the type of an image, in both spellings.
const TYPE_LABELS: [&str; 2] = ["sealos.io.type", "apps.sealos.io/type"];

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
    let stage = kubefile.stages.last();
    for instruction in stage.iter().flat_map(|stage| &stage.instructions) {
        if let InstructionKind::Cmd(CommandForm::Exec(elements))
        | InstructionKind::Entrypoint(CommandForm::Exec(elements)) = &instruction.kind
        {
            commands(instruction, elements, found);
        }
    }
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
    let fixed = |raw: &str| {
        let used = expand::variables(raw, escape).ok()?;
        let value = used.is_empty().then(|| expand::expand(raw, escape, &|_| None))?;
        value.ok()
    };
    let instructions = kubefile.stages.last().map(|stage| &stage.instructions);
    let mut labels = Vec::new();
    for instruction in instructions.into_iter().flatten() {
        let InstructionKind::Label(pairs) = &instruction.kind else {
            continue;
        };
        for (key, raw) in pairs {
            labels.extend(fixed(key).map(|key| Label { key, value: fixed(raw), raw, instruction }));
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
        found.push(
            Diagnostic::warning(
                "RootfsVersionLabel",
                "a rootfs image needs the label version, which upgrades rely on",
                span,
            )
            .hint("add LABEL version=\"v1.29.9\", or build with --label version=…"),
        );
    }
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
