//! Checks a Kubefile against the files of its context and base images in the store. Must not show
//! the findings.

use crate::build::checked::Checked;
use crate::build::context::ContextTree;
use crate::build::embedding;
use crate::build::file::{self, Source};
use crate::build::options::Options;
use imgctl_base::error::Result;
use imgctl_kubefile::ast::Kubefile;
use imgctl_kubefile::check::{self as lint, CheckOptions};
use imgctl_kubefile::diagnostic::Severity;
use imgctl_store::store::Store;

/// Checks the Kubefile of a build without building.
pub fn check(store: &Store, options: &Options) -> Result<Checked> {
    let (directory, source) = file::load(store, options)?;
    let kubefile = source.parse()?;
    let directory = directory.as_ref().filter(|_| options.embed.save);
    let context = file::context_tree(options, directory, &source)?;
    checked(store, options, context.as_ref(), &source, &kubefile)
}

/// Checks a Kubefile that has been read.
pub(super) fn checked(
    store: &Store,
    options: &Options,
    context: Option<&ContextTree>,
    source: &Source,
    kubefile: &Kubefile,
) -> Result<Checked> {
    let archives = match context.filter(|_| options.embed.save) {
        Some(context) => embedding::archives(context)?,
        None => Vec::new(),
    };
    let base_environment = |name: &str| {
        let image = store.image(name, None).ok()?;
        let names = image.config.config.env.iter();
        Some(names.filter_map(|pair| Some(pair.split_once('=')?.0.to_owned())).collect())
    };
    let check_options = CheckOptions {
        labels: options.labels.keys().cloned().collect(),
        base_environment: Some(&base_environment),
        archives,
    };
    let findings = lint::check(kubefile, &check_options);
    let is_bad = findings.iter().any(|finding| finding.severity == Severity::Error)
        || (kubefile.directives.check.error && !findings.is_empty());
    Ok(Checked {
        name: source.name.clone(),
        path: source.path.clone(),
        text: source.bytes.clone(),
        findings,
        fails: is_bad,
    })
}
