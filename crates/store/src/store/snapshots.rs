//! Snapshots (one unpacked layer each, by diff ID), their tables of contents, and the restart points of
//! the blobs that they are compressed to.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::store::Store;
use crate::store::scrub::is_out_of_reach;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::atomic::remove_tree;
use imgctl_base::fs::directory::list;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;
use imgctl_layer::scan::scan_file;
use imgctl_layer::toc::RestartPoint;
use imgctl_layer::{Expected, Table, Toc};

/// Suffix of a snapshot that is being created.
pub(super) const PART: &str = ".part";
/// Suffix of the lock of a snapshot that is being created.
pub(super) const LOCK: &str = ".lock";
/// Directory of restart points, one file for each pair of a blob and a diff ID.
pub(super) const RESTARTS: &str = "restarts";

impl Store {
    /// Returns the `fs` directory of a finished snapshot; it stays while this store value lives.
    pub fn snapshot(&self, diff_id: &Digest) -> Option<PathBuf> {
        if let Err(error) = self.hold_for_reading([diff_id]) {
            tracing::debug!("cannot claim snapshot {diff_id}: {error}");
        }
        let fs = self.snapshot_path(diff_id).join("fs");
        fs.is_dir().then_some(fs)
    }

    /// Creates a snapshot: `fill` gets an empty directory; when it succeeds, the tree is synced
    /// once and renamed into place. A second process that needs the same snapshot waits for the
    /// first.
    pub(crate) fn make_snapshot(
        &self,
        diff_id: &Digest,
        fill: &mut dyn FnMut(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        self.hold([diff_id])?;
        let place = self.snapshot_path(diff_id);
        let lock_path = with_ending(&place, LOCK);
        let _lock = Lock::acquire(&lock_path, Mode::Exclusive, &mut || {
            tracing::info!("waiting for another imgctl process that unpacks layer {diff_id}");
        })?;
        // The lock file can be removed while the lock is held; a waiting process notices the
        // removal.
        let _lock_file = Remove(&lock_path);
        if place.join("fs").is_dir() {
            return Ok(place.join("fs"));
        }
        let part = with_ending(&place, PART);
        remove_tree(&part)?;
        let made = self.fill_snapshot(diff_id, &part, fill);
        if made.is_err() {
            // Report the first error.
            let _ = remove_tree(&part);
        }
        made?;
        std::fs::rename(&part, &place).path("create", &place)?;
        Ok(place.join("fs"))
    }

    fn fill_snapshot(
        &self,
        diff_id: &Digest,
        part: &Path,
        fill: &mut dyn FnMut(&Path) -> Result<()>,
    ) -> Result<()> {
        let fs = part.join("fs");
        std::fs::create_dir(part).path("create the directory", part)?;
        std::fs::create_dir(&fs).path("create the directory", &fs)?;
        fill(&fs)?;
        let meta = serde_json::json!({ "version": 1, "diffId": diff_id });
        let path = part.join("meta.json");
        std::fs::write(&path, meta.to_string()).path("write", &path)?;
        if self.is_synced() {
            let directory = File::open(part).path("open", part)?;
            rustix::fs::syncfs(&directory).path("sync the file system of", part)
        } else {
            self.mark_unsynced()
        }
    }

    pub(super) fn snapshot_path(&self, diff_id: &Digest) -> PathBuf {
        self.path("snapshots").join(diff_id.hex())
    }

    /// Returns a layer's table of contents: the stored one, or a new one from streaming the blob
    /// (which also verifies the diff ID).
    pub fn toc(&self, blob: &Digest, diff_id: &Digest) -> Result<Toc> {
        let stored = self.stored_toc(diff_id).and_then(|toc| {
            let restarts =
                toc.is_some().then(|| self.stored_restarts(blob, diff_id)).transpose()?;
            Ok(toc.zip(restarts.flatten()).map(|(toc, restarts)| Toc { restarts, ..toc }))
        });
        match stored {
            Ok(Some(toc)) => return Ok(toc),
            Ok(None) => {}
            Err(error) => tracing::debug!("rebuilding the table of layer {diff_id}: {error}"),
        }
        self.scan_layer(blob, diff_id)
    }

    /// Reads a complete layer, verifies digest and diff ID, and stores its table of contents.
    pub fn scan_layer(&self, blob: &Digest, diff_id: &Digest) -> Result<Toc> {
        let expected = Expected { digest: Some(blob), size: None, diff_id: Some(diff_id) };
        let file = self.open_blob(blob)?;
        let toc = scan_file(file, expected, self.limits())
            .context(|| format!("layer {blob} is damaged"))?
            .toc;
        self.put_toc(blob, diff_id, &toc)?;
        Ok(toc)
    }

    /// Whether a table is stored, sound or not.
    pub(crate) fn has_toc(&self, blob: &Digest, diff_id: &Digest) -> bool {
        let has_restarts = blob == diff_id || self.restarts_path(blob, diff_id).exists();
        has_restarts && self.toc_path(diff_id).exists()
    }

    /// Returns the stored table, without restart points; `None` if there is none.
    pub(super) fn stored_toc(&self, diff_id: &Digest) -> Result<Option<Toc>> {
        read_table(&self.toc_path(diff_id))
    }

    /// Returns the restart points of one of the blobs that a layer is compressed to; `None` if it has
    /// not been read.
    fn stored_restarts(
        &self,
        blob: &Digest,
        diff_id: &Digest,
    ) -> Result<Option<Vec<RestartPoint>>> {
        if blob == diff_id {
            return Ok(Some(Vec::new()));
        }
        let table = read_table(&self.restarts_path(blob, diff_id))?;
        Ok(table.map(|table| table.restarts))
    }

    /// Stores a table of contents, and its restart points for that blob alone: the same layer may be
    /// here in several compressions.
    pub fn put_toc(&self, blob: &Digest, diff_id: &Digest, toc: &impl Table) -> Result<()> {
        self.hold([blob, diff_id])?;
        if blob != diff_id {
            let path = self.restarts_path(blob, diff_id);
            self.put_table(&Toc::default(), toc.restarts(), &path)?;
        }
        self.put_table(toc, &[], &self.toc_path(diff_id))
    }

    fn put_table(&self, table: &impl Table, restarts: &[RestartPoint], path: &Path) -> Result<()> {
        let mut ingest = self.ingest()?;
        let mut writer = io::BufWriter::with_capacity(256 << 10, &mut ingest);
        table.write_to(restarts, &mut writer)?;
        io::Write::flush(&mut writer).path("write", path)?;
        drop(writer);
        // Not synced: the table has a checksum and can be recreated.
        self.publish_unsynced(ingest, path)
    }

    pub(super) fn toc_path(&self, diff_id: &Digest) -> PathBuf {
        self.path("toc").join(diff_id.hex())
    }

    /// The name says which blob and which tar belong together.
    fn restarts_path(&self, blob: &Digest, diff_id: &Digest) -> PathBuf {
        self.path(RESTARTS).join(format!("{}-{}", blob.hex(), diff_id.hex()))
    }

    /// Removes torn restart points: they are read again with their blob.
    pub(super) fn remove_torn_restarts(&self) -> Result<()> {
        for path in list(&self.path(RESTARTS))? {
            if let Err(error) = read_table(&path) {
                tracing::debug!("removing restart points: {error}");
                match std::fs::remove_file(&path) {
                    Err(error) if is_out_of_reach(&error) => {}
                    removed => removed.path("remove", &path)?,
                }
            }
        }
        Ok(())
    }
}

fn read_table(path: &Path) -> Result<Option<Toc>> {
    match File::open(path) {
        Ok(file) => Toc::read_from(&mut BufReader::new(file)).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("cannot open {}", path.display()), error)),
    }
}

/// Returns `path` with `ending` appended to its name.
fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Removes a file at the end of a scope.
struct Remove<'a>(&'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}
