//! `imgctl push`, `imgctl manifest push`: copies an image or a manifest list from the store to
//! another location, in another compression or format on request. Must not depend on the command
//! line.
//!
//! The source of a push is the store, recompressed layers, and the origin registries of manifest
//! list members that are not in the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use crate::transfer::arbiter::Arbiter;
use crate::transfer::artifacts::{self, WithArtifacts};
use crate::transfer::copy::Copier;
use crate::transfer::engine::{self, CopyOptions, Moved};
use crate::transfer::known_blobs::KnownBlobs;
use crate::transfer::location::Location;
use crate::transfer::manifest_list;
use crate::transfer::plan::{Plan, Platforms, Selection};
use crate::transfer::recompress_image::{self, Change, Changed};
use crate::transfer::registry::RegistrySink;
use crate::transfer::sink::ImageSink;
use crate::transfer::source::{ImageSource, Kept, SourceDocument, from_offset};
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Reference, Verdict, media_type};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Repository, Target};
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
    let verdict = Arbiter::policy(client).admit_output(store, image).context(doing)?;
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
        verdict,
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
    verdict: Verdict,
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
        let kept = artifacts::of(self.store, self.root)?;
        if there.is_some_and(|there| there.digest == self.root.digest) {
            artifacts::push(&kept, sink.repository())?;
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
        let sink = WithArtifacts::new(sink, Some(kept));
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
            // The source has its verdict.
            arbiter: Arbiter::everything(),
            options: CopyOptions { selection: self.selection(), jobs: self.options.jobs },
            preserve_digests: false,
            reporter: self.reporter,
        };
        let copied = copier.write(&source, place, &self.store.scratch_directory()?)?;
        Ok(PushReport { root: copied.root, up_to_date: false, moved: copied.moved })
    }

    fn source<'a>(&'a self, known: &'a KnownBlobs) -> Result<PushSource<'a>> {
        let (name, root) = (self.name.clone(), self.root.clone());
        PushSource::new(self.store, name, root, self.changed, known, self.verdict.clone())
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
        sink.finish(&root.descriptor, &root.bytes, &self.verdict)?;
        Ok(PushReport { root: root.descriptor, up_to_date: false, moved: Moved::default() })
    }
}

/// An image or list of the store that is being pushed.
pub(super) struct PushSource<'a> {
    store: &'a Store,
    name: String,
    root: Descriptor,
    changed: Option<&'a Changed>,
    known: &'a KnownBlobs,
    verdict: Verdict,
    /// The client that reads members of the list elsewhere.
    client: Option<Client>,
    /// Repositories that hold members of the list, with their names.
    origins: HashMap<Digest, (Reference, Repository)>,
    /// Maps each blob below such a member to the member.
    members: Mutex<HashMap<Digest, Digest>>,
}

impl<'a> PushSource<'a> {
    /// Creates a source without origins; `name` appears in messages.
    pub(super) fn new(
        store: &'a Store,
        name: String,
        root: Descriptor,
        changed: Option<&'a Changed>,
        known: &'a KnownBlobs,
        verdict: Verdict,
    ) -> Self {
        Self {
            store,
            name,
            root,
            changed,
            known,
            verdict,
            client: None,
            origins: HashMap::new(),
            members: Mutex::default(),
        }
    }

    /// Sets the origins of members that are not in the store.
    pub(super) fn with_origins(
        mut self,
        origins: &BTreeMap<Digest, String>,
        client: &Client,
    ) -> Result<Self> {
        self.client = Some(client.clone());
        for (digest, name) in origins {
            let name = Reference::parse(name)?;
            let repository = client.repository(&name)?;
            self.origins.insert(digest.clone(), (name, repository));
        }
        Ok(self)
    }

    /// Returns the repository that holds a list member or a blob of one.
    fn origin_of(&self, digest: &Digest) -> Option<&(Reference, Repository)> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        self.origins.get(members.get(digest).unwrap_or(digest))
    }

    /// Records that everything a document references is at the same origin as the document.
    fn spread(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let parts: Vec<Descriptor> = match Document::parse(bytes, Some(&descriptor.media_type))? {
            Document::Index(index) => index.manifests,
            Document::Manifest(manifest) => {
                let config = std::iter::once(manifest.config);
                config.chain(manifest.layers).collect()
            }
        };
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = &descriptor.digest;
        let member = members.get(digest).unwrap_or(digest).clone();
        for part in parts {
            members.entry(part.digest).or_insert_with(|| member.clone());
        }
        Ok(())
    }

    /// Opens a blob that is on this machine.
    fn stored(&self, digest: &Digest) -> Result<File> {
        match self.changed {
            Some(changed) => changed.open(digest),
            None => self.store.open_blob(digest),
        }
    }

    fn missing(&self, what: &str, digest: &Digest) -> Error {
        Error::not_found(format!("{what} {digest} of {} is not in the store", self.name)).hint(
            "pull the image with --all-platforms, or push only the platforms in the store with \
               --platform",
        )
    }
}

impl ImageSource for PushSource<'_> {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn root(&self) -> Result<SourceDocument> {
        Ok(SourceDocument {
            bytes: self.store.read_blob(&self.root.digest, MAX_DOCUMENT)?,
            descriptor: self.root.clone(),
        })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        match self.store.read_blob(&descriptor.digest, MAX_DOCUMENT) {
            Err(error) if error.kind() == Kind::NotFound => {}
            read => return read,
        }
        let Some((_, repository)) = self.origin_of(&descriptor.digest) else {
            return Err(self.missing("manifest", &descriptor.digest));
        };
        let target = Target::Digest(descriptor.digest.clone());
        let bytes = repository.document(&target)?.bytes;
        self.spread(descriptor, &bytes)?;
        Ok(bytes)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let digest = &descriptor.digest;
        match self.stored(digest) {
            Ok(file) => from_offset(file, offset, digest),
            Err(error) if error.kind() == Kind::NotFound => match self.origin_of(digest) {
                Some((_, repository)) => repository.blob(descriptor, offset),
                None => Err(self.missing("blob", digest)),
            },
            Err(error) => Err(error),
        }
    }

    fn local_file(&self, descriptor: &Descriptor) -> Option<File> {
        self.stored(&descriptor.digest).ok()
    }

    fn admit(&self, _: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        // Members of a list that a registry has are copied from there.
        for digest in manifests {
            if let (Some((name, _)), Some(client)) = (self.origins.get(digest), &self.client) {
                let name = Reference::parse(&format!("{}@{digest}", name.name()))?;
                let _admitted: Verdict =
                    client.admit(&name, digest, std::slice::from_ref(digest))?;
            }
        }
        Ok(self.verdict.clone())
    }

    fn kept(&self) -> Result<Option<Kept<'_>>> {
        artifacts::of(self.store, &self.root).map(Some)
    }

    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let mut all: Vec<String> = self
            .origin_of(digest)
            .filter(|(name, _)| name.registry() == Some(registry))
            .map(|(name, _)| name.repository().to_owned())
            .into_iter()
            .collect();
        for name in self.known.repositories(registry, digest) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}
