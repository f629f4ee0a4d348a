//! Reports of builds and checks for CI systems: SARIF, Code Quality, a summary in Markdown,
//! variables and results. Returns text.
//!
//! Must not know where the text goes, or the environment.

mod finding;
mod image;
mod markdown;
mod outputs;
mod quality;
mod sarif;
mod summary;
#[cfg(test)]
mod tests;

pub use finding::{Finding, findings_of_check, findings_of_places, severity_name};
pub use image::{Before, ImageFacts, LayerFacts, image_before, images_of_build};
pub use outputs::{dotenv, github_outputs, tekton_results};
pub use quality::code_quality;
pub use sarif::sarif_document;
pub use summary::{
    BuildSummary, against, against_json, short_summary, summary_of_build, summary_of_check,
    summary_of_failure,
};
