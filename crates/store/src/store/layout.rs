//! Directories and marker files of a store: creation, version check, and cleanup after processes
//! and machines that stopped uncleanly.
//!
//! Must not know what the objects in the directories mean.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::store::Store;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{remove_tree, sync_directory};
use imgctl_base::fs::lock::Mode;
use imgctl_base::quote::quote;

/// Store format that this code reads and writes; a store with a higher version is rejected.
const VERSION: u32 = 1;
/// See image-spec, image-layout.md.
const OCI_LAYOUT: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";
const EMPTY_INDEX: &[u8] = b"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[]}";
/// All directories of a store, parents first.
const DIRECTORIES: [&str; 12] = [
    "blobs",
    "blobs/sha256",
    "ingest",
    "snapshots",
    "toc",
    "restarts",
    "cache",
    "cache/steps",
    "mounts",
    "referrers",
    "leases",
    "trash",
];
/// Marker: data was written without syncing since the machine booted.
const UNSYNCED: &str = "unsynced";
/// File with the boot ID of the store's last use.
const BOOT: &str = "boot";

impl Store {
    /// Creates missing parts and rejects a store with a newer version.
    pub(super) fn prepare_layout(&self) -> Result<()> {
        self.checked_layout().map_err(|error| match error.kind() {
            Kind::Denied => error.hint("choose a directory of your own: --root DIR or IMGCTL_ROOT"),
            _ => error,
        })
    }

    fn checked_layout(&self) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            check_owner(self.root())?;
            check_owner(self.layout())?;
        }
        let version = self.path("version");
        match std::fs::read_to_string(&version) {
            Ok(text) => check_version(&text, self.layout())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create_layout()?,
            Err(error) => {
                return Err(Error::io(format!("cannot read {}", version.display()), error));
            }
        }
        for name in DIRECTORIES {
            // A read-only store can still be read.
            match make_directory(&self.path(name)) {
                Err(error) if error.kind() == Kind::Denied => {}
                made => made?,
            }
        }
        Ok(())
    }

    fn create_layout(&self) -> Result<()> {
        std::fs::create_dir_all(self.root().parent().unwrap_or(self.root()))
            .path("create the directory above", self.root())?;
        make_directory(self.root())?;
        make_directory(self.layout())?;
        let _lock = self.lock(Mode::Exclusive)?;
        if !self.path("version").exists() && !self.path(UNSYNCED).exists() {
            // A new store contains nothing that an earlier boot could have torn.
            self.note_boot(&current_boot());
        }
        for name in DIRECTORIES {
            make_directory(&self.path(name))?;
        }
        let layout = self.path("oci-layout");
        if layout.exists() {
            check_oci_layout(&layout)?;
        } else {
            self.create_file("oci-layout", OCI_LAYOUT)?;
        }
        if !self.path("index.json").exists() {
            self.create_file("index.json", EMPTY_INDEX)?;
        }
        // Write the version last, so that an interrupted creation is resumed.
        self.create_file("version", format!("{VERSION}\n").as_bytes())?;
        if self.is_synced() {
            sync_directory(self.layout())?;
            sync_directory(self.root())?;
        }
        Ok(())
    }

    fn create_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut ingest = self.ingest()?;
        ingest.write_all(bytes).doing(|| format!("cannot write {name}"))?;
        self.publish(ingest, &self.path(name), 0o644)
    }

    /// Removes what dead processes left. Best effort: anything that cannot be removed now is
    /// garbage that the next `prune` reports.
    pub(super) fn recover(&self) {
        self.sweep_ingest();
        self.sweep_trash();
        let boot = current_boot();
        let last = std::fs::read(self.path(BOOT)).unwrap_or_default();
        if boot != last {
            if self.path(UNSYNCED).exists() {
                self.distrust_unsynced();
            }
            self.note_boot(&boot);
        }
    }

    fn note_boot(&self, boot: &[u8]) {
        if let Ok(mut file) = File::create(self.path(BOOT)) {
            let _ = file.write_all(boot);
        }
    }

    /// Deletes the contents of `trash/`.
    pub(super) fn sweep_trash(&self) {
        let Ok(entries) = std::fs::read_dir(self.path("trash")) else {
            return;
        };
        for entry in entries.flatten() {
            if let Err(error) = remove_tree(&entry.path()) {
                tracing::debug!("cannot delete {}: {error}", entry.path().display());
            }
        }
    }

    /// Records that data is about to be written without syncing.
    pub(super) fn mark_unsynced(&self) -> Result<()> {
        let path = self.path(UNSYNCED);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            // The marker must be durable to survive the power failure that it is for.
            Ok(file) => {
                file.sync_all().path("sync", &path)?;
                sync_directory(self.layout())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::io(format!("cannot create {}", path.display()), error)),
        }
    }

    /// Makes data from `--no-sync` commands durable.
    pub(super) fn sync_unsynced(&self) -> Result<()> {
        let path = self.path(UNSYNCED);
        if !path.exists() {
            return Ok(());
        }
        // Remove the marker first: later unsynced writes recreate it.
        std::fs::remove_file(&path).path("remove", &path)?;
        let directory = File::open(self.layout()).path("open", self.layout())?;
        rustix::fs::syncfs(&directory).path("sync the file system of", self.layout())
    }

    /// Recovers from a machine crash after unsynced writes: data written since the marker can be
    /// torn. Removes snapshots and tables, which can be recreated, and hashes blobs.
    fn distrust_unsynced(&self) {
        let since = std::fs::metadata(self.path(UNSYNCED)).and_then(|mark| mark.modified());
        tracing::warn!("the machine stopped after --no-sync commands; checking the store");
        for class in ["snapshots", "toc", "restarts"] {
            for entry in std::fs::read_dir(self.path(class)).into_iter().flatten().flatten() {
                let _ = self.move_to_trash(&entry.path());
            }
        }
        for digest in self.blob_digests().unwrap_or_default() {
            let path = self.blob_path(&digest);
            let written = std::fs::metadata(&path).and_then(|blob| blob.modified());
            let old = matches!((&since, &written), (Ok(since), Ok(written)) if written < since);
            if !old && !matches!(self.verify_blob(&digest), Ok(true)) {
                tracing::warn!("removing blob {digest}, which was not written completely");
                let _ = self.move_to_trash(&path);
            }
        }
        self.sweep_trash();
        let _ = std::fs::remove_file(self.path(UNSYNCED));
    }

    /// Moves a file or tree away immediately, so that its deletion can take longer.
    pub(super) fn move_to_trash(&self, path: &Path) -> Result<()> {
        let target = self.path("trash").join(unique_name());
        match std::fs::rename(path, &target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            moved => moved.path("move to the trash", path),
        }
    }
}

fn current_boot() -> Vec<u8> {
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Returns a unique name: the process ID and 64 random bits.
pub(super) fn unique_name() -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library has no other source of randomness; the keys differ with each call.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}.{random:016x}", std::process::id())
}

fn make_directory(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.path("create the directory", path),
    }
}

/// Refuses a directory of root's store in which another user could put another store: images have set-user-ID
/// programs and decide what root unpacks. A directory that is missing is fine.
fn check_owner(path: &Path) -> Result<()> {
    let facts = match std::fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(format!("cannot examine {}", path.display()), error)),
    };
    match changed_by(facts.uid(), facts.gid(), facts.mode()) {
        Some(who) => Err(Error::denied(format!(
            "{} is not used as root's store: {who} may change what is in it",
            path.display()
        ))
        .hint(format!(
            "make it root's (`chown root:root {0}`, `chmod go-w {0}`) if you trust what is in it",
            quote(&path.display().to_string())
        ))),
        None => Ok(()),
    }
}

/// Returns who besides root may change a directory with this owner, group and mode.
fn changed_by(user: u32, group: u32, mode: u32) -> Option<String> {
    // In a sticky directory, others can neither rename nor remove what is root's, as the store in it has to be.
    let is_sticky = mode & 0o1000 != 0;
    if user != 0 {
        Some(format!("user {user}, who owns it,"))
    } else if is_sticky {
        None
    } else if mode & 0o020 != 0 && group != 0 {
        Some(format!("group {group}"))
    } else if mode & 0o002 != 0 {
        Some("every user".to_owned())
    } else {
        None
    }
}

fn check_version(text: &str, layout: &Path) -> Result<()> {
    match text.trim().parse::<u32>() {
        Ok(version) if version <= VERSION => Ok(()),
        Ok(version) => Err(Error::failed(format!(
            "the store {} has format {version}; this imgctl knows formats up to {VERSION}",
            layout.display()
        ))
        .hint("use the newer imgctl that wrote it, or another --root")),
        Err(_) => {
            Err(Error::bad_content(format!("{}/version does not hold a number", layout.display())))
        }
    }
}

fn check_oci_layout(path: &Path) -> Result<()> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(4096).read_to_string(&mut text))
        .path("read", path)?;
    let version = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|value| value["imageLayoutVersion"].as_str().map(str::to_owned));
    if version.as_deref() != Some("1.0.0") {
        return Err(Error::bad_content(format!(
            "{} is not the marker file of an OCI image layout 1.0.0",
            path.display()
        )));
    }
    Ok(())
}
