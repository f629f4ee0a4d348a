//! `--images-report`: lists what a build would embed, without building.

use crate::build::context::ContextTree;
use crate::build::embedding::{Question, lock_file, resolver};
use crate::build::file;
use crate::build::options::Options;
use crate::embed::resolve::{ResolvedImage, Wanted};
use crate::embed::{FoundImage, Skipped};
use imgctl_base::error::Result;
use imgctl_base::fs::root::Root;
use imgctl_base::image::Platform;
use imgctl_base::progress::Reporter;
use imgctl_store::store::Store;

/// All images found and skipped.
#[derive(Debug)]
pub struct Report {
    pub images: Vec<ReportedImage>,
    pub skipped: Vec<Skipped>,
}

/// One image of the report.
#[derive(Debug)]
pub struct ReportedImage {
    pub found: FoundImage,
    /// The image's repository in the embedded registry.
    pub repository: String,
    /// The resolved image, or why it could not be resolved.
    pub resolved: Result<ResolvedImage>,
}

/// Searches and resolves as a build would. An image that cannot be resolved appears in the report
/// and is not an error.
pub fn report(store: &Store, options: &Options, reporter: &dyn Reporter) -> Result<Report> {
    let (directory, source) = file::load(store, options)?;
    let context = match &directory {
        Some(directory) => {
            let rules = file::ignore_rules(options, &directory.path, &source)?;
            let root = Root::open(&directory.path)?;
            let name = "the build context".to_owned();
            Some(ContextTree::new(name, root, rules))
        }
        None => None,
    };
    let own = [Platform::host()];
    let platforms: &[Platform] =
        if options.platforms.is_empty() { &own } else { &options.platforms };
    let question = Question { store, options, context: context.as_ref(), platforms, reporter };
    let found = question.search()?;
    let lock = lock_file::read(options, context.as_ref(), &found)?;
    let wanted = question.wanted(&found)?;
    let resolved = resolver(&question, lock.in_use()).try_all(&wanted);
    let reported = |(wanted, resolved): (Wanted, Result<ResolvedImage>)| ReportedImage {
        repository: options.embed.naming.repository(&wanted.reference),
        found: FoundImage { reference: wanted.reference, places: wanted.places },
        resolved,
    };
    Ok(Report {
        images: wanted.into_iter().zip(resolved).map(reported).collect(),
        skipped: found.skipped,
    })
}
