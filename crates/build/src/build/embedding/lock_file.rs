//! `imgctl.lock` on disk: its location, and when it is read and written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::build::context::ContextTree;
use crate::build::embedding::Files;
use crate::build::options::{ContextSource, LockUse, Options};
use crate::embed::lock::{LOCK_FILE, Lock, Locked, MAX_LOCK};
use crate::embed::resolve::{Origin, ResolvedImage};
use crate::embed::{ContextFiles as _, Found};
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::Reference;

/// The lock of a build.
pub(super) struct LockFile {
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
}

/// Reads the lock; with `--locked`, rejects one that does not match the images found.
pub(super) fn read(
    options: &Options,
    context: Option<&ContextTree>,
    found: &Found,
) -> Result<LockFile> {
    let embed = &options.embed;
    let (name, bytes) = match &embed.lock_file {
        Some(path) => {
            let metadata = std::fs::metadata(path);
            let is_large = metadata.is_ok_and(|metadata| metadata.len() > MAX_LOCK);
            if is_large {
                let name = path.display();
                return Err(Error::usage(format!("{name} is too large to be a lock file")));
            }
            let name = path.display().to_string();
            (name, std::fs::read(path).path("read", path))
        }
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
    if let (Some(lock), LockUse::Insist) = (&lock, embed.lock) {
        lock.check(&name, found.images.iter().map(|image| &image.reference))?;
    }
    Ok(LockFile { lock, usage: embed.lock })
}

/// With `--update-lock`, writes the resolved digests.
pub(super) fn update(
    options: &Options,
    lock_file: LockFile,
    images: &[ResolvedImage],
) -> Result<()> {
    if lock_file.usage != LockUse::Update {
        return Ok(());
    }
    let path = path(options)?;
    let old = lock_file.lock.unwrap_or_default();
    let text = lock_of(images, &old).to_text();
    if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    output::write(&path, text.as_bytes(), 0o644, Durability::Durable)
}

fn path(options: &Options) -> Result<PathBuf> {
    match (&options.embed.lock_file, &options.context) {
        (Some(path), _) => Ok(path.clone()),
        (None, ContextSource::Directory(directory)) => Ok(directory.join(LOCK_FILE)),
        (None, _) => Err(Error::usage("--update-lock: the context is not a directory")
            .hint("pass --lock-file to say where to write the lock file")),
    }
}

/// Builds the lock. Images from archives are left out: the archive itself is in the context.
fn lock_of(images: &[ResolvedImage], old: &Lock) -> Lock {
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
    Lock { images: images.iter().filter(from_registry).map(entry).collect() }
}

fn is_local(reference: &Reference) -> bool {
    reference.registry() == Some(imgctl_base::image::reference::LOCAL_REGISTRY)
}
