//! The frame of every page: head, policy, style, script, header, navigation and footer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

use crate::model::About;
use crate::text::{shown, time};

const STYLE: &str = include_str!("assets/report.css");
const CORE: &str = include_str!("assets/core.js");

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
    /// Writes the page.
    pub(crate) fn render(self) -> String {
        let script = format!("{CORE}\n{}", self.script);
        // The icon is in the page, so that no browser asks a server for one.
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; \
             base-uri 'none'; form-action 'none'",
            hash(STYLE),
            hash(&script)
        );
        let title = format!("{} · {}", shown(&self.subject), self.kind);
        html! {
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
                body {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        div.brand { (logo()) span { "imgctl" } span.kind { (self.kind) } }
                        h1 { bdi { (shown(&self.subject)) } }
                        dl.facts {
                            @for (name, value) in &self.facts {
                                div { dt { (name) } dd { bdi { (shown(value)) } } }
                            }
                        }
                    }
                    nav aria-label="Sections" {
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
                    }
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
                            ". The page needs no network."
                        }
                    }
                    script type="application/json" id="data" { (PreEscaped(&self.data)) }
                    script { (PreEscaped(&script)) }
                }
            }
        }
        .into_string()
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
