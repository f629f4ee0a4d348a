//! What several kinds of pages show in the same way.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::model::{Finding, Severity};
use crate::text::{LONGEST, lines, short_digest, shown};

/// A figure with its name, and a note below it.
pub(crate) struct Tile {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) note: String,
    /// A class that colours it, or none.
    pub(crate) tone: &'static str,
}

impl Tile {
    pub(crate) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), note: String::new(), tone: "" }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    pub(crate) fn tone(self, tone: &'static str) -> Self {
        Self { tone, ..self }
    }
}

/// The most important figures of a report.
pub(crate) fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        dl.tiles {
            @for tile in tiles {
                div class={ "tile " (tile.tone) } {
                    dt { (tile.name) }
                    dd {
                        span.value { (shown(&tile.value)) }
                        @if !tile.note.is_empty() { span.note { (shown(&tile.note)) } }
                    }
                }
            }
        }
    }
}

/// A table that scrolls by itself where it is too wide. With `filter`, the script adds a search field.
pub(crate) fn table(caption: &str, filter: bool, head: &Markup, rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table data-filter[filter] {
                caption.sr { (caption) }
                thead { tr { (head) } }
                tbody { (rows) }
            }
        }
    }
}

/// Column headings; those that end with `#` are above numbers.
pub(crate) fn headings(names: &[&str]) -> Markup {
    html! {
        @for name in names {
            @match name.strip_suffix('#') {
                Some(name) => th.number scope="col" { (name) },
                None => th scope="col" { (name) },
            }
        }
    }
}

/// A sentence where there is nothing to show.
pub(crate) fn nothing(text: &str) -> Markup {
    html! { p.nothing { (text) } }
}

/// A word on a coloured ground.
pub(crate) fn badge(class: &str, word: &str) -> Markup {
    html! { span class={ "badge " (class) } { (shown(word)) } }
}

/// The beginning of a digest; the whole is in its title, and for screen readers.
pub(crate) fn digest(digest: &str) -> Markup {
    html! { code.digest title=(shown(digest)) { (short_digest(digest)) } }
}

/// Foreign text in a fixed-width font.
pub(crate) fn code(text: &str) -> Markup {
    html! { code { bdi { (shown(text)) } } }
}

/// What is missing in a report, if anything is.
pub(crate) fn incomplete(problems: &[String]) -> Markup {
    html! {
        @if !problems.is_empty() {
            div.alert role="note" {
                strong { "This report is not complete." }
                ul { @for problem in problems { li { bdi { (shown(problem)) } } } }
            }
        }
    }
}

/// Findings, the gravest first.
pub(crate) fn findings(findings: &[Finding]) -> Markup {
    if findings.is_empty() {
        return nothing("Nothing was found that needs attention.");
    }
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.severity);
    let rows = html! {
        @for finding in sorted {
            tr {
                td { (severity(finding.severity)) }
                td.text {
                    p.message { bdi { (lines(&finding.message, LONGEST)) } }
                    @if let Some(hint) = &finding.hint { p.hint { bdi { (shown(hint)) } } }
                }
                td { bdi { (shown(finding.place.as_deref().unwrap_or_default())) } }
                td { (code(&finding.rule)) }
            }
        }
    };
    table(
        "Findings",
        findings.len() > 12,
        &headings(&["Severity", "What", "Where", "Check"]),
        &rows,
    )
}

/// Returns how many findings there are of each severity, as a note.
pub(crate) fn finding_note(findings: &[Finding]) -> (String, &'static str) {
    let mut counts: BTreeMap<Severity, usize> = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.severity).or_default() += 1;
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(severity, count)| {
            let word = severity_word(*severity);
            format!("{count} {word}{}", if *count == 1 { "" } else { "s" })
        })
        .collect();
    let tone = match counts.keys().next() {
        Some(Severity::Error) => "bad",
        Some(Severity::Warning) => "warn",
        Some(Severity::Note) | None => "",
    };
    (words.join(", "), tone)
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

fn severity(severity: Severity) -> Markup {
    let class = match severity {
        Severity::Error => "bad",
        Severity::Warning => "warn",
        Severity::Note => "info",
    };
    badge(class, severity_word(severity))
}

/// One part of a bar.
pub(crate) struct Share {
    pub(crate) size: u64,
    pub(crate) class: String,
    pub(crate) label: String,
}

/// A horizontal bar of shares of a whole, with a tooltip for each. A table must show the same.
pub(crate) fn bar(label: &str, shares: &[Share]) -> Markup {
    const WIDTH: u128 = 1000;
    let total: u128 = shares.iter().map(|share| u128::from(share.size)).sum::<u128>().max(1);
    let mut before = 0_u128;
    let placed: Vec<(u128, u128, &Share)> = shares
        .iter()
        .map(|share| {
            let start = before * WIDTH / total;
            before += u128::from(share.size);
            (start, (before * WIDTH / total).saturating_sub(start), share)
        })
        .collect();
    html! {
        svg.bar viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (x, width, share) in placed {
                @if width > 0 {
                    rect class=(share.class) x=(x) y="0" width=(width) height="28" {
                        title { (shown(&share.label)) }
                    }
                }
            }
        }
    }
}
