//! The one path by which images are copied: read the documents, transfer the missing blobs (largest
//! first, several in parallel), then the documents, children first, then the name.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::transfer::partial::Partial;
use crate::transfer::partial::local::LocalBlobs;
use crate::transfer::plan::{Plan, Selection};
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource, SourceDocument};
use imgctl_base::error::{Context, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Verdict};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_base::workers;

/// Default number of blobs copied in parallel.
pub const JOBS: usize = 6;

/// Options of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    pub selection: Selection,
    /// Number of blobs copied in parallel.
    pub jobs: usize,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { selection: Selection::default(), jobs: JOBS }
    }
}

/// Result of a copy.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The manifest or index that the name now refers to.
    pub root: Descriptor,
    /// The digest of the config, if the root is one image's manifest.
    pub config: Option<Digest>,
    pub moved: Moved,
    /// What the policy said about the source.
    pub verdict: Verdict,
}

/// Blob and byte counts of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Blobs read from the source.
    pub copied: u64,
    /// Blobs that the receiver mounted from another of its repositories.
    pub mounted: u64,
    /// Blobs that already existed at the receiver.
    pub existed: u64,
    /// Bytes read from the source.
    pub bytes: u64,
    /// Bytes of copied blobs that came from other blobs on this machine.
    pub reused: u64,
    /// Total size of all blobs, in bytes.
    pub total: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.copied += other.copied;
        self.mounted += other.mounted;
        self.existed += other.existed;
        self.bytes += other.bytes;
        self.reused += other.reused;
        self.total += other.total;
    }
}

/// Copies a planned image. Parts of its blobs that blobs of the sink have are not read from the source.
pub(crate) fn copy_plan(
    source: &dyn ImageSource,
    sink: &dyn ImageSink,
    plan: &Plan,
    jobs: usize,
    reporter: &dyn Reporter,
) -> Result<Copied> {
    copy_near(source, sink, plan, jobs, None, reporter)
}

/// Like [`copy_plan`], with further blobs on this machine.
pub(crate) fn copy_near(
    source: &dyn ImageSource,
    sink: &dyn ImageSink,
    plan: &Plan,
    jobs: usize,
    near: Option<Box<dyn LocalBlobs>>,
    reporter: &dyn Reporter,
) -> Result<Copied> {
    let local = if source.has_ranges() {
        sink.local().into_iter().chain(near).collect()
    } else {
        Vec::new()
    };
    let source = &Partial::new(source, local);
    let manifests: Vec<Digest> =
        plan.manifests.iter().map(|(descriptor, _)| descriptor.digest.clone()).collect();
    let verdict = source.admit(&plan.source_digest, &manifests)?;
    let title = format!("copying {}", source.describe());
    let task = reporter.start(&title, Unit::Bytes, Some(plan.total()));
    let moved = run(source, sink, plan, &verdict, jobs, &|bytes| task.advance(bytes))
        .context(|| format!("cannot copy {} to {}", source.describe(), sink.describe()))?;
    task.done(&format!("copied {}", source.describe()));
    let config = plan
        .manifests
        .iter()
        .find(|(descriptor, _)| descriptor.digest == plan.root.descriptor.digest);
    Ok(Copied {
        root: plan.root.descriptor.clone(),
        config: config.map(|(_, manifest)| manifest.config.digest.clone()),
        moved,
        verdict,
    })
}

fn run(
    source: &Partial<'_>,
    sink: &dyn ImageSink,
    plan: &Plan,
    verdict: &Verdict,
    jobs: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Moved> {
    let stop = Arc::new(AtomicBool::new(false));
    let bytes = AtomicU64::new(0);
    let moved = |count| {
        bytes.fetch_add(count, Ordering::Relaxed);
        progress(count);
    };
    let blobs = Blobs { source, stop: Arc::clone(&stop), moved: &moved, mount_from: Vec::new() };
    let mut prepared = sink.prepare(plan, &blobs);
    if let Err(error) = &prepared
        && source.distrust(None, error)
    {
        prepared = sink.prepare(plan, &blobs);
    }
    let prepared = prepared?;
    let (copied, mounted, existed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    workers::for_each(&plan.blobs, jobs, &stop, |blob| {
        let mut put = put_blob(sink, blob, &blobs);
        if let Err(error) = &put
            && !stop.load(Ordering::Relaxed)
            && source.distrust(Some(&blob.digest), error)
        {
            put = put_blob(sink, blob, &blobs);
        }
        let put = put?;
        source.forget(&blob.digest);
        let was_prepared = prepared.contains(&blob.digest);
        if !was_prepared && put != Put::Copied {
            progress(blob.size);
        }
        let counter = match put {
            _ if was_prepared => &copied,
            Put::Copied => &copied,
            Put::Mounted => &mounted,
            Put::Existed => &existed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })?;
    for document in &plan.documents {
        let SourceDocument { bytes, descriptor } = document;
        sink.put_document(descriptor, bytes)
            .context(|| format!("cannot write manifest {}", descriptor.digest))?;
    }
    sink.finish(&plan.root.descriptor, &plan.root.bytes, verdict)?;
    let (reused, asked) = source.counts();
    let bytes = bytes.into_inner().saturating_sub(reused).saturating_add(asked);
    Ok(Moved {
        copied: copied.into_inner(),
        mounted: mounted.into_inner(),
        existed: existed.into_inner(),
        bytes,
        reused,
        total: plan.total(),
    })
}

fn put_blob(sink: &dyn ImageSink, blob: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
    // Layers that must not be distributed remain at their URLs, unless the sink accepts them.
    let is_foreign = !blob.urls.is_empty();
    if is_foreign && !sink.takes_foreign_layers() {
        return Ok(Put::Existed);
    }
    match sink.put_blob(blob, blobs) {
        Err(error) if is_foreign && matches!(error.kind(), Kind::NotFound | Kind::Network) => {
            tracing::warn!("layer {} is not copied and remains at its URLs: {error}", blob.digest);
            Ok(Put::Existed)
        }
        put => put.context(|| format!("cannot copy blob {}", blob.digest)),
    }
}
