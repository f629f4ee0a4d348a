//! Garbage collection: a plan of unneeded objects, and its execution.
//!
//! The roots are collected and the garbage is moved away under the exclusive lock; claims (leases)
//! are made under the shared lock. A process that claims an object before checking for it therefore
//! keeps it, and no grace period is needed. Deletion happens after the lock is released.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use walkdir::WalkDir;

use crate::store::reachable::is_leftover;
use crate::store::scrub::DAMAGED;
use crate::store::{Named, Store, snapshots};
use imgctl_base::error::Result;
use imgctl_base::fs::directory::list;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::Digest;
use imgctl_base::progress::{Reporter, Unit};

/// Age after which no process will still rename a temporary file.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);
/// Directories of objects that can be recreated from a layer, named by the hex of its diff ID, or of its
/// blob and its diff ID.
const DERIVED: [&str; 4] = ["snapshots", "toc", snapshots::RESTARTS, "tars"];

/// What to collect besides unreachable objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct PruneOptions {
    /// Images without a name.
    pub unnamed: bool,
    /// The whole build cache, and all unpacked data that no mount uses.
    pub all: bool,
    /// Build cache records not used for this long.
    pub cache_age: Option<Duration>,
    /// The least recently used build cache records beyond this many bytes of layers that nothing
    /// else needs.
    pub cache_size: Option<u64>,
    /// The least recently used build cache records beyond this many.
    pub cache_keep: Option<usize>,
}

/// Class of a piece of garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Blob,
    /// Unpacked layers, tables of contents, decompressed layers.
    Unpacked,
    Cache,
    /// Leftovers of killed processes.
    Leftover,
}

/// An object to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub class: Class,
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
}

/// Objects that a collection will remove (or has removed).
#[derive(Clone, Debug, Default)]
pub struct PrunePlan {
    options: PruneOptions,
    /// Images without a name.
    pub unnamed: Vec<Named>,
    pub garbage: Vec<Garbage>,
    /// Damage found during the search; run `scrub` to examine it.
    pub notes: Vec<String>,
}

impl PrunePlan {
    /// Returns the number of bytes that the collection frees.
    pub fn bytes(&self) -> u64 {
        self.garbage.iter().map(|garbage| garbage.size).sum()
    }

    /// Returns the number of objects of each class, and their bytes.
    pub fn by_class(&self) -> BTreeMap<Class, (usize, u64)> {
        let mut classes = BTreeMap::new();
        for garbage in &self.garbage {
            let (count, bytes) = classes.entry(garbage.class).or_insert((0, 0));
            *count += 1;
            *bytes += garbage.size;
        }
        classes
    }
}

impl Store {
    /// Returns what a collection would remove now.
    pub fn plan_prune(&self, options: &PruneOptions) -> Result<PrunePlan> {
        let _lock = self.lock(Mode::Exclusive)?;
        self.find_garbage(options)
    }

    /// Removes the planned objects, except those that have come into use since; returns what was
    /// removed.
    pub fn prune(&self, plan: &PrunePlan, reporter: &dyn Reporter) -> Result<PrunePlan> {
        let lock = self.lock(Mode::Exclusive)?;
        let mut now = self.find_garbage(&plan.options)?;
        let planned: HashSet<&Path> = plan.garbage.iter().map(|g| g.path.as_path()).collect();
        now.garbage.retain(|garbage| planned.contains(&*garbage.path));
        now.unnamed.retain(|named| plan.unnamed.contains(named));
        if !now.unnamed.is_empty() {
            // Remove names first and durably: none may point at a removed object.
            let mut table = self.name_table()?;
            for named in &now.unnamed {
                table.remove(named);
            }
            self.write_name_table(&table)?;
        }
        for garbage in &now.garbage {
            self.move_to_trash(&garbage.path)?;
        }
        drop(lock);
        let task = reporter.start("deleting", Unit::Bytes, Some(now.bytes()));
        self.sweep_trash();
        task.advance(now.bytes());
        Ok(now)
    }

    /// Removes those of `digests` that only this store value's own lease needs: objects that a
    /// failed command has imported.
    pub fn discard(&self, digests: &[Digest]) -> Result<()> {
        let lock = self.lock(Mode::Exclusive)?;
        let names = self.names()?;
        let mut live = self.reachable(Store::named_descriptors(&names), &mut |_| {})?;
        live.extend(self.mounted()?);
        live.extend(self.leased_by_others()?);
        live.extend(self.cache_records()?.into_iter().flat_map(|r| r.digests.unwrap_or_default()));
        for digest in digests {
            if !live.contains(digest) {
                self.move_to_trash(&self.blob_path(digest))?;
                self.move_to_trash(&self.toc_path(digest))?;
                self.move_to_trash(&self.snapshot_path(digest))?;
            }
        }
        drop(lock);
        self.sweep_trash();
        Ok(())
    }

    /// Searches the whole store for garbage; the caller holds the exclusive lock.
    fn find_garbage(&self, options: &PruneOptions) -> Result<PrunePlan> {
        let mut plan = PrunePlan { options: *options, ..PrunePlan::default() };
        let mut in_use = self.mounted()?;
        in_use.extend(self.leased()?);
        let mut kept = Vec::new();
        for named in self.names()? {
            let is_nameless = named.descriptor.ref_name().is_none();
            if options.unnamed && is_nameless && !in_use.contains(&named.descriptor.digest) {
                plan.unnamed.push(named);
            } else {
                kept.push(named);
            }
        }
        let notes = &mut plan.notes;
        let mut note = |text| notes.push(text);
        let mut live = self.reachable(Store::named_descriptors(&kept), &mut note)?;
        live.extend(in_use.iter().cloned());
        self.find_cache_garbage(options, &mut live, &mut plan.garbage)?;
        for digest in self.blob_digests()? {
            if !live.contains(&digest) {
                plan.garbage.push(garbage(Class::Blob, self.blob_path(&digest)));
            }
        }
        for path in self.unneeded_links(&live)? {
            plan.garbage.push(garbage(Class::Leftover, path));
        }
        for path in list(&self.path(DAMAGED))? {
            plan.garbage.push(garbage(Class::Leftover, path));
        }
        let needed = if options.all { &in_use } else { &live };
        self.find_derived_garbage(needed, &mut plan.garbage)?;
        Ok(plan)
    }

    /// Collects the cache records to remove; adds the objects of the remaining ones to `live`.
    fn find_cache_garbage(
        &self,
        options: &PruneOptions,
        live: &mut HashSet<Digest>,
        all: &mut Vec<Garbage>,
    ) -> Result<()> {
        let now = SystemTime::now();
        let mut kept_bytes = 0_u64;
        let mut kept = 0;
        for record in self.cache_records()? {
            let age = now.duration_since(record.used).unwrap_or_default();
            let digests = record.digests.unwrap_or_default();
            let mut bytes = 0;
            let mut present = !digests.is_empty();
            for digest in &digests {
                // Records also list diff IDs; only blobs have a size here.
                let size = self.blob_size(digest)?;
                if !live.contains(digest) {
                    bytes += size.unwrap_or(0);
                }
                present |= size.is_some();
            }
            let over_age = options.cache_age.is_some_and(|limit| age > limit);
            let over_size = options.cache_size.is_some_and(|limit| kept_bytes + bytes > limit);
            let over_count = options.cache_keep.is_some_and(|limit| kept >= limit);
            if options.all || over_age || over_size || over_count || !present {
                all.push(garbage(Class::Cache, record.path));
            } else {
                kept += 1;
                kept_bytes += bytes;
                live.extend(digests);
            }
        }
        for path in list(&self.path("cache/steps"))? {
            if is_leftover(&path) && is_old(&path) {
                all.push(garbage(Class::Leftover, path));
            }
        }
        if options.all {
            self.find_other_caches(all)?;
        }
        Ok(())
    }

    /// Collects stat caches and cache mounts: files in `cache/` and the contents of its other
    /// directories. An entry whose `NAME.lock` is held is in use.
    fn find_other_caches(&self, all: &mut Vec<Garbage>) -> Result<()> {
        for path in list(&self.path("cache"))? {
            if path.file_name().is_some_and(|name| name == "steps") {
                continue;
            }
            let parts = if path.is_dir() { list(&path)? } else { vec![path] };
            for part in parts {
                let is_lock = part.extension().is_some_and(|ending| ending == "lock");
                let lock = if is_lock { part.clone() } else { with_lock_ending(&part) };
                if !lock.exists() || Lock::try_acquire(&lock, Mode::Exclusive)?.is_some() {
                    all.push(garbage(Class::Cache, part));
                }
            }
        }
        Ok(())
    }

    /// Collects objects derived from layers that are not in `needed`, and incomplete ones whose
    /// process is gone.
    fn find_derived_garbage(&self, needed: &HashSet<Digest>, all: &mut Vec<Garbage>) -> Result<()> {
        let needed: HashSet<&str> = needed.iter().map(Digest::hex).collect();
        let is_needed = |name: &str| name.split('-').all(|hex| needed.contains(hex));
        for class in DERIVED {
            for path in list(&self.path(class))? {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let (hex, ending) = name.split_once('.').unwrap_or((&name, ""));
                let is_part = [snapshots::PART, snapshots::LOCK].iter().any(|e| e[1..] == *ending);
                let dead = is_part && {
                    let lock = self.path(class).join(format!("{hex}{}", snapshots::LOCK));
                    let free = Lock::try_acquire(&lock, Mode::Exclusive)?;
                    let _ = free.as_ref().map(|_| std::fs::remove_file(&lock));
                    free.is_some()
                };
                if dead || is_leftover(&path) && is_old(&path) {
                    all.push(garbage(Class::Leftover, path));
                } else if !is_part && !is_leftover(&path) && !is_needed(hex) {
                    all.push(garbage(Class::Unpacked, path));
                }
            }
        }
        Ok(())
    }
}

fn garbage(class: Class, path: PathBuf) -> Garbage {
    Garbage { class, size: size_of(&path), path }
}

fn is_old(path: &Path) -> bool {
    let modified = std::fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LEFTOVER_AGE))
}

fn with_lock_ending(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Returns the size of a file, or of all files below a directory (a file with several names counts
/// once). Unreadable files count as zero: the result is only for display.
pub(super) fn size_of(path: &Path) -> u64 {
    let mut linked = HashSet::new();
    let files = WalkDir::new(path).follow_root_links(false).into_iter().flatten();
    files
        .filter_map(|entry| entry.metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .filter(|found| found.nlink() < 2 || linked.insert((found.dev(), found.ino())))
        .map(|found| found.len())
        .sum()
}
