//! The build context as seen by the search for images.

use std::io::Read as _;

use crate::build::context::ContextTree;
use crate::build::items::{Node, SourceTree as _};
use crate::embed::ContextFiles;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_store::layer::{EntryKind, LayerPath};

/// A context's files, filtered by its ignore rules. Files that are read by name (`.sealignore`,
/// `imgctl.lock`) are visible whatever the rules say.
pub(super) struct Files<'a>(pub(super) &'a ContextTree);

impl ContextFiles for Files<'_> {
    fn list(&self, directory: &str) -> Result<Vec<String>> {
        let path = LayerPath::parse(directory.as_bytes())?;
        if !path.is_root() && self.0.node(&path)? != Some(Node::Directory) {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        self.0.each_below(&path, &mut |item| {
            let path = &item.entry.path;
            let is_file = match &item.entry.kind {
                EntryKind::File { .. } => true,
                // A symlink to a file of the context counts as a file.
                EntryKind::Symlink { .. } => self.0.open(path).is_ok(),
                _ => false,
            };
            match std::str::from_utf8(path.as_bytes()) {
                Ok(path) if is_file => files.push(path.to_owned()),
                Err(_) if is_file => tracing::debug!("skipping {path}: its name is not UTF-8"),
                _ => {}
            }
            Ok(())
        })?;
        files.sort_unstable();
        Ok(files)
    }

    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        let file = self.0.open(&LayerPath::parse(path.as_bytes())?)?;
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .path("read", self.0.path().join(path))?;
        if bytes.len() as u64 > limit {
            return Err(Error::new(
                Kind::BadContent,
                format!("{path} of the build context has more than {limit} bytes"),
            ));
        }
        Ok(bytes)
    }
}
