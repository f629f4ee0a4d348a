//! Many images at once from one place to another: `registry sync`, `registry copy`,
//! `registry save`. First what is to be done, as a value; then doing it.
//!
//! Several images go at the same time, and a blob that several of them share goes once: the second
//! waits for the first and takes it from there. Must not know the command line.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::{Context, Error, Kind, Result};
use crate::image::Digest;
use crate::progress::Reporter;
use crate::registry::Target;
use crate::transfer::engine::{self, Moved};
use crate::transfer::mirror_place::Place;
use crate::transfer::mirror_shared::SharedBlobs;
use crate::transfer::plan::{Plan, Selection};
use crate::transfer::sink::ImageSink;
use crate::transfer::source::ImageSource;
use crate::transfer::workers::{self, lock};

/// Images that move at the same time unless told otherwise.
pub(crate) const IMAGES: usize = 5;
/// Blobs of one image that move at the same time.
const BLOBS: usize = 3;
/// Tags that are looked up at the same time.
const LOOK_UPS: usize = 16;

/// How to copy.
#[derive(Clone, Debug)]
pub(crate) struct MirrorOptions {
    pub(crate) selection: Selection,
    /// Images that move at the same time.
    pub(crate) images: usize,
}

/// One image on its way.
pub(crate) struct Item<'a> {
    /// The name at the destination, for people: `library/nginx:1`.
    pub(crate) name: String,
    pub(crate) source: Box<dyn ImageSource + 'a>,
    pub(crate) sink: Box<dyn ImageSink + 'a>,
    /// The repository at the destination, as its registry calls it.
    pub(crate) repository: String,
    /// What the name means at the destination now.
    pub(crate) there: Option<Digest>,
    pub(crate) selection: Selection,
}

/// What is to become of a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) repository: String,
    pub(crate) target: Target,
    /// At the source.
    pub(crate) digest: Digest,
    /// At the destination.
    pub(crate) there: Option<Digest>,
    pub(crate) action: Action,
}

/// Whether something has to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    UpToDate,
    /// The name is not there.
    Add,
    /// The name means something else there.
    Replace,
}

impl Planned {
    /// `repository:tag` or `repository@digest`.
    pub(crate) fn name(&self) -> String {
        name(&self.repository, &self.target)
    }
}

/// What became of one image.
#[derive(Clone, Debug)]
pub(crate) struct Mirrored {
    pub(crate) name: String,
    /// What the name means at the destination now.
    pub(crate) digest: Digest,
    pub(crate) moved: Moved,
}

/// Looks at all names of `from` and at what they mean in `to`; `None` is a place that is not there
/// yet.
pub(crate) fn plan(
    from: &Place,
    to: Option<&Place>,
    options: &MirrorOptions,
) -> Result<Vec<Planned>> {
    let mut names: Vec<(String, Target)> = Vec::new();
    for repository in from.repositories()? {
        let targets = from.targets(&repository)?;
        names.extend(
            targets
                .into_iter()
                .map(|target| (repository.clone(), target)),
        );
    }
    let found = Mutex::new(Vec::with_capacity(names.len()));
    let whole = options.selection == everything();
    workers::for_each(
        names,
        LOOK_UPS,
        &AtomicBool::new(false),
        |(repository, target)| {
            // A tag may have gone since it was listed.
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
            lock(&found).push(Planned {
                repository,
                target,
                digest,
                there,
                action,
            });
            Ok(())
        },
    )?;
    let mut found = std::mem::take(&mut *lock(&found));
    found.sort_by_cached_key(Planned::name);
    Ok(found)
}

/// All platforms, byte for byte.
pub(crate) fn everything() -> Selection {
    Selection {
        platforms: crate::transfer::plan::Platforms::All,
        keep_index: true,
    }
}

/// Does what has been planned.
pub(crate) fn sync(
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

/// Copies images. One that fails does not keep the others from being copied, unless the cause
/// would make all of them fail; in the end it is an error that names the first.
pub(crate) fn copy_all(
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
    let moved = match item.there.as_ref() == Some(&digest) {
        true => Moved::default(),
        false => {
            let sink = shared.sink(&*item.sink, &item.repository);
            engine::copy_plan(source, &sink, &plan, BLOBS, reporter)?.moved
        }
    };
    Ok(Mirrored {
        name: item.name.clone(),
        digest,
        moved,
    })
}

/// `repository:tag` or `repository@digest`.
pub(crate) fn name(repository: &str, target: &Target) -> String {
    match target {
        Target::Tag(tag) => format!("{repository}:{tag}"),
        Target::Digest(digest) => format!("{repository}@{digest}"),
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
