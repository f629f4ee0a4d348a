//! `build --check`: lint without building.

use crate::build::file;
use crate::build::options::Options;
use crate::error::Result;
use crate::kubefile::check::{self, CheckOptions};
use crate::kubefile::diagnostic::{self, Severity};
use crate::store::Store;

/// Lints the Kubefile; the rendered findings, and whether any of them fails the check: errors do,
/// warnings do if the file says `# check=error=true`.
pub(crate) fn check(store: &Store, options: &Options, colour: bool) -> Result<(String, bool)> {
    let (_context, source) = file::load(store, options)?;
    let kubefile = source.parse()?;
    let base_environment = |name: &str| {
        let image = store.image(name, None).ok()?;
        let names = image.config.config.env.iter();
        Some(
            names
                .filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()))
                .collect(),
        )
    };
    let check_options = CheckOptions {
        labels: options.labels.keys().cloned().collect(),
        base_environment: Some(&base_environment),
    };
    let found = check::check(&kubefile, &check_options);
    let is_bad = found
        .iter()
        .any(|finding| finding.severity == Severity::Error)
        || (kubefile.directives.check.error && !found.is_empty());
    Ok((
        diagnostic::render(&found, &source.name, &source.bytes, colour),
        is_bad,
    ))
}
