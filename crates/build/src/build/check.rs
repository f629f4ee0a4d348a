//! `build --check`: lint without building.

use crate::build::context::ContextTree;
use crate::build::embedding;
use crate::build::file;
use crate::build::options::Options;
use imgctl_base::error::Result;
use imgctl_base::fs::root::Root;
use imgctl_kubefile::check::{self, CheckOptions};
use imgctl_kubefile::diagnostic::{self, Severity};
use imgctl_store::store::Store;

/// Lints the Kubefile. Returns the rendered findings, and whether the check fails: errors always
/// fail it, warnings only if the file contains `# check=error=true`.
pub fn check(store: &Store, options: &Options, colour: bool) -> Result<(String, bool)> {
    let (context, source) = file::load(store, options)?;
    let kubefile = source.parse()?;
    let archives = match &context {
        Some(directory) if options.embed.save => {
            let rules = file::ignore_rules(options, &directory.path, &source)?;
            let root = Root::open(&directory.path)?;
            let tree = ContextTree::new("the build context".to_owned(), root, rules);
            embedding::archives(&tree)?
        }
        _ => Vec::new(),
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
    let found = check::check(&kubefile, &check_options);
    let is_bad = found.iter().any(|finding| finding.severity == Severity::Error)
        || (kubefile.directives.check.error && !found.is_empty());
    Ok((diagnostic::render(&found, &source.name, &source.bytes, colour), is_bad))
}
