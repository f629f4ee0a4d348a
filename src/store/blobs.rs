//! Blobs: content under its digest. Written by anyone at any time without a lock.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::error::Result;
use crate::image::Digest;
use crate::store::Store;

/// A blob on its way in. Dropped uncommitted, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Ingest {
    _file: File,
}

impl Write for Ingest {
    fn write(&mut self, _buffer: &[u8]) -> io::Result<usize> {
        todo!()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A running process's claim on blobs that no name reaches yet; prune leaves them alone. Ends
/// with the value or with the process.
#[derive(Debug)]
pub(crate) struct Lease {}

impl Lease {
    /// Claims `digest` (of a blob or a diff-id's snapshot), whether it exists yet or not.
    pub(crate) fn hold(&self, _digest: &Digest) -> Result<()> {
        todo!()
    }
}

impl Store {
    /// Starts a lease.
    pub(crate) fn lease(&self) -> Result<Lease> {
        todo!()
    }

    /// The size of a blob that is here, in bytes.
    pub(crate) fn blob_size(&self, _digest: &Digest) -> Result<Option<u64>> {
        todo!()
    }

    /// Where the blob lies or would lie.
    pub(crate) fn blob_path(&self, _digest: &Digest) -> PathBuf {
        todo!()
    }

    /// Opens a blob; a missing one is an error that names it.
    pub(crate) fn open_blob(&self, _digest: &Digest) -> Result<File> {
        todo!()
    }

    /// Reads a small blob (manifest, config) and checks its digest; longer than `limit` bytes is refused.
    pub(crate) fn read_blob(&self, _digest: &Digest, _limit: u64) -> Result<Vec<u8>> {
        todo!()
    }

    /// Starts a new blob.
    pub(crate) fn ingest(&self) -> Result<Ingest> {
        todo!()
    }

    /// Puts a finished ingest under `digest`, which the caller has computed over exactly the
    /// bytes written. A blob that is already there wins.
    pub(crate) fn commit(&self, _ingest: Ingest, _digest: &Digest) -> Result<()> {
        todo!()
    }

    /// Stores small content and returns its digest.
    pub(crate) fn put_blob(&self, _bytes: &[u8]) -> Result<Digest> {
        todo!()
    }

    /// Copies a stream in, checking size and digest; nothing is visible unless both hold.
    pub(crate) fn import_blob(
        &self,
        _reader: &mut dyn Read,
        _digest: &Digest,
        _size: u64,
    ) -> Result<()> {
        todo!()
    }
}
