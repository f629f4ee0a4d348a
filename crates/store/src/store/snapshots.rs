//! Snapshots (one unpacked layer each, by diff ID) and their tables of contents.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::layer::{Expected, Table, Toc, scan};
use crate::store::Store;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::atomic::remove_tree;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;

/// Suffix of a snapshot that is being created.
pub(super) const PART: &str = ".part";
/// Suffix of the lock of a snapshot that is being created.
pub(super) const LOCK: &str = ".lock";

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
        match self.stored_toc(diff_id) {
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
        let toc = scan(file, expected, self.limits(), &mut |_, _, _| Ok(()))
            .context(|| format!("layer {blob} is damaged"))?
            .toc;
        self.put_toc(diff_id, &toc)?;
        Ok(toc)
    }

    /// Whether a table is stored, sound or not.
    pub(crate) fn has_toc(&self, diff_id: &Digest) -> bool {
        self.toc_path(diff_id).exists()
    }

    /// Returns the stored table; `None` if there is none.
    pub(super) fn stored_toc(&self, diff_id: &Digest) -> Result<Option<Toc>> {
        let path = self.toc_path(diff_id);
        match File::open(&path) {
            Ok(file) => Toc::read_from(&mut BufReader::new(file)).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("cannot open {}", path.display()), error)),
        }
    }

    /// Stores a table of contents.
    pub fn put_toc(&self, diff_id: &Digest, toc: &impl Table) -> Result<()> {
        self.hold([diff_id])?;
        let mut ingest = self.ingest()?;
        let mut writer = io::BufWriter::with_capacity(256 << 10, &mut ingest);
        toc.write_to(&mut writer)?;
        io::Write::flush(&mut writer).doing(|| format!("cannot write the table of {diff_id}"))?;
        drop(writer);
        // Not synced: the table has a checksum and can be recreated.
        self.publish_unsynced(ingest, &self.toc_path(diff_id))
    }

    pub(super) fn toc_path(&self, diff_id: &Digest) -> PathBuf {
        self.path("toc").join(diff_id.hex())
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
