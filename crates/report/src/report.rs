//! A report of any kind, and the page that is made of it.

use crate::model::cluster::ClusterReport;
use crate::model::image::ImageReport;
use crate::model::plan::PlanReport;
use crate::model::run::RunReport;
use crate::views;

/// A report, from which a page is made.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    Image(&'a ImageReport),
    Plan(&'a PlanReport),
    Run(&'a RunReport),
    Cluster(&'a ClusterReport),
}

impl Report<'_> {
    /// Returns whether the report is about a cluster rather than about an image, which others may have
    /// as well.
    pub fn is_private(self) -> bool {
        !matches!(self, Self::Image(_))
    }

    /// Writes the page: one HTML file that needs nothing else.
    pub fn to_html(self) -> String {
        match self {
            Self::Image(report) => views::image::page(report).render(),
            Self::Plan(report) => views::plan::page(report).render(),
            Self::Run(report) => views::run::page(report).render(),
            Self::Cluster(report) => views::cluster::page(report).render(),
        }
    }
}
