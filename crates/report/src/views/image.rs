//! The page of an image's report.

mod comparison;
mod files;

use maud::{Markup, html};
use serde::Serialize;

use crate::escape::json_for_html;
use crate::model::image::{
    Attachment, EmbeddedImage, FileTree, ImageReport, Layer, Packages, Setting,
};
use crate::page::{Page, Section};
use crate::text::{count, counted, percent, short_digest, shown, time};
use crate::views::parts::{
    Share, Tile, badge, bar, code, digest, finding_note, findings, headings, nothing, table, tiles,
};
use imgctl_base::size::human;

const SCRIPT: &str = include_str!("../assets/image.js");
/// Maximum number of packages listed.
const MOST_PACKAGES: usize = 5000;

/// What the script draws from.
#[derive(Serialize)]
struct Data<'a> {
    files: &'a FileTree,
    /// Names and kinds of the layers, lowest first.
    layers: Vec<(String, &'a str)>,
}

/// Makes the page.
pub(crate) fn page(report: &ImageReport) -> Page<'_> {
    let image = &report.image;
    let name = image.name.as_deref().unwrap_or(&image.digest);
    let empty = FileTree::default();
    let files = if report.files.is_sound() { &report.files } else { &empty };
    let layers = report.layers.iter().enumerate();
    let layers = layers.map(|(index, layer)| (layer_name(index, layer), kind(layer))).collect();
    let mut facts = vec![("Digest", image.digest.clone()), ("Platform", image.platform.clone())];
    if let Some(created) = &image.created {
        facts.push(("Created", time(created)));
    }
    if let Some(kind) = &image.image_type {
        facts.push(("Type", kind.clone()));
    }
    if let Some(base) = &image.base {
        facts.push(("Base image", base.clone()));
    }
    let section = Section::new;
    let mut sections = vec![section("overview", "Overview", None, overview(report))];
    if let Some(compared) = &report.comparison {
        sections.push(section("changes", "Changes", None, comparison::body(report, compared)));
    }
    sections.extend([
        section("findings", "Findings", Some(report.findings.len()), findings(&report.findings)),
        section("layers", "Layers", Some(report.layers.len()), layer_table(&report.layers)),
        section("files", "Files", None, files::body(files, report)),
        section("embedded", "Embedded images", Some(report.embedded.len()), embedded(report)),
        section(
            "packages",
            "Packages",
            Some(report.packages.list.len()),
            packages(&report.packages),
        ),
        section(
            "attachments",
            "Signatures and documents",
            Some(report.attachments.len()),
            attachments(&report.attachments),
        ),
    ]);
    if !report.settings.is_empty() {
        let body = settings(&report.settings);
        sections.push(section("settings", "Settings", Some(report.settings.len()), body));
    }
    sections.push(section("configuration", "Configuration", None, configuration(report)));
    Page {
        about: &report.about,
        kind: "Image report",
        subject: name.to_owned(),
        facts,
        sections,
        script: SCRIPT,
        data: json_for_html(&Data { files, layers }),
    }
}

fn kind(layer: &Layer) -> &str {
    layer.kind.as_deref().unwrap_or("other")
}

/// The class that colours a kind of layer.
fn kind_class(kind: Option<&str>) -> &'static str {
    match kind {
        Some("rootfs") => "k-rootfs",
        Some("registry") => "k-registry",
        Some("addons") => "k-addons",
        _ => "k-other",
    }
}

fn layer_name(index: usize, layer: &Layer) -> String {
    format!("{} · {}", index + 1, short_digest(&layer.digest))
}

fn overview(report: &ImageReport) -> Markup {
    let totals = &report.totals;
    let (note, tone) = finding_note(&report.findings);
    let signatures =
        report.attachments.iter().filter(|attachment| attachment.kind == "signature").count();
    let mut figures = vec![
        Tile::new("Download", human(totals.compressed)).note(counted(
            report.layers.len() as u64,
            "layer",
            "layers",
        )),
        Tile::new("Content", human(totals.content))
            .note(format!("compressed to {} %", percent(totals.compressed, totals.content))),
        Tile::new("Files", count(totals.files)).note(counted(
            totals.directories,
            "directory",
            "directories",
        )),
        Tile::new("Embedded images", count(report.embedded.len() as u64)).note(human(
            report
                .layers
                .iter()
                .filter(|layer| layer.kind.as_deref() == Some("registry"))
                .map(|layer| layer.size)
                .fold(0, u64::saturating_add),
        )),
        Tile::new("Signatures", signatures.to_string()).note("not verified here"),
        Tile::new("Findings", report.findings.len().to_string()).note(note).tone(tone),
    ];
    if let Some(compared) = &report.comparison {
        let forward = &compared.forward;
        figures.insert(
            0,
            Tile::new("Update", human(forward.missing)).tone("accent").note(format!(
                "to transfer from {}",
                compared.name.as_deref().unwrap_or(&compared.digest)
            )),
        );
    }
    let shares: Vec<Share> = report
        .layers
        .iter()
        .enumerate()
        .map(|(index, layer)| Share {
            size: layer.size,
            class: format!("{} shade-{}", kind_class(layer.kind.as_deref()), index % 3),
            label: format!(
                "Layer {}: {}, {}",
                layer_name(index, layer),
                kind(layer),
                human(layer.size)
            ),
        })
        .collect();
    html! {
        (tiles(&figures))
        (bar("Sizes of the layers; the table of layers has the numbers", &shares))
        ul.legend {
            @for (kind, class) in [("rootfs", "k-rootfs"), ("registry", "k-registry"), ("addons", "k-addons"), ("other", "k-other")] {
                @let sum = report.layers.iter().filter(|layer| kind_class(layer.kind.as_deref()) == class).map(|layer| layer.size).fold(0, u64::saturating_add);
                @if sum > 0 {
                    li { svg.key width="12" height="12" aria-hidden="true" { rect class=(class) width="12" height="12" rx="2" {} } (kind) " " span.quiet { (human(sum)) } }
                }
            }
        }
    }
}

fn layer_table(layers: &[Layer]) -> Markup {
    if layers.is_empty() {
        return nothing("The image has no layers.");
    }
    let largest = layers.iter().map(|layer| layer.size).max().unwrap_or(0);
    let rows = html! {
        @for (index, layer) in layers.iter().enumerate() {
            tr {
                td.number { (index + 1) }
                td { (digest(&layer.digest)) }
                td { (badge(kind_class(layer.kind.as_deref()), kind(layer))) }
                td.number { (human(layer.size)) (meter(layer.size, largest, kind_class(layer.kind.as_deref()))) }
                td.number { (human(layer.content)) }
                td.number { (count(layer.files)) }
                td { (shown(&layer.compression)) }
                td.number { @if layer.hidden > 0 { (human(layer.hidden)) } }
                td.text { (code(&layer.instruction)) }
                td.text {
                    @for (number, name) in layer.shared_with.iter().enumerate() {
                        @if number > 0 { ", " }
                        bdi { (shown(name)) }
                    }
                }
            }
        }
    };
    let names = [
        "#",
        "Digest",
        "Kind",
        "Size#",
        "Content#",
        "Files#",
        "Compression",
        "Hidden#",
        "Instruction",
        "Shared with",
    ];
    html! {
        p.quiet { "Lowest layer first. Hidden is content that higher layers replace or delete." }
        (table("Layers", false, &headings(&names), &rows))
    }
}

/// A small bar below a number, relative to the largest one.
pub(super) fn meter(value: u64, largest: u64, class: &str) -> Markup {
    html! {
        svg.meter viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
            rect.track width="100" height="4" {}
            rect class=(class) width=(percent(value, largest)) height="4" {}
        }
    }
}

fn embedded(report: &ImageReport) -> Markup {
    if report.embedded.is_empty() {
        return nothing("The image has no embedded registry.");
    }
    let largest = report.embedded.iter().map(|image| image.size).max().unwrap_or(0);
    let row = |image: &EmbeddedImage| {
        html! {
            tr {
                th scope="row" { (code(&image.name)) }
                td { (digest(&image.digest)) }
                td { (shown(&image.platforms.join(", "))) }
                td.number { (human(image.size)) (meter(image.size, largest, "k-registry")) }
                td.number { (human(image.own_size)) }
            }
        }
    };
    let rows = html! { @for image in &report.embedded { (row(image)) } };
    html! {
        p.quiet { "Own is the size of the blobs that no other embedded image has." }
        (table("Embedded images", report.embedded.len() > 12, &headings(&["Image", "Digest", "Platforms", "Size#", "Own#"]), &rows))
    }
}

fn packages(packages: &Packages) -> Markup {
    if packages.list.is_empty() {
        return nothing("No package database of dpkg or apk was found.");
    }
    let rows = html! {
        @for package in packages.list.iter().take(MOST_PACKAGES) {
            tr {
                th scope="row" { (code(&package.name)) }
                td { (code(&package.version)) }
                td { (shown(&package.architecture)) }
                td { (shown(&package.kind)) }
            }
        }
    };
    let more = packages.list.len().saturating_sub(MOST_PACKAGES);
    html! {
        p.quiet {
            @if let Some(distribution) = &packages.distribution { "Distribution: " (shown(distribution)) ". " }
            "Packages as the package manager recorded them."
            @if more > 0 { " The first " (count(MOST_PACKAGES as u64)) " are listed; " (count(more as u64)) " more are in the JSON form." }
        }
        (table("Packages", true, &headings(&["Package", "Version", "Architecture", "Type"]), &rows))
    }
}

fn attachments(attachments: &[Attachment]) -> Markup {
    if attachments.is_empty() {
        return nothing(
            "Nothing refers to the image in this store: no signature, no SBOM, no provenance.",
        );
    }
    let rows = html! {
        @for attachment in attachments {
            tr {
                td { (badge(if attachment.kind == "signature" { "good" } else { "info" }, &attachment.kind)) }
                td { (code(&attachment.artifact_type)) }
                td { (digest(&attachment.digest)) }
                td { (digest(&attachment.subject)) }
                td.number { (human(attachment.size)) }
                td.text {
                    dl.details {
                        @for detail in &attachment.details {
                            div { dt { (shown(&detail.name)) } dd { bdi { (shown(&detail.value)) } } }
                        }
                    }
                }
            }
        }
    };
    html! {
        p.quiet { "What these documents say is not verified here: run " code { "imgctl verify" } "." }
        (table("Signatures and documents", false, &headings(&["Kind", "Type", "Digest", "About", "Size#", "Says"]), &rows))
    }
}

fn settings(settings: &[Setting]) -> Markup {
    let rows = html! {
        @for setting in settings {
            tr {
                th scope="row" { (code(&setting.name)) }
                td { (shown(&setting.kind)) }
                td.text { @if let Some(value) = &setting.default { (code(value)) } }
                td {
                    @if setting.required { (badge("warn", "required")) }
                    @if setting.secret { " " (badge("skip", "secret")) }
                }
                td.text { (shown(&setting.description)) }
            }
        }
    };
    let names = ["Name", "Type", "Default", "", "Description"];
    table("Settings", false, &headings(&names), &rows)
}

fn configuration(report: &ImageReport) -> Markup {
    let image = &report.image;
    let words = |words: &[String]| shown(&words.join(" ")).into_owned();
    let rows = html! {
        @if !image.entrypoint.is_empty() { tr { th scope="row" { "Entrypoint" } td.text { (code(&words(&image.entrypoint))) } } }
        @if !image.command.is_empty() { tr { th scope="row" { "Command" } td.text { (code(&words(&image.command))) } } }
        @for (name, value) in &image.labels {
            tr { th scope="row" { (code(name)) } td.text { (code(value)) } }
        }
    };
    table("Labels and commands", false, &headings(&["Name", "Value"]), &rows)
}
