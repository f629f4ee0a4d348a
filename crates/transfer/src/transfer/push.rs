//! `imgctl push`, `imgctl manifest push`: copies an image or a manifest list from the store to
//! another location, in another compression or format on request. Must not depend on the command
//! line.

use std::collections::{BTreeMap, BTreeSet};

use crate::transfer::copy::Copier;
use crate::transfer::ends::{ImageSink, ImageSource};
use crate::transfer::engine::{self, CopyOptions, Moved};
use crate::transfer::known_blobs::KnownBlobs;
use crate::transfer::location::Location;
use crate::transfer::manifest_list;
use crate::transfer::plan::{Plan, Platforms, Selection};
use crate::transfer::push_source::PushSource;
use crate::transfer::recompress_image::{self, Change, Changed};
use crate::transfer::registry::RegistrySink;
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, media_type};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Target};
use imgctl_store::store::{Named, Store};

/// Options of a push.
#[derive(Clone, Debug)]
pub struct PushOptions {
    pub platforms: Platforms,
    pub change: Change,
    /// Push only the list; its members already exist at the destination.
    pub list_only: bool,
    /// Number of blobs copied in parallel.
    pub jobs: usize,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            platforms: Platforms::All,
            change: Change::default(),
            list_only: false,
            jobs: engine::JOBS,
        }
    }
}

/// Result of a push.
#[derive(Clone, Debug)]
pub struct PushReport {
    /// The manifest or index at the destination now.
    pub root: Descriptor,
    /// The destination already had the image, so no blobs were checked or copied.
    pub up_to_date: bool,
    pub moved: Moved,
}

/// Destination of a push.
pub enum Destination<'a> {
    /// A name in a registry, with tag or digest.
    Registry(&'a Reference),
    /// Any other location.
    Other(&'a Location),
}

/// Pushes the image of the store that `image` names.
pub fn push(
    store: &Store,
    client: &Client,
    image: &Named,
    destination: &Destination<'_>,
    options: &PushOptions,
    reporter: &dyn Reporter,
) -> Result<PushReport> {
    let shown = match &image.reference {
        Some(reference) => reference.to_string(),
        None => image.descriptor.digest.to_string(),
    };
    let doing = || format!("cannot push {shown}");
    let lease = store.lease()?;
    lease.hold_all(store.parts(&image.descriptor)?.keys())?;
    let root = chosen(store, &image.descriptor, &options.platforms).context(doing)?;
    let changed = if options.change.is_nothing() {
        None
    } else {
        Some(recompress_image::change(store, &root, &options.change, reporter).context(doing)?)
    };
    let root = changed.as_ref().map_or(&root, |changed| &changed.root);
    let origins = manifest_list::origins(&image.descriptor);
    let job = Job {
        store,
        client,
        name: shown.clone(),
        root,
        changed: changed.as_ref(),
        origins: &origins,
        options,
        reporter,
    };
    match destination {
        Destination::Registry(reference) => job.to_registry(reference),
        Destination::Other(place) => job.to_place(place),
    }
    .context(doing)
}

/// Returns the manifest of the selected platform, if there is a single one: that manifest is
/// converted and pushed.
fn chosen(store: &Store, root: &Descriptor, platforms: &Platforms) -> Result<Descriptor> {
    match platforms {
        Platforms::Only(only) if only.len() == 1 && media_type::is_index(&root.media_type) => {
            Ok(store.image_at(root, only.first())?.descriptor)
        }
        Platforms::Host if media_type::is_index(&root.media_type) => {
            Ok(store.image_at(root, None)?.descriptor)
        }
        _ => Ok(root.clone()),
    }
}

struct Job<'a> {
    store: &'a Store,
    client: &'a Client,
    name: String,
    root: &'a Descriptor,
    changed: Option<&'a Changed>,
    origins: &'a BTreeMap<Digest, String>,
    options: &'a PushOptions,
    reporter: &'a dyn Reporter,
}

impl Job<'_> {
    fn to_registry(&self, reference: &Reference) -> Result<PushReport> {
        let sink = RegistrySink::new(self.client, reference)?;
        // One request detects that the image is up to date: a registry with a manifest has
        // everything the manifest references.
        let there = sink.repository().head(&Target::of(reference))?;
        if there.is_some_and(|there| there.digest == self.root.digest) {
            return Ok(PushReport {
                root: self.root.clone(),
                up_to_date: true,
                moved: Moved::default(),
            });
        }
        let known = KnownBlobs::of(self.store);
        let source = self.source(&known)?;
        if self.options.list_only {
            return self.list_only(&source, &sink);
        }
        let jobs = self.options.jobs;
        let plan = Plan::read(&source, &self.selection(), jobs)?;
        let copied = engine::copy_plan(&source, &sink, &plan, jobs, self.reporter)?;
        let layers = plan.blobs.iter().filter(|blob| blob.urls.is_empty());
        let digests: BTreeSet<&Digest> = layers.map(|blob| &blob.digest).collect();
        // A failure here only costs speed.
        if let Err(error) = known.remember(reference, digests) {
            tracing::debug!("cannot record what {reference} has: {error}");
        }
        Ok(PushReport { root: copied.root, up_to_date: false, moved: copied.moved })
    }

    fn to_place(&self, place: &Location) -> Result<PushReport> {
        if self.options.list_only {
            return Err(Error::usage("only a registry accepts a list without its members"));
        }
        let known = KnownBlobs::of(self.store);
        let source = self.source(&known)?;
        let copier = Copier {
            store: self.store,
            client: self.client,
            options: CopyOptions { selection: self.selection(), jobs: self.options.jobs },
            preserve_digests: false,
            reporter: self.reporter,
        };
        let copied = copier.write(&source, place, &self.store.scratch_directory()?)?;
        Ok(PushReport { root: copied.root, up_to_date: false, moved: copied.moved })
    }

    fn source<'a>(&'a self, known: &'a KnownBlobs) -> Result<PushSource<'a>> {
        let (name, root) = (self.name.clone(), self.root.clone());
        PushSource::new(self.store, name, root, self.changed, known)
            .with_origins(self.origins, self.client)
    }

    fn selection(&self) -> Selection {
        Selection {
            platforms: match &self.options.platforms {
                Platforms::Only(several) if several.len() > 1 => Platforms::Only(several.clone()),
                // A single platform has already been selected; the rest is copied completely.
                _ => Platforms::All,
            },
            keep_index: false,
        }
    }

    fn list_only(&self, source: &PushSource<'_>, sink: &dyn ImageSink) -> Result<PushReport> {
        if !media_type::is_index(&self.root.media_type) {
            return Err(Error::usage("only a manifest list can be pushed without its members"));
        }
        let root = source.root()?;
        sink.finish(&root.descriptor, &root.bytes)?;
        Ok(PushReport { root: root.descriptor, up_to_date: false, moved: Moved::default() })
    }
}
