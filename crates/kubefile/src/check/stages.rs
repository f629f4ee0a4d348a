//! Rules for `FROM`, stages and their working directories.

use std::collections::{BTreeMap, HashSet};

use super::scope::{Globals, Known};
use super::{BaseImage, CheckOptions, Diagnostic, InstructionKind, Kubefile, Stage};
use crate::ast::From;
use crate::expand;
use imgctl_base::image::{Platform, Reference};
use imgctl_base::suggest::closest;

/// Names that have another meaning for builders.
const RESERVED: [&str; 2] = [SCRATCH, "context"];
/// The base that has nothing.
const SCRATCH: &str = "scratch";

/// Returns the image that each stage builds on, as far as it is known, and reports images for other
/// platforms.
pub(super) fn bases(
    kubefile: &Kubefile,
    parents: &[Option<usize>],
    globals: &Globals,
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) -> Vec<Option<BaseImage>> {
    let target = options.platform.clone().unwrap_or_else(Platform::host);
    let mut base = |stage: &Stage| {
        let from = &stage.from;
        let name = globals.word(&from.image);
        let has_parent = parents.get(stage.index).copied().flatten().is_some();
        if has_parent || name.as_deref() == Some(SCRATCH) {
            return Some(BaseImage::default());
        }
        let written = from.platform.as_ref().and_then(|raw| globals.word(raw));
        let wanted =
            written.and_then(|text| Platform::parse(&text).ok()).unwrap_or_else(|| target.clone());
        let base = options.base_image?(&name?, &wanted)?;
        let is_other = |actual: &&Platform| {
            (&actual.os, &actual.architecture) != (&wanted.os, &wanted.architecture)
        };
        if let Some(actual) = base.platform.as_ref().filter(is_other)
            && options.builds(stage.index)
        {
            let message = format!("{} is for {actual}, not for {wanted}", from.image);
            let span = from.span_of(&from.image);
            let warning = Diagnostic::warning("InvalidBaseImagePlatform", message, span);
            found.push(warning.hint("use an image that exists for the platform"));
        }
        Some(base)
    };
    kubefile.stages.iter().map(&mut base).collect()
}

pub(super) fn check(
    kubefile: &Kubefile,
    known: &Known<'_>,
    options: &CheckOptions<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let mut names: HashSet<&str> = HashSet::new();
    let escape = kubefile.directives.escape;
    // Whether the working directory at the end of each stage is known.
    let mut directories_at_end: Vec<bool> = Vec::new();
    for stage in &kubefile.stages {
        if let Some(name) = &stage.from.name {
            let duplicate = !names.insert(name);
            stage_name(&stage.from, name, duplicate, found);
        }
        as_casing(&stage.from, found);
        platform(escape, &stage.from, found);
        arguments(escape, known.globals, &stage.from, found);
        let at_start = match known.parents.get(stage.index).copied().flatten() {
            Some(parent) => directories_at_end.get(parent).copied().unwrap_or_default(),
            None => known.globals.word(&stage.from.image).is_some_and(|image| image == SCRATCH),
        };
        directories_at_end.push(directories(stage, at_start, found));
    }
    images(kubefile, options, found);
}

fn stage_name(from: &From, name: &str, duplicate: bool, found: &mut Vec<Diagnostic>) {
    let written = from.written_name.as_deref().unwrap_or(name);
    // The name is the last word; the image's name may contain the same text.
    let start = from.text.len() - written.len();
    let span = from.map.locate(&from.text, start, from.text.len());
    if written != name {
        let message = format!("the stage name {written} is not in lower case");
        let warning = Diagnostic::warning("StageNameCasing", message, span);
        found.push(warning.hint(format!("write {name}")));
    }
    if duplicate {
        let message = format!("an earlier stage is already named {name}");
        let warning = Diagnostic::warning("DuplicateStageName", message, span);
        found.push(warning.hint("give each stage a unique name"));
    }
    if RESERVED.contains(&name) {
        found.push(Diagnostic::warning(
            "ReservedStageName",
            format!("{name} is reserved; do not use it as the name of a stage"),
            span,
        ));
    }
}

fn as_casing(from: &From, found: &mut Vec<Diagnostic>) {
    let Some(name) = &from.written_name else {
        return;
    };
    let head = from.text.strip_suffix(name.as_str()).unwrap_or_default().trim_end();
    let (Some(keyword), Some(word)) =
        (head.split_whitespace().next(), head.get(head.len().saturating_sub(2)..))
    else {
        return;
    };
    let lower = keyword == keyword.to_lowercase();
    // ConsistentInstructionCasing reports a keyword in both cases.
    if !lower && keyword != keyword.to_uppercase() {
        return;
    }
    let wanted = if lower { "as" } else { "AS" };
    if word != wanted {
        let span = from.map.locate(&from.text, head.len() - word.len(), head.len());
        let message = format!("{word} is not in the same case as {keyword}");
        let warning = Diagnostic::warning("FromAsCasing", message, span);
        found.push(warning.hint(format!("write {wanted}")));
    }
}

fn platform(escape: char, from: &From, found: &mut Vec<Diagnostic>) {
    let Some(platform) = &from.platform else {
        return;
    };
    let used = expand::variables(platform, escape).unwrap_or_default();
    let target = |name: &str| (name == "TARGETPLATFORM").then(|| "target".to_owned());
    let is_target = !used.is_empty()
        && used.iter().all(|used| used.name == "TARGETPLATFORM")
        && expand::expand(platform, escape, &target).is_ok_and(|value| value == "target");
    if is_target {
        found.push(
            Diagnostic::warning(
                "RedundantTargetPlatform",
                "the target platform is the default",
                from.span_of(platform),
            )
            .hint("remove --platform"),
        );
    } else if used.is_empty() && !is_named_after(from, platform) {
        found.push(
            Diagnostic::warning(
                "FromPlatformFlagConstDisallowed",
                format!("--platform={platform} applies whatever the target platform is"),
                from.span_of(platform),
            )
            .hint("remove it, or use $BUILDPLATFORM"),
        );
    }
}

/// Whether the name of a stage contains the system or the architecture that its platform fixes.
fn is_named_after(from: &From, platform: &str) -> bool {
    let name = from.name.as_deref().unwrap_or_default();
    let platform = platform.trim_matches(['"', '\'']);
    let parts = match Platform::parse(platform) {
        Ok(platform) => [platform.os, platform.architecture],
        // A system alone means the host's architecture (containerd).
        Err(_) => [platform.to_lowercase(), Platform::host().architecture],
    };
    parts.iter().any(|part| !part.is_empty() && name.contains(part))
}

/// Checks the variables of the `FROM` line, where only global arguments are available.
fn arguments(escape: char, globals: &Globals, from: &From, found: &mut Vec<Diagnostic>) {
    for raw in [Some(&from.image), from.platform.as_ref()].into_iter().flatten() {
        let mut all = expand::variables(raw, escape).unwrap_or_default();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        // A default such as in `${a:-b}` excuses nothing (BuildKit).
        for used in all.into_iter().filter(|used| !globals.declares(&used.name)) {
            let diagnostic = Diagnostic::warning(
                "UndefinedArgInFrom",
                format!("{} is not declared before the first FROM", used.name),
                from.span_of(&used.name),
            );
            found.push(match closest(&used.name, globals.names()) {
                Some(name) => diagnostic.hint(format!("did you mean {name}?")),
                None => diagnostic.hint(format!("add ARG {} at the top of the file", used.name)),
            });
        }
    }
}

/// `InvalidDefaultArgInFrom`: names of base images that are no names without `--build-arg`.
fn images(kubefile: &Kubefile, options: &CheckOptions<'_>, found: &mut Vec<Diagnostic>) {
    let defaults = Globals::new(kubefile, options, &BTreeMap::new());
    for stage in &kubefile.stages {
        let from = &stage.from;
        if defaults.word(&from.image).is_some_and(|image| !is_image(&image)) {
            let message =
                format!("without --build-arg, {} is not the name of an image", from.image);
            let span = from.span_of(&from.image);
            let warning = Diagnostic::warning("InvalidDefaultArgInFrom", message, span);
            let hint = if from.image.contains('$') {
                "give the ARG a valid default"
            } else {
                "write names of images and stages in lower case"
            };
            found.push(warning.hint(hint));
        }
    }
}

/// Whether `name` is the name of an image, of a stage, or a place such as `oci-layout://DIR`.
fn is_image(name: &str) -> bool {
    name.contains("://") || Reference::parse(name).is_ok()
}

/// `RelativeCopyPath`: relative destinations whose meaning depends on the base image. Returns whether the
/// working directory is known at the end of the stage.
fn directories(stage: &Stage, mut known: bool, found: &mut Vec<Diagnostic>) -> bool {
    for instruction in &stage.instructions {
        match &instruction.kind {
            InstructionKind::Workdir(_) => known = true,
            InstructionKind::Copy(transfer) | InstructionKind::Add(transfer) if !known => {
                let dest = &transfer.dest;
                if !dest.trim_start_matches(['"', '\'']).starts_with(['/', '$']) {
                    let text = &instruction.text;
                    let at = text.rfind(dest.as_str());
                    let (start, end) = at.map_or((0, 0), |at| (at, at + dest.len()));
                    let span = instruction.map.locate(text, start, end);
                    let message = format!("the location of {dest} depends on the base image");
                    let warning = Diagnostic::warning("RelativeCopyPath", message, span);
                    found.push(warning.hint("set WORKDIR first, or write an absolute path"));
                }
            }
            _ => {}
        }
    }
    known
}
