//! The list of a store's images, and the choice of an image to compare with.

use maud::html;

use crate::console::{Candidate, Links, link, plain};
use crate::model::image::ImageReport;
use crate::model::store::StoreReport;
use crate::page::{Page, Section};
use crate::text::{shown, time};
use crate::views::parts::{badge, code, digest, headings, nothing, table};
use imgctl_base::size::human;

pub(super) fn page<'a>(report: &'a StoreReport, links: Links<'_>) -> Page<'a> {
    let rows = html! {
        @for image in &report.images {
            tr {
                th scope="row" {
                    @let name = image.name.as_deref().unwrap_or("<none>");
                    @if image.problem.is_none() { (link(&links.image(&image.digest, None), name)) }
                    @else { (code(name)) }
                }
                td.number { (human(image.size)) }
                td { (shown(image.image_type.as_deref().unwrap_or_default())) }
                td.digest {
                    @for platform in &image.platforms {
                        a href=(links.image(&image.digest, Some(platform))) { bdi { (shown(platform)) } } " "
                    }
                }
                td.number { (image.layers) }
                td.digest { (image.created.as_deref().map(time).unwrap_or_default()) }
                td { (digest(&image.digest)) }
                td.text {
                    @if let Some(problem) = &image.problem { (badge("bad", "unusable")) " " bdi { (shown(problem)) } }
                }
            }
        }
    };
    let body = html! {
        @if report.images.is_empty() {
            (nothing("The store has no images. Get one with imgctl pull or imgctl build."))
        } @else {
            (table("Images", true, &headings(&["Image", "Size#", "Type", "Platforms", "Layers#", "Created", "Digest", "Attention"]), &rows))
        }
    };
    let sections = vec![Section::new("images", "Images", Some(report.images.len()), body)];
    plain(&report.about, "Console", "Store", Vec::new(), sections)
}

/// A form that opens the same page with a comparison.
pub(super) fn compare(
    report: &ImageReport,
    own: &str,
    others: &[Candidate],
    links: Links<'_>,
) -> Section {
    let chosen = report.comparison.as_ref();
    let body = html! {
        @if others.is_empty() { (nothing("There is no other image to compare with.")) } @else {
            form.controls method="get" action=(links.image(own, None)) {
                input type="hidden" name="platform" value=(report.image.platform);
                label {
                    "Older image"
                    select name="compare" {
                        @for other in others {
                            option value=(other.digest) selected[chosen.is_some_and(|one| one.name.as_ref() == Some(&other.name))] { (shown(&other.name)) }
                        }
                    }
                }
                button type="submit" { "Compare" }
                @if chosen.is_some() { a href=(links.image(own, Some(&report.image.platform))) { "Without comparison" } }
            }
        }
    };
    Section::new("compare", "Compare", None, body)
}
