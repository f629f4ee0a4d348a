//! A folder or a file of an image.

use maud::{Markup, html};

use crate::console::{Links, link, plain};
use crate::model::files::{Content, FileEntry, FilesReport};
use crate::page::{Page, Section};
use crate::text::{count, counted, lines, shown, time};
use crate::views::parts::{code, headings, nothing, table};
use imgctl_base::size::human;

/// Maximum number of characters of a line of a file.
const LONGEST_LINE: usize = 4000;

pub(super) fn page<'a>(report: &'a FilesReport, links: Links<'_>) -> Page<'a> {
    let this = &report.this;
    let mut facts = vec![
        ("Image", report.image.clone()),
        ("Platform", report.platform.clone()),
        ("Mode", this.mode.clone()),
        ("Owner", format!("{}:{}", this.uid, this.gid)),
        ("Modified", time(&this.modified)),
    ];
    if let Some(layer) = this.layer {
        facts.push(("Layer", layer.to_string()));
    }
    let start = links.files(&report.digest, &report.platform);
    let is_folder = this.kind == "directory";
    let mut body = crumbs(report, &start);
    if is_folder {
        body = html! { (body) (folder(report, &start)) };
    } else {
        let content = match &report.content {
            Some(content) => file(content, this),
            None => nothing("It has no content."),
        };
        body = html! { (body) (content) };
    }
    let (title, number) = if is_folder {
        ("Folder", Some(report.entries.len() + usize::try_from(report.omitted).unwrap_or(0)))
    } else {
        ("Content", None)
    };
    let sections = vec![Section::new("content", title, number, body)];
    let parts: Vec<&str> = report.path.iter().map(|part| part.name.as_str()).collect();
    plain(&report.about, "Files", &format!("/{}", parts.join("/")), facts, sections)
}

fn crumbs(report: &FilesReport, start: &str) -> Markup {
    let mut at = start.to_owned();
    let mut steps = vec![(at.clone(), "/")];
    for part in &report.path {
        if at.len() > start.len() {
            at.push('/');
        }
        at.push_str(&part.encoded);
        steps.push((at.clone(), &part.name));
    }
    let last = steps.len() - 1;
    html! {
        ol.crumbs {
            @for (index, (href, name)) in steps.iter().enumerate() {
                li { @if index == last { span aria-current="page" { (code(name)) } } @else { (link(href, name)) } }
            }
        }
    }
}

fn folder(report: &FilesReport, start: &str) -> Markup {
    if report.entries.is_empty() {
        return nothing("The folder is empty.");
    }
    let parts: Vec<&str> = report.path.iter().map(|part| part.encoded.as_str()).collect();
    let before =
        if parts.is_empty() { start.to_owned() } else { format!("{start}{}/", parts.join("/")) };
    let rows = html! {
        @for entry in &report.entries {
            tr {
                th scope="row" {
                    @let is_folder = entry.kind == "directory";
                    @if is_folder || entry.kind == "file" || entry.kind == "symlink" {
                        (link(&format!("{before}{}", entry.name.encoded), &entry.name.name))
                    } @else { (code(&entry.name.name)) }
                    @if is_folder { "/" }
                    @if let Some(target) = &entry.target { " → " (code(target)) }
                }
                td.number { @if entry.kind == "file" { (human(entry.size)) } }
                td { (shown(&entry.kind)) }
                td { (code(&entry.mode)) }
                td { (entry.uid) ":" (entry.gid) }
                td.digest { (time(&entry.modified)) }
                td.number { @if let Some(layer) = entry.layer { (layer) } }
            }
        }
    };
    html! {
        @if report.omitted > 0 { p.quiet { (count(report.omitted)) " more entries are not listed. See " (code("imgctl ls")) "." } }
        (table("Entries of the folder", report.entries.len() > 12, &headings(&["Name", "Size#", "Type", "Mode", "Owner", "Modified", "Layer#"]), &rows))
    }
}

fn file(content: &Content, this: &FileEntry) -> Markup {
    let Some(text) = &content.text else {
        return nothing(&format!(
            "The file is not text: {}. Get it with imgctl cat.",
            counted(this.size, "byte", "bytes")
        ));
    };
    if text.is_empty() {
        return nothing("The file is empty.");
    }
    html! {
        @if content.omitted > 0 { p.quiet { "The beginning; " (human(content.omitted)) " after it are left out." } }
        pre.log.whole tabindex="0" role="region" aria-label="Text of the file" { (lines(text, LONGEST_LINE)) }
    }
}
