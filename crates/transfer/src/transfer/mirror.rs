//! Copies many images from one place to another: `registry sync`, `registry copy`, `registry save`.
//! Planning produces a value, which a second step executes.
//!
//! Several images are copied in parallel. A blob that several of them share is copied once: later
//! copies wait for the first and take the blob from the destination. Must not depend on the command
//! line.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::transfer::engine::{self, Moved};
use crate::transfer::mirror_place::{Place, name_of};
use crate::transfer::partial::local::LocalBlobs;
use crate::transfer::plan::{Plan, Selection};
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource};
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Verdict};
use imgctl_base::progress::Reporter;
use imgctl_base::{workers, workers::lock};
use imgctl_registry::Target;

/// Default number of images copied in parallel.
pub const IMAGES: usize = 5;
/// Number of blobs of one image copied in parallel.
const BLOBS: usize = 3;
/// Number of tags looked up in parallel.
const LOOK_UPS: usize = 16;

/// Options of a mirror operation.
#[derive(Clone, Debug)]
pub struct MirrorOptions {
    pub selection: Selection,
    /// Number of images copied in parallel.
    pub images: usize,
}

/// One image to copy.
pub struct Item<'a> {
    /// The name at the destination, for display: `library/nginx:1`.
    pub name: String,
    pub source: Box<dyn ImageSource + 'a>,
    pub sink: Box<dyn ImageSink + 'a>,
    /// The repository at the destination, under its name in that registry.
    pub repository: String,
    /// The digest that the name has at the destination now.
    pub there: Option<Digest>,
    pub selection: Selection,
}

/// Planned action for a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub repository: String,
    pub target: Target,
    /// Digest at the source.
    pub digest: Digest,
    /// Digest at the destination.
    pub there: Option<Digest>,
    pub action: Action,
}

/// Whether an image must be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    UpToDate,
    /// The name does not exist at the destination.
    Add,
    /// The name refers to another digest at the destination.
    Replace,
}

impl Planned {
    /// `repository:tag` or `repository@digest`.
    pub fn name(&self) -> String {
        name_of(&self.repository, &self.target)
    }
}

/// Result for one image.
#[derive(Clone, Debug)]
pub struct Mirrored {
    pub name: String,
    /// The digest that the name has at the destination now.
    pub digest: Digest,
    pub moved: Moved,
}

/// Compares all names of `from` with those in `to`; `None` is a destination that does not exist
/// yet.
pub fn plan(from: &Place, to: Option<&Place>, options: &MirrorOptions) -> Result<Vec<Planned>> {
    let mut names: Vec<(String, Target)> = Vec::new();
    for repository in from.repositories()? {
        let targets = from.targets(&repository)?;
        names.extend(targets.into_iter().map(|target| (repository.clone(), target)));
    }
    let found = Mutex::new(Vec::with_capacity(names.len()));
    let whole = options.selection == everything();
    workers::for_each(names, LOOK_UPS, &AtomicBool::new(false), |(repository, target)| {
        // A tag may have been deleted since it was listed.
        let Some(digest) = from.digest(&repository, &target)? else {
            return Ok(());
        };
        let there = match to {
            Some(to) => to.digest(&repository, &target)?,
            None => None,
        };
        let action = match &there {
            None => Action::Add,
            Some(there) if *there == digest && whole => Action::UpToDate,
            Some(_) => Action::Replace,
        };
        lock(&found).push(Planned { repository, target, digest, there, action });
        Ok(())
    })?;
    let mut found = std::mem::take(&mut *lock(&found));
    found.sort_by_cached_key(Planned::name);
    Ok(found)
}

/// All platforms, byte for byte.
pub fn everything() -> Selection {
    Selection { platforms: crate::transfer::plan::Platforms::All, keep_index: true }
}

/// Executes a plan.
pub fn sync(
    from: &Place,
    to: &Place,
    planned: &[Planned],
    options: &MirrorOptions,
    reporter: &dyn Reporter,
) -> Result<Vec<Mirrored>> {
    let mut items = Vec::new();
    for one in planned.iter().filter(|one| one.action != Action::UpToDate) {
        items.push(Item {
            name: one.name(),
            source: from.source(&one.repository, &one.target)?,
            sink: to.sink(&one.repository, &one.target)?,
            repository: to.repository(&one.repository),
            there: one.there.clone(),
            selection: options.selection.clone(),
        });
    }
    copy_all(&items, options, reporter)
}

/// Copies images. One failed image does not stop the others, unless the cause affects all of them.
/// If any image fails, the result is the first error.
pub fn copy_all(
    items: &[Item<'_>],
    options: &MirrorOptions,
    reporter: &dyn Reporter,
) -> Result<Vec<Mirrored>> {
    let shared = SharedBlobs::default();
    let done = Mutex::new(Vec::new());
    let first_error: Mutex<Option<Error>> = Mutex::new(None);
    let failed = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    workers::for_each(items, options.images, &stop, |item| {
        match one(item, &shared, reporter) {
            Ok(mirrored) => lock(&done).push(mirrored),
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                let is_everyones =
                    matches!(error.kind(), Kind::Network | Kind::Denied | Kind::NoSpace);
                if is_everyones {
                    stop.store(true, Ordering::Relaxed);
                }
                let mut first = lock(&first_error);
                match &*first {
                    Some(_) => reporter.note(&format!("{}: {error}", item.name)),
                    None => *first = Some(error),
                }
            }
        }
        Ok(())
    })?;
    if let Some(error) = lock(&first_error).take() {
        let (failed, all) = (failed.into_inner(), items.len());
        return Err(match failed {
            1 if all == 1 => error,
            _ => error.context(format!("{failed} of {all} images could not be copied")),
        });
    }
    let mut done = std::mem::take(&mut *lock(&done));
    done.sort_by(|a: &Mirrored, b| a.name.cmp(&b.name));
    Ok(done)
}

fn one(item: &Item<'_>, shared: &SharedBlobs, reporter: &dyn Reporter) -> Result<Mirrored> {
    let source = &*item.source;
    let plan = Plan::read(source, &item.selection, BLOBS)
        .context(|| format!("cannot read {}", item.name))?;
    let digest = plan.root.descriptor.digest.clone();
    let moved = if item.there.as_ref() == Some(&digest) {
        Moved::default()
    } else {
        let sink = shared.sink(&*item.sink, &item.repository);
        engine::copy_plan(source, &sink, &plan, BLOBS, reporter)?.moved
    };
    Ok(Mirrored { name: item.name.clone(), digest, moved })
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;

/// The blobs copied so far, and those being copied.
#[derive(Default)]
pub(super) struct SharedBlobs {
    /// Repositories that have each blob; the inner lock is held while the blob is copied.
    blobs: Mutex<HashMap<Digest, Arc<Mutex<Vec<String>>>>>,
}

impl SharedBlobs {
    /// Wraps `sink`, which writes to `repository`, so that it takes turns on shared blobs.
    pub(super) fn sink<'a>(&'a self, sink: &'a dyn ImageSink, repository: &'a str) -> Turns<'a> {
        Turns { shared: self, sink, repository }
    }

    fn blob(&self, digest: &Digest) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(lock(&self.blobs).entry(digest.clone()).or_default())
    }
}

/// A sink that copies a blob only while no other image is copying it.
pub(super) struct Turns<'a> {
    shared: &'a SharedBlobs,
    sink: &'a dyn ImageSink,
    repository: &'a str,
}

impl ImageSink for Turns<'_> {
    fn describe(&self) -> String {
        self.sink.describe()
    }

    fn prepare(&self, plan: &Plan, blobs: &Blobs<'_>) -> Result<HashSet<Digest>> {
        self.sink.prepare(plan, blobs)
    }

    fn local(&self) -> Option<Box<dyn LocalBlobs>> {
        self.sink.local()
    }

    fn takes_foreign_layers(&self) -> bool {
        self.sink.takes_foreign_layers()
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        let blob = self.shared.blob(&descriptor.digest);
        let mut have = lock(&blob);
        let mount_from = have.iter().rev().take(2).cloned().collect();
        let put = self.sink.put_blob(descriptor, &Blobs { mount_from, ..blobs.clone() })?;
        if have.iter().all(|name| name != self.repository) {
            have.push(self.repository.to_owned());
        }
        Ok(put)
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.sink.put_document(descriptor, bytes)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], verdict: &Verdict) -> Result<()> {
        self.sink.finish(root, bytes, verdict)
    }
}
