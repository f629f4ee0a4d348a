//! Verification of the whole store: every blob against its digest, every name down to its layers,
//! layers against their diff IDs, and snapshots against their layers. Only these can be damaged;
//! damaged tables of contents are recreated.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::store::images::is_platform;
use crate::store::layout::unique_name;
use crate::store::reachable::is_damage;
use crate::store::{Named, Store};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::fs::directory::list;
use imgctl_base::fs::lock::Mode;
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Found, Visit, walk};
use imgctl_base::image::{Digest, Document};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_layer::tree::Tree;
use imgctl_layer::whiteout::is_overlay_whiteout;
use imgctl_layer::{Entry, EntryKind, LayerPath, Toc};

/// Number of blobs to hash at the same time.
const WORKERS: usize = 2;
/// Directory that a repair moves damaged objects to; `prune` deletes them.
pub(super) const DAMAGED: &str = "damaged";

/// Depth of the verification.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubOptions {
    /// Decompress every layer and compare its diff ID.
    pub diff_ids: bool,
    /// Read every file of every snapshot.
    pub deep: bool,
    /// Move damaged blobs and snapshots away, so that they can be recreated or loaded again.
    pub repair: bool,
}

/// A problem in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Subject such as `blob sha256:…`, `image localhost/x:v1`, `snapshot sha256:…`.
    pub subject: String,
    pub detail: String,
    /// Whether a repair has moved it away.
    pub repaired: bool,
}

/// Result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    pub blobs: u64,
    /// Total size of all blobs, in bytes.
    pub bytes: u64,
    /// Number of named and unnamed images.
    pub images: u64,
    pub snapshots: u64,
    /// Number of snapshots that cannot be verified, because their layers are missing.
    pub unchecked: u64,
    pub problems: Vec<Problem>,
}

/// The blobs of layers by diff ID: one layer may be here in several compressions.
type Layers = BTreeMap<Digest, BTreeSet<Digest>>;

impl Store {
    /// Verifies the store. Finding problems is a result, not an error.
    pub fn scrub(&self, options: &ScrubOptions, reporter: &dyn Reporter) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        self.scrub_blobs(options, reporter, &mut report)?;
        let layers = self.scrub_images(&mut report)?;
        if options.diff_ids {
            self.scrub_diff_ids(&layers, reporter, &mut report)?;
        }
        self.remake_tables(&layers)?;
        self.scrub_snapshots(options, &layers, reporter, &mut report)?;
        Ok(report)
    }

    fn scrub_blobs(
        &self,
        options: &ScrubOptions,
        reporter: &dyn Reporter,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let mut blobs = Vec::new();
        for digest in self.blob_digests()? {
            if let Some(size) = self.blob_size(&digest)? {
                blobs.push((size, digest));
            }
        }
        report.blobs = blobs.len() as u64;
        report.bytes = blobs.iter().map(|(size, _)| size).sum();
        let task = reporter.start("verifying blobs", Unit::Bytes, Some(report.bytes));
        // Take the largest first, so that both workers finish at about the same time.
        blobs.sort();
        let bad = self.hash_all(&Mutex::new(blobs), &*task)?;
        for digest in bad {
            let detail = "its content has another digest".to_owned();
            let path = self.blob_path(&digest);
            self.found(options, report, format!("blob {digest}"), detail, &path)?;
        }
        Ok(())
    }

    fn hash_all(&self, blobs: &Mutex<Vec<(u64, Digest)>>, task: &dyn Task) -> Result<Vec<Digest>> {
        let work = || {
            let mut bad = Vec::new();
            loop {
                let next = blobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let Some((size, digest)) = next else {
                    return Ok(bad);
                };
                match self.verify_blob(&digest) {
                    Ok(true) => {}
                    Ok(false) => bad.push(digest),
                    // The blob was pruned in the meantime.
                    Err(error) if error.kind() == Kind::NotFound => {}
                    Err(error) => return Err(error),
                }
                task.advance(size);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
            let mut all = BTreeSet::new();
            for worker in workers {
                let failed = || Error::failed("a thread that verifies blobs has failed");
                all.extend(worker.join().map_err(|_| failed())??);
            }
            Ok(all.into_iter().collect())
        })
    }

    /// Follows every name; returns the layers found by diff ID.
    fn scrub_images(&self, report: &mut ScrubReport) -> Result<Layers> {
        let mut layers = Layers::new();
        let mut seen = BTreeSet::new();
        for named in self.names()? {
            if !seen.insert(named.descriptor.digest.clone()) {
                continue;
            }
            report.images += 1;
            let name = named.descriptor.ref_name().map(str::to_owned);
            let name = name.unwrap_or_else(|| named.descriptor.digest.to_string());
            let mut problems = BTreeSet::new();
            self.scrub_image(&named, &mut layers, &mut problems)?;
            report.problems.extend(problems.into_iter().map(|detail| Problem {
                subject: format!("image {name}"),
                detail,
                repaired: false,
            }));
        }
        Ok(layers)
    }

    fn scrub_image(
        &self,
        named: &Named,
        layers: &mut Layers,
        problems: &mut BTreeSet<String>,
    ) -> Result<()> {
        let mut pending = vec![named.descriptor.clone()];
        let mut seen = BTreeSet::new();
        while let Some(descriptor) = pending.pop() {
            if !seen.insert(descriptor.digest.clone()) {
                continue;
            }
            let manifest = match self.document(&descriptor) {
                Ok(Document::Manifest(manifest)) => manifest,
                Ok(Document::Index(index)) => {
                    for child in index.manifests {
                        // Platforms that were never loaded do not count as missing.
                        if is_platform(&child) && self.blob_size(&child.digest)?.is_some() {
                            pending.push(child);
                        }
                    }
                    continue;
                }
                Err(error) => {
                    collect_damage(Err::<(), _>(error), problems)?;
                    continue;
                }
            };
            // Layers that stay in a registry do not count as missing.
            let mut remote = BTreeSet::new();
            for part in manifest.layers.iter().filter(|part| part.urls.is_empty()) {
                if named.has_remote_layers() && self.blob_size(&part.digest)?.is_none() {
                    remote.insert(part.digest.clone());
                    continue;
                }
                collect_damage(self.check_part(part), problems)?;
            }
            let read = self.image_of(descriptor, manifest);
            if let Some(image) = collect_damage(read, problems)? {
                let here = image.layers().filter(|(layer, _)| !remote.contains(&layer.digest));
                for (layer, id) in here {
                    layers.entry(id.clone()).or_default().insert(layer.digest.clone());
                }
            }
        }
        Ok(())
    }

    fn scrub_diff_ids(
        &self,
        layers: &Layers,
        reporter: &dyn Reporter,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let blobs =
            || layers.iter().flat_map(|(id, blobs)| blobs.iter().map(move |blob| (id, blob)));
        let total = Some(blobs().count() as u64);
        let task = reporter.start("verifying layers", Unit::Items, total);
        for (diff_id, blob) in blobs() {
            match self.scan_layer(blob, diff_id) {
                Ok(_) => {}
                Err(error) if is_damage(&error) => report.problems.push(Problem {
                    subject: format!("layer {blob}"),
                    detail: error.to_string(),
                    repaired: false,
                }),
                Err(error) => return Err(error),
            }
            task.advance(1);
        }
        Ok(())
    }

    /// Recreates torn tables of contents: they are not synced, so a power failure can tear them.
    /// That is not damage. They are recreated from their layers, or removed if the layer is
    /// missing.
    fn remake_tables(&self, layers: &Layers) -> Result<()> {
        for path in list(&self.path("toc"))? {
            let Some(diff_id) = diff_id_of(&path) else {
                continue;
            };
            let Err(error) = self.stored_toc(&diff_id) else {
                continue;
            };
            tracing::debug!("rebuilding the table of contents of layer {diff_id}: {error}");
            let blob = layers.get(&diff_id).and_then(BTreeSet::first);
            // Problems of the layer itself have already been reported.
            if blob.is_some_and(|blob| self.toc(blob, &diff_id).is_ok())
                && self.stored_toc(&diff_id).is_ok()
            {
                continue;
            }
            match std::fs::remove_file(&path) {
                Err(error) if is_out_of_reach(&error) => {}
                removed => removed.path("remove", &path)?,
            }
        }
        self.remove_torn_restarts()
    }

    fn scrub_snapshots(
        &self,
        options: &ScrubOptions,
        layers: &Layers,
        reporter: &dyn Reporter,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let snapshots = list(&self.path("snapshots"))?;
        let total = Some(snapshots.len() as u64);
        let task = reporter.start("verifying snapshots", Unit::Items, total);
        for path in snapshots {
            task.advance(1);
            let Some(diff_id) = diff_id_of(&path) else {
                continue;
            };
            report.snapshots += 1;
            let table =
                match (self.stored_toc(&diff_id), layers.get(&diff_id).and_then(BTreeSet::first)) {
                    (Ok(Some(table)), _) => Ok(table),
                    (_, Some(blob)) => self.scan_layer(blob, &diff_id),
                    (_, None) => {
                        report.unchecked += 1;
                        continue;
                    }
                };
            let problems = match table {
                Ok(table) => compare_snapshot(&path.join("fs"), table, options.deep)
                    .context(|| format!("cannot verify the snapshot of layer {diff_id}"))?,
                // The layer itself is damaged, which has already been reported.
                Err(error) if is_damage(&error) => {
                    report.unchecked += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(problems) = problems else {
                report.unchecked += 1;
                continue;
            };
            if !problems.is_empty() {
                let subject = format!("snapshot of layer {diff_id}");
                self.found(options, report, subject, problems.join("; "), &path)?;
            }
        }
        Ok(())
    }

    /// Records a problem with an object that can be recreated or loaded again and, if requested,
    /// moves it away. It stays on disk until the next `prune`.
    fn found(
        &self,
        options: &ScrubOptions,
        report: &mut ScrubReport,
        subject: String,
        detail: String,
        path: &Path,
    ) -> Result<()> {
        if options.repair {
            let directory = self.path(DAMAGED);
            std::fs::create_dir_all(&directory).path("create the directory", &directory)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let place = directory.join(format!("{name}.{}", unique_name()));
            let _lock = self.lock(Mode::Exclusive)?;
            std::fs::rename(path, &place).path("move away", path)?;
        }
        report.problems.push(Problem { subject, detail, repaired: options.repair });
        Ok(())
    }
}

/// Reports whether the file is already gone or in a read-only store, so that nothing can be done.
pub(super) fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Returns the diff ID whose hex is a file's name; incomplete snapshots and other files have none.
fn diff_id_of(path: &Path) -> Option<Digest> {
    let name = PathBuf::from(path.file_name()?);
    Digest::parse(&format!("sha256:{}", name.to_str()?)).ok()
}

/// Converts an error caused by the content to a problem.
fn collect_damage<T>(result: Result<T>, problems: &mut BTreeSet<String>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_damage(&error) => {
            problems.insert(error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Maximum number of differences to show; the rest is only counted.
const MAX_SHOWN: usize = 10;

/// Describes the differences; returns an empty list if there are none. Returns `None` if the two
/// cannot be compared: a layer with hard links into lower layers cannot be interpreted without
/// them.
fn compare_snapshot(directory: &Path, table: Toc, deep: bool) -> Result<Option<Vec<String>>> {
    let mut tree = Tree::new();
    if tree.apply(table).is_err() {
        return Ok(None);
    }
    let mut problems = Problems::default();
    let Ok(root) = Root::open(directory) else {
        return Ok(Some(vec!["it has no fs directory".to_owned()]));
    };
    let is_root = rustix::process::geteuid().is_root();
    let mut seen: HashSet<LayerPath> = HashSet::new();
    walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
        let Ok(path) = LayerPath::parse(found.path) else {
            problems.add(|| "it has a name that cannot be stored in a layer".to_owned());
            return Ok(());
        };
        match tree.lookup(&path) {
            Some(listed) => {
                // A directory without an entry has arbitrary metadata from the unpacker.
                if listed.layer.is_some() {
                    compare_metadata(
                        &path,
                        listed.entry(),
                        &found.metadata,
                        is_root,
                        &mut problems,
                    );
                }
                if deep && let Some(expected) = listed.entry.content {
                    compare_content(&path, &found, expected, &mut problems)?;
                }
                seen.insert(path);
            }
            None if is_whiteout(&found)? => {}
            None => problems.add(|| format!("{path} is not in the layer")),
        }
        Ok(())
    })?;
    for (path, listed) in tree.walk(&LayerPath::root()) {
        // Snapshots of unprivileged users have no devices.
        let is_device = matches!(
            listed.entry().kind,
            EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. }
        );
        if !path.is_root() && !seen.contains(&path) && (is_root || !is_device) {
            problems.add(|| format!("{path} is missing"));
        }
    }
    Ok(Some(problems.finish()))
}

#[derive(Default)]
struct Problems {
    shown: Vec<String>,
    more: usize,
}

impl Problems {
    fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(problem());
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.shown.push(format!("and {} more", self.more));
        }
        self.shown
    }
}

fn compare_metadata(
    path: &LayerPath,
    listed: &Entry,
    found: &Metadata,
    is_root: bool,
    problems: &mut Problems,
) {
    let (kind, size, device) = match &listed.kind {
        EntryKind::File { size } => (FileKind::File, Some(*size), None),
        EntryKind::Directory => (FileKind::Directory, None, None),
        EntryKind::Symlink { target } => (FileKind::Symlink, Some(target.len() as u64), None),
        EntryKind::CharDevice { major, minor } => {
            (FileKind::CharDevice, None, Some((*major, *minor)))
        }
        EntryKind::BlockDevice { major, minor } => {
            (FileKind::BlockDevice, None, Some((*major, *minor)))
        }
        EntryKind::Fifo => (FileKind::Fifo, None, None),
        // The tree returns the file itself for each of its names.
        EntryKind::HardLink { .. } => return,
    };
    if found.kind != kind {
        problems.add(|| format!("{path} is of another type"));
        return;
    }
    if size.is_some_and(|size| size != found.size) {
        problems.add(|| format!("{path} has another size"));
    }
    if device.is_some_and(|device| device != found.device) {
        problems.add(|| format!("{path} is another device"));
    }
    if kind != FileKind::Symlink && listed.mode & 0o7777 != found.mode {
        problems.add(|| format!("{path} has mode {:o}, not {:o}", found.mode, listed.mode));
    }
    if is_root && (listed.uid, listed.gid) != (found.uid, found.gid) {
        problems.add(|| format!("{path} has another owner"));
    }
    if (listed.mtime.seconds, listed.mtime.nanoseconds) != found.mtime {
        problems.add(|| format!("{path} has another modification time"));
    }
}

fn compare_content(
    path: &LayerPath,
    found: &Found<'_>,
    expected: [u8; 32],
    problems: &mut Problems,
) -> Result<()> {
    if found.metadata.kind != FileKind::File {
        return Ok(());
    }
    let mut hasher = blake3::Hasher::new();
    let mut file = found.open()?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Error::io(format!("cannot read {}", found.shown().display()), error));
            }
        };
    }
    if *hasher.finalize().as_bytes() != expected {
        problems.add(|| format!("{path} has other content"));
    }
    Ok(())
}

fn is_whiteout(found: &Found<'_>) -> Result<bool> {
    let marks = [&b"user.overlay.whiteout"[..], b"trusted.overlay.whiteout"];
    is_overlay_whiteout(&found.metadata, || {
        Ok(found.xattrs().is_ok_and(|all| marks.iter().any(|name| all.contains_key(*name))))
    })
}
