//! Pages of the console: those of the reports in its frame, and its own lists. Links lead to other pages of
//! the console and nowhere else.

mod files;
mod live;
mod message;
mod recorded;
mod store;
#[cfg(test)]
mod tests;

use maud::{Markup, html};

use crate::model::files::FilesReport;
use crate::model::image::ImageReport;
use crate::model::plan::PlanReport;
use crate::model::recorded::{ControllerReport, RecordedReport};
use crate::model::run::RunReport;
use crate::model::store::StoreReport;
use crate::page::{Frame, Page, Place, Rendered, Step};
use crate::views;

pub use crate::links::{Links, encode};
pub use message::Message;

/// Brings a page up to date.
const REFRESH: &str = include_str!("../assets/refresh.js");

/// An image to compare with.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub digest: String,
    /// Name, or digest.
    pub name: String,
}

/// The images of the store, which are read after `at`, in milliseconds since 1970.
pub fn store(report: &StoreReport, at: u64, base: &str) -> Rendered {
    let frame =
        Frame::new(base, Place::Store, Vec::new()).changing(Links(base).changes_of_store(at));
    store::page(report, Links(base)).render_in(&frame)
}

/// An image. `digest` is that by which the store lists it, and `others` what it may be compared with.
pub fn image(report: &ImageReport, digest: &str, others: &[Candidate], base: &str) -> Rendered {
    let links = Links(base);
    let platform = encode(report.image.platform.as_bytes());
    let older =
        report.comparison.as_ref().map(|one| format!("&compare={}", encode(one.digest.as_bytes())));
    let frame = Frame {
        json: format!("?platform={platform}{}&format=json", older.unwrap_or_default()),
        files: Some(links.files(digest, &report.image.platform)),
        has_form: true,
        ..Frame::new(base, Place::Store, vec![Step::new("Store", links.store())])
    };
    let mut page = views::image::page(report);
    page.sections.insert(1, store::compare(report, digest, others, links));
    page.render_in(&frame)
}

/// A folder or a file of an image.
pub fn files(report: &FilesReport, base: &str) -> Rendered {
    let links = Links(base);
    let image = links.image(&report.digest, Some(&report.platform));
    let trail = vec![Step::new("Store", links.store()), Step::new(&report.image, image)];
    files::page(report, links).render_in(&Frame::new(base, Place::Store, trail))
}

/// The clusters of the controller.
pub fn clusters(report: &ControllerReport, at: u64, base: &str) -> Rendered {
    let frame =
        Frame::new(base, Place::Clusters, Vec::new()).changing(Links(base).changes(None, at));
    recorded::clusters(report, Links(base)).render_in(&frame)
}

/// A cluster.
pub fn cluster(report: &RecordedReport, at: u64, base: &str) -> Rendered {
    let links = Links(base);
    let trail = vec![Step::new("Clusters", links.clusters())];
    let events = links.changes(Some(&report.cluster.name), at);
    let frame = Frame::new(base, Place::Clusters, trail).changing(events);
    recorded::cluster(report, links).render_in(&frame)
}

/// All runs.
pub fn runs(report: &ControllerReport, at: u64, base: &str) -> Rendered {
    let frame = Frame::new(base, Place::Runs, Vec::new()).changing(Links(base).changes(None, at));
    recorded::runs(report, Links(base)).render_in(&frame)
}

/// A run of `cluster`, whose journal was read up to byte `at`; while it is running, the page follows it.
pub fn run(report: &RunReport, cluster: &str, at: u64, base: &str) -> Rendered {
    let links = Links(base);
    let mut trail = vec![Step::new("Runs", links.runs())];
    // Runs through a kubeconfig have no page of a cluster.
    if !cluster.starts_with('.') {
        trail.push(Step::new(cluster, links.cluster(cluster)));
    }
    let mut frame = Frame::new(base, Place::Runs, trail);
    let mut page = views::run::page(report);
    if report.run.state == "running" {
        let events = links.events(cluster, &report.run.id, at);
        page.sections.insert(0, live::section(report, &events));
        page.script = live::SCRIPT;
        page.data = live::data(report);
        frame.is_live = true;
    }
    page.render_in(&frame)
}

/// All plans.
pub fn plans(report: &ControllerReport, at: u64, base: &str) -> Rendered {
    let frame = Frame::new(base, Place::Plans, Vec::new()).changing(Links(base).changes(None, at));
    recorded::plans(report, Links(base)).render_in(&frame)
}

/// A plan.
pub fn plan(report: &PlanReport, base: &str) -> Rendered {
    let trail = vec![Step::new("Plans", Links(base).plans())];
    views::plan::page(report).render_in(&Frame::new(base, Place::Plans, trail))
}

/// Foreign text as a link.
fn link(href: &str, text: &str) -> Markup {
    html! { a href=(href) { (views::parts::code(text)) } }
}

/// A page whose data no script reads; the script brings lists up to date.
fn plain<'a>(
    about: &'a crate::model::About,
    kind: &'static str,
    subject: &str,
    facts: Vec<(&'static str, String)>,
    sections: Vec<crate::page::Section>,
) -> Page<'a> {
    Page {
        about,
        kind,
        subject: subject.to_owned(),
        facts,
        sections,
        script: REFRESH,
        data: "null".to_owned(),
    }
}
