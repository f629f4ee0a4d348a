//! Finds the container images that a directory names, without a build.

use std::path::Path;

use crate::build::context::ContextTree;
use crate::build::embedding::files::Files;
use crate::build::file;
use crate::embed::Found;
use crate::embed::search::{self, SearchOptions};
use imgctl_base::error::Result;
use imgctl_base::fs::root::Root;

/// Searches `directory` as a build with that context would, without resolving anything.
pub fn scan(directory: &Path, options: &SearchOptions) -> Result<Found> {
    let root = Root::open(directory)?;
    let rules = file::rules_of_directory(directory)?;
    let context = ContextTree::new(directory.display().to_string(), root, rules);
    search::search(&Files(&context), options)
}
