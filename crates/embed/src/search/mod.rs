//! Searches a build context for container images: lists, archives, manifests, charts and references
//! from the command line.
//!
//! Reads files, makes no connections. Must not depend on how the images are used.

pub mod charts;
mod collector;
mod lists;
mod manifest;
pub mod names;
mod yaml;

use serde_json::Value;

use crate::found::{ContextFiles, Found, FoundArchive, How, Place};
use crate::search::collector::Collector;
use imgctl_base::error::{Context, Error, Result};

/// File that lists references to leave out, one per line.
const IGNORE_FILE: &str = ".sealignore";
/// Maximum size of a list, manifest or values file, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Suffixes of the files in `manifests/` that are scanned.
const ENDINGS: [&str; 4] = [".yaml", ".yml", ".json", ".tmpl"];

/// Additional input of a search.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// `--image`, as given.
    pub images: Vec<String>,
    /// `--values`, in order: for one chart by name, or for all charts.
    pub values: Vec<(Option<String>, Value)>,
    /// The Kubernetes version that charts are rendered for (`v1.34.0`).
    pub kubernetes: String,
}

/// Finds all container images that a context names. A chart that cannot be rendered and a list
/// entry that is not an image name are errors that name the file and line.
pub fn search(files: &dyn ContextFiles, options: &SearchOptions) -> Result<Found> {
    let mut found = Collector::new(&text_of_ignore_file(files)?);
    for file in files.list("images/shim")? {
        lists::images(&text(files, &file)?, &file, &mut found)?;
    }
    list_archives(files, &mut found)?;
    for file in files.list("manifests")? {
        let is_manifest = ENDINGS.iter().any(|end| file.ends_with(end));
        if !is_manifest || files.names_nothing(&file) {
            continue;
        }
        if !manifest::scan(&lossy(files, &file)?, &file, &mut found) {
            files.remember_nothing(&file);
        }
    }
    charts::search(files, options, &mut found)?;
    for name in &options.images {
        let reference = names::normalise(name).context(|| "cannot use --image".to_owned())?;
        let place = Place { file: "--image".to_owned(), line: 0, how: How::Flag };
        found.wanted(reference, place);
    }
    Ok(found.finish())
}

/// Reads a file of values for charts as Helm does.
pub fn values(text: &str) -> Result<Value> {
    crate::chart::values_of(text).map(Value::Object)
}

/// Returns only the archives that a context lists.
pub fn archives(files: &dyn ContextFiles) -> Result<Vec<FoundArchive>> {
    let mut found = Collector::new("");
    list_archives(files, &mut found)?;
    Ok(found.finish().archives)
}

fn list_archives(files: &dyn ContextFiles, found: &mut Collector) -> Result<()> {
    for file in files.list("images/skopeo")? {
        if file == "images/skopeo/tar.txt" {
            lists::archives(&text(files, &file)?, &file, found)?;
        }
    }
    Ok(())
}

fn text_of_ignore_file(files: &dyn ContextFiles) -> Result<String> {
    match files.read(IGNORE_FILE, MAX_FILE) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == imgctl_base::error::Kind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn text(files: &dyn ContextFiles, file: &str) -> Result<String> {
    String::from_utf8(files.read(file, MAX_FILE)?)
        .map_err(|_| Error::usage(format!("{file} is not UTF-8 text")))
}

/// Returns the text of a manifest; bytes that are not UTF-8 cannot be part of an image name.
fn lossy(files: &dyn ContextFiles, file: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&files.read(file, MAX_FILE)?).into_owned())
}

#[cfg(test)]
pub(super) mod tests;
