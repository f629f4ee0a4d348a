//! What an image changes compared with an older one.

use maud::{Markup, html};

use crate::model::comparison::{
    Change, ChartChange, Comparison, ImageChange, ImageVersion, NamedChange, ObjectChange, Transfer,
};
use crate::model::image::ImageReport;
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
        h3 { "Configuration" }
        (named(&compared.configuration, "Settings that differ", "The configuration is the same."))
        h3 { "Embedded images" }
        (images(&compared.embedded))
        @if !compared.charts.is_empty() {
            h3 { "Charts" }
            (charts(&compared.charts))
        }
        @if !compared.objects.is_empty() {
            h3 { "Kubernetes objects" }
            (objects(&compared.objects))
        }
        h3 { "Packages" }
        (named(&compared.packages, "Packages that differ", "The packages of the image's own files are the same."))
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
                td { (code(one.before.as_deref().unwrap_or_default())) }
                td { (code(one.after.as_deref().unwrap_or_default())) }
            }
        }
    };
    table(caption, changes.len() > 12, &headings(&["Change", "Name", "Before", "After"]), &rows)
}

fn images(changes: &[ImageChange]) -> Markup {
    if changes.is_empty() {
        return nothing("The embedded images are the same.");
    }
    let version = |version: Option<&ImageVersion>| {
        version.map(|version| match &version.tag {
            Some(tag) => format!("{tag} ({})", short_digest(&version.digest)),
            None => short_digest(&version.digest),
        })
    };
    let rows = html! {
        @for one in changes {
            tr {
                td { (change(one.change)) }
                th scope="row" { (code(&one.repository)) }
                td { (code(&version(one.before.as_ref()).unwrap_or_default())) }
                td { (code(&version(one.after.as_ref()).unwrap_or_default())) }
                td {
                    @if let Some(why) = &one.unread {
                        "unknown: " (shown(why))
                    } @else if !one.packages.is_empty() {
                        details {
                            summary { (counted(one.packages.len() as u64, "differs", "differ")) }
                            ul {
                                @for package in &one.packages {
                                    li { (code(&package.name)) " " (arrow(package)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    table(
        "Embedded images that differ",
        changes.len() > 12,
        &headings(&["Change", "Repository", "Before", "After", "Packages inside"]),
        &rows,
    )
}

/// From one value to another.
fn arrow(one: &NamedChange) -> Markup {
    html! {
        @match (&one.before, &one.after) {
            (Some(before), Some(after)) => { (code(before)) " → " (code(after)) }
            (Some(before), None) => { (code(before)) " removed" }
            (None, after) => { (code(after.as_deref().unwrap_or_default())) " added" }
        }
    }
}

fn charts(changes: &[ChartChange]) -> Markup {
    let rows = html! {
        @for one in changes {
            tr {
                td { (change(one.change)) }
                th scope="row" { (code(&one.name)) }
                td { (code(one.before.as_deref().unwrap_or_default())) }
                td { (code(one.after.as_deref().unwrap_or_default())) }
                td {
                    @if !one.values.is_empty() {
                        ul { @for value in &one.values { li { (code(&value.name)) " " (arrow(value)) } } }
                    }
                }
            }
        }
    };
    let head = headings(&["Change", "Chart", "Before", "After", "Values that differ"]);
    table("Charts that differ", changes.len() > 12, &head, &rows)
}

fn objects(changes: &[ObjectChange]) -> Markup {
    let rows = html! {
        @for one in changes {
            tr {
                td { (change(one.change)) }
                td { (shown(&one.kind)) }
                th scope="row" {
                    (code(&match &one.namespace {
                        Some(namespace) => format!("{namespace}/{}", one.name),
                        None => one.name.clone(),
                    }))
                }
                td { (code(&one.file)) }
                td { @for member in &one.members { (code(member)) " " } }
            }
        }
    };
    let head = headings(&["Change", "Kind", "Object", "File", "Members that differ"]);
    table("Kubernetes objects that differ", changes.len() > 12, &head, &rows)
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
