//! The frame of every page: head, policy, style, script, header, navigation and footer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

use crate::links::Links;
use crate::model::About;
use crate::text::{shown, time};

const STYLE: &str = include_str!("assets/report.css");
const CORE: &str = include_str!("assets/core.js");

/// A page, and what a server has to say of it.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub html: String,
    /// Value of the header `Content-Security-Policy`: the page's own style and script, and nothing else.
    pub policy: String,
}

/// Where a page of the console is.
pub(crate) struct Frame<'a> {
    /// Path before all addresses; empty if the page must not lead anywhere.
    pub(crate) base: &'a str,
    pub(crate) place: Place,
    /// The pages above this one.
    pub(crate) trail: Vec<Step>,
    /// Address before the paths of an image's files, for the script.
    pub(crate) files: Option<String>,
    /// Address of the events that report changes of the page.
    pub(crate) changes: Option<String>,
    /// The page follows events of its server.
    pub(crate) is_live: bool,
    pub(crate) has_form: bool,
    /// Query that leads to the page's data.
    pub(crate) json: String,
}

/// The parts of the console.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Store,
    Clusters,
    Runs,
    Plans,
    /// A message.
    Nowhere,
}

/// A page above another one.
pub(crate) struct Step {
    name: String,
    href: String,
}

impl Step {
    pub(crate) fn new(name: &str, href: String) -> Self {
        Self { name: name.to_owned(), href }
    }
}

impl<'a> Frame<'a> {
    pub(crate) fn new(base: &'a str, place: Place, trail: Vec<Step>) -> Self {
        let json = "?format=json".to_owned();
        let (files, changes) = (None, None);
        Self { base, place, trail, files, changes, is_live: false, has_form: false, json }
    }

    /// The page changes when its lists change.
    pub(crate) fn changing(self, events: String) -> Self {
        Self { changes: Some(events), is_live: true, ..self }
    }

    /// Links to the parts of the console, and to the pages above this one.
    fn navigation(&self) -> Markup {
        let links = Links(self.base);
        let places = [
            (Place::Store, "Store", links.store()),
            (Place::Clusters, "Clusters", links.clusters()),
            (Place::Runs, "Runs", links.runs()),
            (Place::Plans, "Plans", links.plans()),
        ];
        html! {
            @if !self.base.is_empty() {
                nav.places aria-label="Console" {
                    ul {
                        @for (place, name, href) in places {
                            li { a href=(href) aria-current=[(place == self.place).then_some("true")] { (name) } }
                        }
                    }
                }
            }
            @if !self.trail.is_empty() {
                nav.trail aria-label="Path" {
                    ol.crumbs {
                        @for step in &self.trail { li { a href=(step.href) { bdi { (shown(&step.name)) } } } }
                    }
                }
            }
        }
    }
}

/// What differs between pages.
pub(crate) struct Page<'a> {
    pub(crate) about: &'a About,
    /// Such as `Image report`.
    pub(crate) kind: &'static str,
    /// What the report is about.
    pub(crate) subject: String,
    /// Facts below the subject.
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) sections: Vec<Section>,
    /// The script that belongs to this kind, after the common one.
    pub(crate) script: &'static str,
    /// JSON for the script, escaped for HTML.
    pub(crate) data: String,
}

/// A part of a page that the navigation leads to; see [`Section::new`].
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) title: String,
    /// Number beside the title in the navigation.
    pub(crate) count: Option<u64>,
    pub(crate) body: Markup,
}

impl Section {
    pub(crate) fn new(id: &'static str, title: &str, count: Option<usize>, body: Markup) -> Self {
        Self { id, title: title.to_owned(), count: count.map(|count| count as u64), body }
    }
}

impl Page<'_> {
    /// Writes the page as a file that stands alone.
    pub(crate) fn render(self) -> String {
        self.write(None).html
    }

    /// Writes the page as a part of the console.
    pub(crate) fn render_in(self, frame: &Frame<'_>) -> Rendered {
        self.write(Some(frame))
    }

    fn write(self, frame: Option<&Frame<'_>>) -> Rendered {
        let script = format!("{CORE}\n{}", self.script);
        let connections = match frame {
            Some(frame) if frame.is_live => " connect-src 'self';",
            _ => "",
        };
        let forms = if frame.is_some_and(|frame| frame.has_form) { "'self'" } else { "'none'" };
        // The icon is in the page, so that no browser asks a server for one.
        let mut policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:;\
             {connections} base-uri 'none'; form-action {forms}",
            hash(STYLE),
            hash(&script)
        );
        let title = format!("{} · {}", shown(&self.subject), self.kind);
        let html = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(policy);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    meta name="generator" content=(shown(&self.about.generator));
                    link rel="icon" href="data:,";
                    title { (title) }
                    style { (PreEscaped(STYLE)) }
                }
                body data-files=[frame.and_then(|frame| frame.files.as_ref())] data-changes=[frame.and_then(|frame| frame.changes.as_ref())] {
                    a.skip href="#main" { "Skip to content" }
                    @if let Some(frame) = frame { (frame.navigation()) }
                    header.top {
                        div.brand { (logo()) span { "imgctl" } span.kind { (self.kind) } }
                        h1 { bdi { (shown(&self.subject)) } }
                        @if !self.facts.is_empty() {
                            dl.facts {
                                @for (name, value) in &self.facts {
                                    div { dt { (name) } dd { bdi { (shown(value)) } } }
                                }
                            }
                        }
                    }
                    // A single section needs no list of sections.
                    @if self.sections.len() > 1 { nav.sections aria-label="Sections" {
                        ul {
                            @for section in &self.sections {
                                li {
                                    a href={ "#" (section.id) } {
                                        (section.title)
                                        @if let Some(count) = section.count {
                                            " " span.count { (crate::text::count(count)) }
                                        }
                                    }
                                }
                            }
                        }
                    } }
                    main id="main" {
                        @for section in &self.sections {
                            section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                                h2 id={ (section.id) "-title" } { (section.title) }
                                (section.body)
                            }
                        }
                    }
                    footer {
                        p {
                            "Made by " (shown(&self.about.generator))
                            @if let Some(created) = &self.about.created {
                                ", " time datetime=(shown(created)) { (time(created)) }
                            }
                            @match frame {
                                None => ". The page needs no network.",
                                Some(frame) => {
                                    ". The console shows, and changes nothing."
                                    @if frame.place != Place::Nowhere { " " a href=(frame.json) { "The same as JSON" } }
                                },
                            }
                        }
                    }
                    script type="application/json" id="data" { (PreEscaped(&self.data)) }
                    script { (PreEscaped(&script)) }
                }
            }
        }
        .into_string();
        if frame.is_some() {
            // In a page itself it has no meaning.
            policy.push_str("; frame-ancestors 'none'");
        }
        Rendered { html, policy }
    }
}

fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

/// Layers, one above the other.
fn logo() -> Markup {
    html! {
        svg.logo viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" {
            path d="M12 2 22 7 12 12 2 7Z" {}
            path d="m2 12 10 5 10-5" {}
            path d="m2 17 10 5 10-5" {}
        }
    }
}
