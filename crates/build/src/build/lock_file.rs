//! `imgctl.lock` on disk: its location, when it is read and written, and what a build says about changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::build::context::ContextTree;
use crate::build::context_files::Files;
use crate::build::options::{ContextSource, LockUse, Options};
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic;
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::{Digest, Reference};
use imgctl_base::progress::Reporter;
use imgctl_embed::lock::{LOCK_FILE, Lock, Locked, LockedAddress, MAX_LOCK};
use imgctl_embed::resolve::{Origin, ResolvedImage};
use imgctl_embed::search::charts::MAX_CHART;
use imgctl_embed::{ContextFiles as _, Found};

/// The lock of a build.
#[derive(Debug)]
pub(super) struct LockFile {
    /// For messages.
    name: String,
    /// The content on disk.
    lock: Option<Lock>,
    usage: LockUse,
}

impl LockFile {
    /// Returns the lock that determines digests.
    pub(super) fn in_use(&self) -> Option<&Lock> {
        match self.usage {
            LockUse::Update => None,
            LockUse::IfThere | LockUse::Insist => self.lock.as_ref(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the lock must have everything that a build asks for.
    pub(super) fn is_insisted_on(&self) -> bool {
        self.usage == LockUse::Insist
    }

    /// With `--locked`, rejects a lock that does not match the images found.
    pub(super) fn check(&self, found: &Found) -> Result<()> {
        match &self.lock {
            Some(lock) if self.is_insisted_on() => {
                lock.check(&self.name, found.images.iter().map(|image| &image.reference))
            }
            _ => Ok(()),
        }
    }

    /// Compares the charts of the context with those that servers gave. With `--update-lock`, one that somebody has
    /// replaced or removed is no longer that of its server.
    pub(super) fn check_charts(
        &mut self,
        context: Option<&ContextTree>,
        reporter: &dyn Reporter,
    ) -> Result<()> {
        let Some(lock) = self.lock.as_ref().filter(|lock| !lock.charts.is_empty()) else {
            return Ok(());
        };
        let mut kept = lock.charts.clone();
        for (file, locked) in &lock.charts {
            let found = match context.map(|context| Files::of(context).read(file, MAX_CHART)) {
                None => continue,
                Some(Err(error)) if error.kind() == Kind::NotFound => None,
                Some(read) => Some(Digest::of(&read?)),
            };
            if found.as_ref() == Some(&locked.digest) {
                continue;
            }
            if self.usage == LockUse::Update {
                kept.remove(file);
                continue;
            }
            let now = found.map_or_else(|| "is not there".to_owned(), |is| format!("is now {is}"));
            return Err(Error::bad_content(format!(
                "{file} is not the chart in {}: it was {} from {}, and {now}",
                self.name, locked.digest, locked.from
            ))
            .hint("get it again from there, or pass --update-lock to use what is in the context"));
        }
        if let Some(lock) = self.lock.as_mut() {
            let old = std::mem::replace(&mut lock.charts, kept.clone());
            self.tell(&old, &kept, &|locked| locked.digest.to_string(), reporter);
        }
        Ok(())
    }

    /// With `--update-lock`, writes the resolved digests. The addresses are known only after the build.
    pub(super) fn update_images(
        &mut self,
        options: &Options,
        images: &[ResolvedImage],
        reporter: &dyn Reporter,
    ) -> Result<()> {
        if self.usage != LockUse::Update {
            return Ok(());
        }
        let is_new = self.lock.is_none();
        let old = self.lock.take().unwrap_or_default();
        let new = Lock { images: locked(images, &old), ..old.clone() };
        // Of a new lock, everything is new.
        if !is_new {
            self.tell(&old.images, &new.images, &|locked| locked.digest.to_string(), reporter);
        }
        place(options)?.write(&new)?;
        self.lock = Some(new);
        Ok(())
    }

    /// Writes what addresses gave: with `--update-lock` in place of what is there, otherwise those that
    /// the lock lacks, if there is one. `platforms` are those of the build, which say nothing about the
    /// addresses of others.
    pub(super) fn update_addresses(
        mut self,
        options: &Options,
        found: BTreeMap<String, LockedAddress>,
        platforms: &[String],
        reporter: &dyn Reporter,
    ) -> Result<()> {
        let is_update = self.usage == LockUse::Update;
        let old = match (self.lock.take(), self.usage) {
            (_, LockUse::Insist) | (None, LockUse::IfThere) => return Ok(()),
            (lock, _) => lock.unwrap_or_default(),
        };
        let mut new = old.clone();
        if is_update {
            new.addresses.retain(|_, locked| {
                platforms.iter().for_each(|name| {
                    locked.platforms.remove(name);
                });
                !locked.platforms.is_empty()
            });
        }
        for (url, mut locked) in found {
            // What another platform's build has found is still right if it is the same.
            if let Some(old) = new.addresses.get(&url).filter(|old| old.given == locked.given) {
                locked.platforms.extend(old.platforms.iter().cloned());
            }
            new.addresses.insert(url, locked);
        }
        if new == old {
            return Ok(());
        }
        let written = place(options).and_then(|place| place.write(&new));
        match written {
            Ok(()) => {
                let given = |locked: &LockedAddress| locked.given.to_string();
                self.tell(&old.addresses, &new.addresses, &given, reporter);
                Ok(())
            }
            Err(error) if is_update => Err(error),
            // The build needs no new lock, and its context may be read-only.
            Err(error) => {
                reporter.note(&format!("{} stays as it is: {error}", self.name));
                Ok(())
            }
        }
    }

    /// Says what differs.
    fn tell<K: Ord + std::fmt::Display, V>(
        &self,
        old: &BTreeMap<K, V>,
        new: &BTreeMap<K, V>,
        shown: &dyn Fn(&V) -> String,
        reporter: &dyn Reporter,
    ) {
        let keys: BTreeSet<&K> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let change = match (old.get(key).map(shown), new.get(key).map(shown)) {
                (None, Some(_)) => "is new".to_owned(),
                (Some(_), None) => "is no longer used".to_owned(),
                (Some(old), Some(new)) if old != new => format!("was {old}, is {new}"),
                _ => continue,
            };
            reporter.note(&format!("{}: {key} {change}", self.name));
        }
    }
}

/// Reads the lock.
pub(super) fn read(options: &Options, context: Option<&ContextTree>) -> Result<LockFile> {
    let embed = &options.embed;
    if embed.lock == LockUse::Update {
        // Before a long build, not after it.
        place(options)?;
    }
    refuse_link(options)?;
    let (name, bytes) = match &embed.lock_file {
        Some(path) => (path.display().to_string(), read_file(path)),
        None => {
            let nothing = || Err(Error::not_found("there is no build context"));
            let read = context.map_or_else(nothing, |c| Files::of(c).read(LOCK_FILE, MAX_LOCK));
            (LOCK_FILE.to_owned(), read)
        }
    };
    let lock = match bytes {
        Err(error) if error.kind() == Kind::NotFound && embed.lock != LockUse::Insist => None,
        Err(error) if error.kind() == Kind::NotFound => {
            return Err(Error::usage(format!("--locked: {name} does not exist"))
                .hint("run `imgctl build --update-lock` to create it"));
        }
        read => {
            let text = String::from_utf8(read?)
                .map_err(|_| Error::usage(format!("{name} is not UTF-8 text")))?;
            match Lock::parse(&text, &name) {
                // A lock that is about to be rewritten need not be readable.
                Err(_) if embed.lock == LockUse::Update => None,
                parsed => Some(parsed?),
            }
        }
    };
    Ok(LockFile { name, lock, usage: embed.lock })
}

/// Reads the lock at `path`, which must exist.
pub fn open(path: &Path) -> Result<Lock> {
    let name = path.display().to_string();
    let text = String::from_utf8(read_file(path)?)
        .map_err(|_| Error::usage(format!("{name} is not UTF-8 text")))?;
    Lock::parse(&text, &name)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let file = std::fs::File::open(path).path("read", path)?;
    let mut bytes = Vec::new();
    file.take(MAX_LOCK + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > MAX_LOCK {
        let name = path.display();
        return Err(Error::usage(format!("{name} is too large to be a lock file")));
    }
    Ok(bytes)
}

/// Where the lock is written.
enum LockPlace<'a> {
    Named(&'a Path),
    /// Somebody else may have made the context, so a link there must not redirect the lock.
    InContext(PathBuf),
}

impl LockPlace<'_> {
    fn write(&self, lock: &Lock) -> Result<()> {
        let text = lock.to_text();
        let is_same = |path: &Path| std::fs::read(path).is_ok_and(|old| old == text.as_bytes());
        match self {
            Self::Named(path) if !is_same(path) => {
                output::write(path, text.as_bytes(), 0o644, Durability::Durable)
            }
            Self::InContext(path) if !is_same(path) => {
                atomic::write(path, text.as_bytes(), 0o644, Durability::Durable)
            }
            _ => Ok(()),
        }
    }
}

/// Fails if the lock of the context is a link: its target may be outside the context, and would be
/// overwritten.
fn refuse_link(options: &Options) -> Result<()> {
    match place(options) {
        Ok(LockPlace::InContext(path)) if path.is_symlink() => {
            Err(Error::usage(format!("{} is a link", path.display()))
                .hint("name the file that it leads to with --lock-file"))
        }
        _ => Ok(()),
    }
}

fn place(options: &Options) -> Result<LockPlace<'_>> {
    match (&options.embed.lock_file, &options.context) {
        (Some(path), _) => Ok(LockPlace::Named(path)),
        (None, ContextSource::Directory(directory)) => {
            Ok(LockPlace::InContext(directory.join(LOCK_FILE)))
        }
        (None, _) => Err(Error::usage("--update-lock: the context is not a directory")
            .hint("pass --lock-file to say where to write the lock file")),
    }
}

/// Returns the entries of images. Images from archives are left out: the archive itself is in the context.
fn locked(images: &[ResolvedImage], old: &Lock) -> BTreeMap<Reference, Locked> {
    let from_registry = |image: &&ResolvedImage| {
        matches!(image.origin, Origin::Registry(_)) || is_local(&image.reference)
    };
    let entry = |image: &ResolvedImage| {
        let digest = image.root.digest.clone();
        // Platforms locked by another build stay if the image is unchanged.
        let mut platforms = match old.images.get(&image.reference) {
            Some(locked) if locked.digest == digest => locked.platforms.clone(),
            _ => BTreeMap::new(),
        };
        let here = image.platforms.iter();
        platforms.extend(here.map(|(platform, digest)| (platform.to_string(), digest.clone())));
        let files: BTreeSet<&str> = image.places.iter().map(|place| &*place.file).collect();
        let locked =
            Locked { digest, platforms, found: files.into_iter().map(str::to_owned).collect() };
        (image.reference.clone(), locked)
    };
    images.iter().filter(from_registry).map(entry).collect()
}

fn is_local(reference: &Reference) -> bool {
    reference.registry() == Some(imgctl_base::image::reference::LOCAL_REGISTRY)
}
