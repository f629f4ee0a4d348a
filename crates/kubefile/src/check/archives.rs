//! Detects a `COPY` that puts archives of `images/skopeo` into the image although the build embeds
//! their images: every host would receive them twice.

use super::{Diagnostic, Instruction, InstructionKind, Kubefile, Stage, name_span};
use crate::ast::{Source, Transfer};
use crate::expand;
use crate::glob::{self, SegmentPattern};
use crate::ignore::IgnoreRules;

/// Checks the file; `archives` are clean paths in the build context.
pub(super) fn check(
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
    let fixed = |raw: &str| {
        let is_fixed = expand::variables(raw, escape).ok()?.is_empty();
        let text = is_fixed.then(|| expand::expand(raw, escape, &|_| None))?;
        text.ok()
    };
    // Patterns that depend on variables produce no finding.
    let excluded: Option<Vec<String>> =
        transfer.flags.exclude.iter().map(|raw| fixed(raw)).collect();
    let Some(Ok(excluded)) =
        excluded.map(|patterns| IgnoreRules::parse(patterns.join("\n").as_bytes()))
    else {
        return;
    };
    for source in &transfer.sources {
        let Source::Path(raw) = source else { continue };
        let Some(source) = fixed(raw) else { continue };
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
