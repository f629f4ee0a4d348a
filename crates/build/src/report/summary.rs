//! The summary of a build or a check for those who review it, in GitHub's Markdown.
//!
//! Shows names, digests and sizes, steps as they are written in the Kubefile, and findings: nothing
//! that the image itself does not tell, no values of arguments, no output.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::build::Built;
use crate::report::finding::{Finding, severity_name};
use crate::report::image::{Before, ImageFacts, LayerFacts};
use crate::report::markdown::{code, cut, plain, table};
use imgctl_base::error::Error;
use imgctl_base::image::Digest;
use imgctl_base::progress::decimal;

/// Rows of a table; an image with more says how many there are.
const MAX_ROWS: usize = 200;
/// Characters of a step or a message.
const MAX_TEXT: usize = 120;

/// What a summary is about.
#[derive(Debug)]
pub struct BuildSummary<'a> {
    pub built: &'a Built,
    pub images: &'a [ImageFacts],
    pub before: Option<&'a Before>,
    pub findings: &'a [Finding],
    pub time: Duration,
}

/// Returns the summary of a build.
pub fn summary_of_build(summary: &BuildSummary<'_>) -> String {
    let mut text = heading(summary.built);
    text.push_str(&table(&["", ""], &[], &overview(summary)));
    for image in summary.images {
        let before = earlier(summary.before, image);
        let of = match summary.images {
            [_] => String::new(),
            _ => format!(" of {}", image.platform),
        };
        text.push_str(&format!("\n### Layers{of}\n\n{}", layers(image, before)));
        if !image.embedded.is_empty() || before.is_some_and(|before| !before.embedded.is_empty()) {
            text.push_str(&format!("\n### Embedded images{of}\n\n{}", embedded(image, before)));
        }
    }
    text.push_str(&of_findings(summary.findings));
    text.push('\n');
    text
}

/// Returns the summary of a build in a few lines, where a long one does not fit.
pub fn short_summary(summary: &BuildSummary<'_>) -> String {
    heading(summary.built) + &table(&["", ""], &[], &overview(summary)) + "\n"
}

/// Returns the summary of a check.
pub fn summary_of_check(name: &str, findings: &[Finding], fails: bool) -> String {
    let verdict = match (findings.len(), fails) {
        (0, _) => "nothing was found",
        (_, false) => "findings that do not fail the check",
        (_, true) => "the check fails",
    };
    format!("## Check of {}: {verdict}\n{}\n", code(name), of_findings(findings))
}

/// Returns the summary of a build that failed.
pub fn summary_of_failure(error: &Error, findings: &[Finding]) -> String {
    // The first line: the rest of it is an excerpt, which the findings replace.
    let what = error.message().lines().next().unwrap_or_default();
    let mut text = format!("## The build failed\n\n{}\n", plain(&cut(what, 1000)));
    for cause in error.chain().iter().skip(1).take(5) {
        let cause = cause.lines().next().unwrap_or_default();
        text.push_str(&format!("- because: {}\n", plain(&cut(cause, 1000))));
    }
    for hint in error.hints() {
        text.push_str(&format!("- hint: {}\n", plain(&cut(hint, 1000))));
    }
    text + &of_findings(findings) + "\n"
}

fn heading(built: &Built) -> String {
    let names: Vec<String> = built.names.iter().map(|name| code(&name.to_string())).collect();
    match names.as_slice() {
        [] => "## Image without a name\n\n".to_owned(),
        names => format!("## Image {}\n\n", names.join(", ")),
    }
}

fn overview(summary: &BuildSummary<'_>) -> Vec<Vec<String>> {
    let built = summary.built;
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("Digest", code(&built.descriptor.digest.to_string())),
        row("Image ID", code(&built.image_id.to_string())),
    ];
    for image in summary.images {
        let (size, count) = (decimal(image.size()), image.layers.len());
        let layers = if count == 1 { "layer" } else { "layers" };
        rows.push(row(&format!("Size, {}", image.platform), format!("{size} in {count} {layers}")));
    }
    rows.push(row(
        "Steps from the cache",
        format!("{} of {}", built.steps.cached, built.steps.total),
    ));
    rows.push(row("Time", format!("{:.1} s", summary.time.as_secs_f64())));
    if let Some(before) = summary.before {
        let said = match &before.images {
            Ok(_) => against(summary.images, before),
            Err(error) => format!("not possible: {}", plain(&cut(&error.to_string(), 300))),
        };
        rows.push(row(&format!("Against {}", code(&before.name)), said));
    }
    rows
}

/// Returns what changed since `before`, in one line.
pub fn against(images: &[ImageFacts], before: &Before) -> String {
    if before.images.as_ref().is_ok_and(Vec::is_empty) {
        return "there is none yet".to_owned();
    }
    let pairs = images.iter().filter_map(|image| Some((image, earlier(Some(before), image)?)));
    let lines: Vec<String> =
        pairs.map(|(image, before)| compared(image, before, images.len() > 1)).collect();
    lines.join("; ")
}

/// Returns what changed since `before` as a member of `build --json`.
pub fn against_json(images: &[ImageFacts], before: &Before) -> Value {
    let of = |image: &ImageFacts| {
        let earlier = earlier(Some(before), image)?;
        let (known, changes) = (digests(earlier), changes(image, earlier));
        let new: Vec<&Digest> = image.layers.iter().map(|layer| &layer.digest).collect();
        let new: Vec<_> = new.into_iter().filter(|digest| !known.contains(digest)).collect();
        let names = |wanted: &str| -> Vec<&str> {
            let chosen = changes.iter().filter(|(_, (change, _))| *change == wanted);
            chosen.map(|(name, _)| *name).collect()
        };
        Some(json!({
            "platform": image.platform.to_string(), "digest": earlier.digest,
            "layersSize": image.size(), "layersSizeBefore": earlier.size(), "newLayers": new,
            "embedded": {
                "added": names(ADDED), "changed": names(CHANGED), "removed": names(REMOVED),
            },
        }))
    };
    json!({ "name": before.name, "images": images.iter().filter_map(of).collect::<Vec<_>>() })
}

fn earlier<'a>(before: Option<&'a Before>, image: &ImageFacts) -> Option<&'a ImageFacts> {
    let images = before?.images.as_ref().ok()?;
    images.iter().find(|before| before.platform == image.platform)
}

/// `+1.2 MB, 3 of 5 layers new, 2 embedded images changed`.
fn compared(image: &ImageFacts, before: &ImageFacts, with_platform: bool) -> String {
    let of = if with_platform { format!("{}: ", image.platform) } else { String::new() };
    if image.digest == before.digest {
        return format!("{of}the same image");
    }
    let known = digests(before);
    let new: Vec<&LayerFacts> =
        image.layers.iter().filter(|layer| !known.contains(&layer.digest)).collect();
    let bytes = new.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    let changes = changes(image, before);
    let count = |wanted: &str| changes.values().filter(|(change, _)| *change == wanted).count();
    let mut told = format!(
        "{of}{}, {} of {} layers new ({})",
        difference(image.size(), before.size()),
        new.len(),
        image.layers.len(),
        decimal(bytes)
    );
    for change in [CHANGED, ADDED, REMOVED] {
        if count(change) > 0 {
            told.push_str(&format!(", {} embedded {change}", count(change)));
        }
    }
    told
}

fn digests(image: &ImageFacts) -> BTreeSet<&Digest> {
    image.layers.iter().map(|layer| &layer.digest).collect()
}

fn difference(now: u64, before: u64) -> String {
    match now.checked_sub(before) {
        Some(0) => "±0 B".to_owned(),
        Some(more) => format!("+{}", decimal(more)),
        None => format!("−{}", decimal(before.saturating_sub(now))),
    }
}

/// The name of a layer's kind.
fn kind_of(layer: &LayerFacts) -> &'static str {
    layer.kind.map_or("other", |kind| kind.as_str())
}

fn layers(image: &ImageFacts, before: Option<&ImageFacts>) -> String {
    let sums = |image: &ImageFacts| {
        let mut sums: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for layer in &image.layers {
            let sum = sums.entry(kind_of(layer)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(layer.size));
        }
        sums
    };
    let (now, then) = (sums(image), before.map(sums));
    let mut kinds: BTreeSet<&str> = now.keys().copied().collect();
    kinds.extend(then.iter().flat_map(|then| then.keys().copied()));
    let mut rows = Vec::new();
    for kind in kinds {
        let (count, size) = now.get(kind).copied().unwrap_or_default();
        let mut row = vec![kind.to_owned(), count.to_string(), decimal(size)];
        if let Some(then) = &then {
            let (_, earlier) = then.get(kind).copied().unwrap_or_default();
            row.push(difference(size, earlier));
        }
        rows.push(row);
    }
    let headings: &[&str] = match then {
        Some(_) => &["Kind", "Layers", "Size", "Change"],
        None => &["Kind", "Layers", "Size"],
    };
    let mut text = table(headings, &[1, 2, 3], &rows);

    let known = before.map(digests);
    let shown = image.layers.iter().take(MAX_ROWS).map(|layer| {
        let is_new = known.as_ref().is_some_and(|known| !known.contains(&layer.digest));
        vec![
            code(layer.digest.short()) + if is_new { " new" } else { "" },
            kind_of(layer).to_owned(),
            decimal(layer.size),
            code(&cut(&layer.created_by, MAX_TEXT)),
        ]
    });
    let shown: Vec<Vec<String>> = shown.collect();
    text.push_str(&format!(
        "\n<details><summary>Each layer</summary>\n\n{}{}\n</details>\n",
        table(&["Digest", "Kind", "Size", "Step"], &[2], &shown),
        rest(image.layers.len())
    ));
    text
}

const CHANGED: &str = "changed";
const ADDED: &str = "added";
const REMOVED: &str = "removed";

/// How each embedded image differs from the earlier one, with the earlier digest.
fn changes<'a>(
    image: &'a ImageFacts,
    before: &'a ImageFacts,
) -> BTreeMap<&'a str, (&'static str, &'a str)> {
    let mut changes = BTreeMap::new();
    for (name, digest) in &image.embedded {
        match before.embedded.get(name) {
            None => changes.insert(name.as_str(), (ADDED, "")),
            Some(earlier) if earlier != digest => {
                changes.insert(name.as_str(), (CHANGED, earlier.as_str()))
            }
            Some(_) => None,
        };
    }
    for (name, digest) in &before.embedded {
        if !image.embedded.contains_key(name) {
            changes.insert(name.as_str(), (REMOVED, digest.as_str()));
        }
    }
    changes
}

fn embedded(image: &ImageFacts, before: Option<&ImageFacts>) -> String {
    let changes = before.map(|before| changes(image, before)).unwrap_or_default();
    let mut rows: Vec<(u8, Vec<String>)> = Vec::new();
    for (name, digest) in &image.embedded {
        let (rank, change) = match changes.get(name.as_str()) {
            Some((CHANGED, earlier)) => (0, format!("changed, was {}", code(&short_of(earlier)))),
            Some((change, _)) => (0, (*change).to_owned()),
            None => (1, String::new()),
        };
        rows.push((rank, vec![code(name), code(digest), change]));
    }
    let removed = changes.iter().filter(|(_, (change, _))| *change == REMOVED);
    rows.extend(
        removed.map(|(name, (change, digest))| {
            (0, vec![code(name), code(digest), (*change).to_owned()])
        }),
    );
    // What changed must not fall off the end of a long list.
    rows.sort_by_key(|(rank, _)| *rank);
    let count = rows.len();
    let rows = rows.into_iter().take(MAX_ROWS).map(|(_, mut row)| {
        row.truncate(if before.is_some() { 3 } else { 2 });
        row
    });
    let headings: &[&str] = match before {
        Some(_) => &["Image", "Digest", "Change"],
        None => &["Image", "Digest"],
    };
    table(headings, &[], &rows.collect::<Vec<_>>()) + &rest(count)
}

/// `sha256:0123456789ab` of a digest.
fn short_of(digest: &str) -> String {
    digest.chars().take(19).collect()
}

fn of_findings(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let rows = findings.iter().take(MAX_ROWS).map(|finding| {
        vec![
            severity_name(finding.severity).to_owned(),
            code(&format!("{}:{}", finding.path(), finding.place.line)),
            code(finding.rule),
            plain(&cut(&finding.place.message, 2 * MAX_TEXT)),
        ]
    });
    let headings = ["Severity", "Place", "Rule", "Finding"];
    let rows: Vec<Vec<String>> = rows.collect();
    format!("\n### Findings\n\n{}{}", table(&headings, &[], &rows), rest(findings.len()))
}

fn rest(count: usize) -> String {
    match count.checked_sub(MAX_ROWS) {
        Some(more @ 1..) => format!("\nand {more} more\n"),
        _ => String::new(),
    }
}
