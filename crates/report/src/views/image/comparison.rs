//! What an image changes compared with an older one.

use maud::{Markup, html};

use crate::model::image::{Change, Comparison, ImageReport, NamedChange, Transfer};
use crate::text::{count, counted, percent, short_digest, shown};
use crate::views::image::kind_class;
use crate::views::parts::{Tile, badge, code, digest, headings, nothing, table, tiles};
use imgctl_base::size::human;

pub(super) fn body(report: &ImageReport, compared: &Comparison) -> Markup {
    let old = compared.name.as_deref().unwrap_or(&compared.digest);
    let saved = |transfer: &Transfer| {
        format!(
            "{} of {} in {}",
            human(transfer.missing),
            human(transfer.whole),
            counted(transfer.layers, "layer", "layers")
        )
    };
    let signed = |new: u64, old: u64| {
        if new >= old {
            format!("+{}", human(new - old))
        } else {
            format!("−{}", human(old - new))
        }
    };
    let files = &compared.files;
    let figures = [
        Tile::new("To transfer", human(compared.forward.missing))
            .tone("accent")
            .note(saved(&compared.forward)),
        Tile::new("Way back", human(compared.back.missing)).note(saved(&compared.back)),
        Tile::new("Size", signed(report.totals.compressed, compared.compressed))
            .note(format!("{} before", human(compared.compressed))),
        Tile::new("Layers kept", count(compared.layers_kept)).note(format!(
            "{} % of the new image's layers",
            percent(compared.layers_kept, report.layers.len() as u64)
        )),
        Tile::new(
            "Files",
            format!("+{} ~{} −{}", files.added.count, files.changed.count, files.removed.count),
        )
        .note("added, changed, removed"),
    ];
    html! {
        p {
            "Compared with " (code(old)) " (" code.digest { (short_digest(&compared.digest)) } "). "
            "To transfer is what a machine that has the older image fetches: layers with a list of parts come in parts, of which only the missing ones are counted."
        }
        (tiles(&figures))
        h3 { "Layers" }
        (layers(compared))
        h3 { "Embedded images" }
        (named(&compared.embedded, "Embedded images that differ", "The embedded images are the same."))
        h3 { "Packages" }
        (named(&compared.packages, "Packages that differ", "The packages are the same."))
        h3 { "Files" }
        (file_table(compared))
    }
}

fn layers(compared: &Comparison) -> Markup {
    if compared.layers.is_empty() {
        return nothing("Both images have the same layers.");
    }
    let rows = html! {
        @for layer in &compared.layers {
            tr {
                td { (change(layer.change)) }
                td { (digest(&layer.digest)) }
                td { (badge(kind_class(layer.kind.as_deref()), layer.kind.as_deref().unwrap_or("other"))) }
                td.number { (human(layer.size)) }
                td.number { @if layer.change != Change::Removed { (human(layer.missing)) } }
                td.text { (code(&layer.instruction)) }
            }
        }
    };
    table(
        "Layers that differ",
        false,
        &headings(&["Change", "Digest", "Kind", "Size#", "To transfer#", "Instruction"]),
        &rows,
    )
}

fn named(changes: &[NamedChange], caption: &str, same: &str) -> Markup {
    if changes.is_empty() {
        return nothing(same);
    }
    let rows = html! {
        @for one in changes {
            tr {
                td { (change(one.change)) }
                th scope="row" { (code(&one.name)) }
                td { (code(&short(one.before.as_deref()))) }
                td { (code(&short(one.after.as_deref()))) }
            }
        }
    };
    table(caption, changes.len() > 12, &headings(&["Change", "Name", "Before", "After"]), &rows)
}

/// Digests are cut, versions are not.
fn short(value: Option<&str>) -> String {
    match value {
        Some(value) if value.starts_with("sha256:") => short_digest(value),
        value => value.unwrap_or_default().to_owned(),
    }
}

fn file_table(compared: &Comparison) -> Markup {
    let files = &compared.files;
    if files.list.is_empty() {
        return nothing("The files are the same.");
    }
    let rows = html! {
        @for file in &files.list {
            tr {
                td { (change(file.change)) }
                th scope="row" { (code(&file.path)) }
                td.number { @if file.change != Change::Added { (human(file.before)) } }
                td.number { @if file.change != Change::Removed { (human(file.after)) } }
            }
        }
    };
    html! {
        p.quiet {
            "Added: " (human(files.added.bytes)) ", changed: " (human(files.changed.bytes)) ", removed: " (human(files.removed.bytes)) "."
            @if files.omitted > 0 { " The largest changes are listed; " (shown(&counted(files.omitted, "more is", "more are"))) " in none of the lists." }
        }
        (table("Files that differ", files.list.len() > 12, &headings(&["Change", "File", "Before#", "After#"]), &rows))
    }
}

fn change(change: Change) -> Markup {
    match change {
        Change::Added => badge("good", "added"),
        Change::Changed => badge("warn", "changed"),
        Change::Removed => badge("bad", "removed"),
    }
}
