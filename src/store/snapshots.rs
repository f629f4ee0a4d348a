//! Snapshots (one unpacked layer each, by diff-id) and the tables of contents beside them.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::image::Digest;
use crate::layer::Toc;
use crate::store::Store;

impl Store {
    /// The `fs` directory of a finished snapshot.
    pub(crate) fn snapshot(&self, _diff_id: &Digest) -> Option<PathBuf> {
        todo!()
    }

    /// Makes a snapshot: `fill` gets an empty directory; when it returns Ok the tree is synced
    /// once and renamed into place. A second process that wants the same one waits for the first.
    pub(crate) fn make_snapshot(
        &self,
        _diff_id: &Digest,
        _fill: &mut dyn FnMut(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        todo!()
    }

    /// A layer's table of contents: as stored, or made now by streaming the blob (which also
    /// verifies the diff-id).
    pub(crate) fn toc(&self, _blob: &Digest, _diff_id: &Digest) -> Result<Toc> {
        todo!()
    }

    /// Keeps a table of contents.
    pub(crate) fn put_toc(&self, _diff_id: &Digest, _toc: &Toc) -> Result<()> {
        todo!()
    }
}
