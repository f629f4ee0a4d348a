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
use imgctl_store::store::Store;

/// Checks the Kubefile of a build without building.
pub fn check(store: &Store, options: &Options) -> Result<Checked> {
    let (directory, source) = file::load(store, options)?;
    let (kubefile, mistakes) = source.parse_leniently(options)?;
    let context = file::context_tree(options, directory.as_ref(), &source)?;
    let mut checked = checked(store, options, context.as_ref(), &source, &kubefile)?;
    if let Some(first) = mistakes.first() {
        // Behind a mistake, findings would be guesses.
        let line = first.span.line;
        checked.findings.retain(|finding| finding.span.line < line);
        checked.findings.extend(mistakes);
        checked.fails = true;
    }
    Ok(checked)
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
    let is_ignored = |path: &str| context.is_some_and(|context| context.hides(path));
    let check_options = CheckOptions {
        labels: options.labels.keys().cloned().collect(),
        base_environment: Some(&base_environment),
        archives,
        is_ignored: Some(&is_ignored),
    };
    let findings = lint::check(kubefile, &check_options);
    let fails = lint::fails(&kubefile.directives.check, &findings);
    Ok(Checked {
        name: source.name.clone(),
        path: source.path.clone(),
        text: source.bytes.clone(),
        findings,
        fails,
    })
}
