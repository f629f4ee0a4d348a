//! Blobs of which only the missing parts are fetched: an image source around another, which puts a
//! layer together from parts of blobs on this machine and from ranges of the other source's.
//!
//! Lists of frames and the blobs on this machine are believed, not trusted: whoever receives a blob
//! verifies its digest, and a blob that does not have it is read from the other source as a whole.
//! Must not depend on what sources and sinks are.

pub mod estimate;
pub mod local;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::transfer::partial::local::{Known, LocalBlobs};
use crate::transfer::partial::pieces::{Assembled, Pieces, Tail};
use crate::transfer::source::{ImageSource, Kept, SourceDocument};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict, media_type};
use imgctl_base::workers::lock;
use imgctl_layer::chunked::{FOOTER, Position};

/// Size from which a layer with an announced list is worth the requests, in bytes.
const SMALLEST: u64 = 1 << 20;
/// Size from which it is worth asking whether a layer has a list, in bytes.
const SMALLEST_UNANNOUNCED: u64 = 4 << 20;
/// Number of bytes at the end of a blob that are asked for to find its list, and often the list itself.
const TAIL: u64 = 32 << 10;
/// Maximum number of bytes of a list with all that follows it, which are held in memory until the blob is
/// read.
const MOST_HELD: u64 = 64 << 20;
/// The same for all blobs together.
const MOST_HELD_TOGETHER: u64 = 128 << 20;
/// How often the same bytes on this machine may be used for one blob, on average.
const MOST_REPEATS: u64 = 64;
/// At least one byte in this many must be here already.
const WORTH: u64 = 2;

/// A source around another, see the module.
pub(crate) struct Partial<'a> {
    source: &'a dyn ImageSource,
    known: Known<'a>,
    /// How to read the blobs that were opened so far; `None` = as a whole.
    plans: Mutex<HashMap<Digest, Option<Arc<Pieces>>>>,
    /// Whether the source has answered a range with something else.
    has_no_ranges: AtomicBool,
    /// Number of bytes that readers got without the source.
    reused: Arc<AtomicU64>,
    /// Number of bytes of the source that no reader got.
    asked: AtomicU64,
    /// Number of bytes that the plans hold.
    held: AtomicU64,
    /// Held while a list is read, which may take some memory.
    reading: Mutex<()>,
}

impl<'a> Partial<'a> {
    /// Wraps `source`; parts are taken from `local`, the first of which come first.
    pub(crate) fn new(source: &'a dyn ImageSource, local: Vec<Box<dyn LocalBlobs + 'a>>) -> Self {
        Self {
            source,
            known: Known::new(local, source.reference().cloned()),
            plans: Mutex::default(),
            has_no_ranges: AtomicBool::new(false),
            reused: Arc::default(),
            asked: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reading: Mutex::default(),
        }
    }

    /// Releases what is held for a blob, which has been read.
    pub(crate) fn forget(&self, blob: &Digest) {
        if let Some(Some(plan)) = lock(&self.plans).remove(blob) {
            self.held.fetch_sub(plan.held(), Ordering::Relaxed);
        }
    }

    /// Returns the number of bytes that came from blobs on this machine, and by how many bytes the
    /// source gave more than readers got from it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.reused.load(Ordering::Relaxed), self.asked.load(Ordering::Relaxed))
    }

    /// Decides after an error about blobs whether reading them as a whole may help, and if so does that
    /// from now on. With `blob`, the error is about that one.
    pub(crate) fn distrust(&self, blob: Option<&Digest>, error: &Error) -> bool {
        let is_about_content =
            matches!(error.kind(), Kind::BadContent | Kind::Failed | Kind::NotFound);
        if !is_about_content {
            return false;
        }
        let mut plans = lock(&self.plans);
        let mut distrusted = HashSet::new();
        for (digest, plan) in &mut *plans {
            if blob.is_none_or(|blob| blob == digest)
                && let Some(plan) = plan.take()
            {
                self.held.fetch_sub(plan.held(), Ordering::Relaxed);
                distrusted.insert(digest.clone());
            }
        }
        for digest in &distrusted {
            tracing::warn!(
                "blob {digest} could not be put together from blobs on this machine, and is fetched as \
                 a whole: {error} (`imgctl scrub` finds damaged blobs)"
            );
        }
        !distrusted.is_empty()
    }

    /// Returns how to read a blob, decided once.
    fn plan(&self, blob: &Descriptor) -> Option<Arc<Pieces>> {
        if let Some(plan) = lock(&self.plans).get(&blob.digest) {
            return plan.clone();
        }
        let plan = match self.pieces(blob) {
            Ok(plan) => plan,
            Err(error) => {
                tracing::debug!("{}: reading the whole: {error}", blob.digest);
                None
            }
        };
        let plan = plan.map(Arc::new);
        lock(&self.plans).insert(blob.digest.clone(), plan.clone());
        plan
    }

    fn pieces(&self, blob: &Descriptor) -> Result<Option<Pieces>> {
        if !self.is_eligible(blob) || self.known.is_empty() {
            return Ok(None);
        }
        let Some((position, tail)) = self.tail(blob)? else { return Ok(None) };
        let list = usize::try_from(position.compressed).ok();
        let skipped = usize::try_from(position.offset - tail.start).ok();
        let list = list.zip(skipped).and_then(|(length, start)| {
            let end = start.checked_add(length)?;
            tail.bytes.get(start..end)
        });
        let list = list.ok_or_else(|| Error::bad_content("the list is cut off"))?;
        let _one = lock(&self.reading);
        let runs = position.runs(list)?;
        let pieces = Pieces::new(self.known.parts(&runs, blob.size), tail)?;
        let missing: u64 = pieces.missing().map(|range| range.end - range.start).sum();
        tracing::debug!(
            "{}: {missing} of {} bytes are not here, in {} ranges",
            blob.digest,
            blob.size,
            pieces.missing().count()
        );
        if !is_worth(missing, blob.size) {
            return Ok(None);
        }
        // A short list could fill the disk with the same bytes again and again.
        let (reused, different) = pieces.reused();
        if reused > different.saturating_mul(MOST_REPEATS) {
            return Err(Error::bad_content("the list repeats what is here too often"));
        }
        self.held.fetch_add(pieces.held(), Ordering::Relaxed);
        Ok(Some(pieces))
    }

    fn is_eligible(&self, blob: &Descriptor) -> bool {
        self.source.has_ranges()
            && !self.has_no_ranges.load(Ordering::Relaxed)
            && may_have_list(blob)
    }

    /// Fetches the end of a blob, from its list on.
    fn tail(&self, blob: &Descriptor) -> Result<Option<(Position, Tail)>> {
        let announced = Position::of_annotations(&blob.annotations, blob.size);
        let (position, ending) = match announced {
            Some(position) => (position, None),
            None => {
                let ending = self.fetch(blob, blob.size - TAIL.min(blob.size))?;
                match Position::of_footer(&ending.bytes, blob.size) {
                    Some(position) => (position, Some(ending)),
                    None => return Ok(None),
                }
            }
        };
        let start = position.begins();
        let held = self.held.load(Ordering::Relaxed);
        let length = blob.size - start;
        if !(FOOTER..=MOST_HELD).contains(&length) || held + length > MOST_HELD_TOGETHER {
            return Ok(None);
        }
        Ok(Some(match ending {
            Some(ending) if ending.start <= start => (position, ending),
            _ => {
                let tail = self.fetch(blob, start)?;
                (position, tail)
            }
        }))
    }

    /// Fetches the end of a blob from `start` on.
    fn fetch(&self, blob: &Descriptor, start: u64) -> Result<Tail> {
        let length = blob.size - start;
        let range = start..blob.size;
        let opened = self.source.open_ranges(blob, vec![range]);
        if let Err(error) = &opened
            && error.kind() == Kind::BadContent
        {
            tracing::debug!("{} gives no ranges: {error}", self.source.describe());
            self.has_no_ranges.store(true, Ordering::Relaxed);
        }
        let mut bytes = Vec::new();
        opened?
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(format!("cannot read blob {}", blob.digest), error))?;
        self.asked.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if bytes.len() as u64 != length {
            return Err(Error::bad_content("the end of the blob is cut off"));
        }
        Ok(Tail { start, bytes: bytes.into() })
    }
}

/// Returns whether a blob is a layer that is worth the requests for its list.
fn may_have_list(blob: &Descriptor) -> bool {
    let least = match Position::of_annotations(&blob.annotations, blob.size) {
        Some(_) => SMALLEST,
        // gzip has no list of frames.
        None if blob.media_type.ends_with("gzip") => return false,
        None => SMALLEST_UNANNOUNCED,
    };
    media_type::is_layer(&blob.media_type) && blob.urls.is_empty() && blob.size >= least
}

/// Returns whether enough of a blob of `size` bytes is here if `missing` bytes are not.
fn is_worth(missing: u64, size: u64) -> bool {
    missing <= size - size / WORTH
}

impl ImageSource for Partial<'_> {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn root(&self) -> Result<SourceDocument> {
        self.source.root()
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.source.document(descriptor)
    }

    fn lacks(&self, descriptor: &Descriptor) -> bool {
        self.source.lacks(descriptor)
    }

    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let Some(pieces) = self.plan(blob) else {
            return self.source.open(blob, offset);
        };
        let pieces = pieces.from(offset);
        let ranges: Vec<_> = pieces.missing().collect();
        let rest: Box<dyn Read + Send> = if ranges.is_empty() {
            Box::new(std::io::empty())
        } else {
            self.source.open_ranges(blob, ranges)?
        };
        Ok(Box::new(Assembled::new(pieces, rest, Arc::clone(&self.reused))))
    }

    fn local_file(&self, blob: &Descriptor) -> Option<File> {
        self.source.local_file(blob)
    }

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        self.source.admit(digest, manifests)
    }

    fn kept(&self) -> Result<Option<Kept<'_>>> {
        self.source.kept()
    }

    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        self.source.mountable(registry, digest)
    }

    fn reference(&self) -> Option<&Reference> {
        self.source.reference()
    }
}
