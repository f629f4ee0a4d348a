//! From a Kubefile to an image: plan, steps, cache, output.
//!
//! Must not print or read the environment: what it needs comes in [`Options`], what it has to
//! say goes to a `Reporter`.

pub(crate) mod options;

pub(crate) use options::{Built, Format, Options};

use crate::error::Result;
use crate::progress::Reporter;
use crate::store::Store;

/// Builds as `options` say and names the result.
pub(crate) fn build(_store: &Store, _options: &Options, _reporter: &dyn Reporter) -> Result<Built> {
    todo!()
}

/// Lints the Kubefile without building; the rendered findings, and whether any is an error.
pub(crate) fn check(_options: &Options, _colour: bool) -> Result<(String, bool)> {
    todo!()
}
