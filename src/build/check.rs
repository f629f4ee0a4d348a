//! `build --check`: lint without building.

use crate::build::options::Options;
use crate::error::Result;
use crate::store::Store;

/// Lints the Kubefile; the rendered findings, and whether any of them fails the check.
pub(crate) fn check(_store: &Store, _options: &Options, _colour: bool) -> Result<(String, bool)> {
    todo!()
}
