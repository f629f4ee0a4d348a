//! `imgctl pull`: copies an image from a registry into the store; also used for a `FROM` whose
//! image is not in the store.

use std::io::Read;
use std::ops::Range;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::engine::{self, JOBS, Moved};
use crate::transfer::known_blobs::KnownBlobs;
use crate::transfer::plan::{Plan, Platforms, Selection};
use crate::transfer::registry::RegistrySource;
use crate::transfer::source::{ImageSource, SourceDocument};
use crate::transfer::store::StoreSink;
use crate::transfer::store_shelf::StoreShelf;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Target};
use imgctl_store::store::{Image, Named, Store};

/// When to contact a registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Always; unchanged content is not downloaded again.
    #[default]
    Always,
    /// Only if the image is not in the store.
    Missing,
    /// Always, but use the image in the store if no registry is reachable.
    Newer,
    /// Never.
    Never,
}

/// Layers to pull.
#[derive(Clone, Copy, Debug, Default)]
pub enum Layers {
    /// All of them.
    #[default]
    All,
    /// The layers of each image that the function returns. Others stay in the registry, and the name in the
    /// store is marked.
    Only(fn(&Image) -> Result<Vec<Digest>>),
}

/// Options of a pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    pub selection: Selection,
    pub policy: Policy,
    pub layers: Layers,
    /// Also unpack the layers.
    pub unpack: bool,
    /// Number of blobs downloaded in parallel.
    pub jobs: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            policy: Policy::default(),
            layers: Layers::default(),
            unpack: false,
            jobs: JOBS,
        }
    }
}

/// A pulled image.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The full name.
    pub reference: Reference,
    /// Manifest or index.
    pub descriptor: Descriptor,
    /// Docker's image ID, for a multi-platform image that of this machine's platform; `None` if the
    /// image does not have it.
    pub id: Option<Digest>,
    pub moved: Moved,
    pub verdict: Verdict,
}

/// Ensures that the image called `name`, full or short, is in the store, as `options` require.
pub fn pull(
    store: &Store,
    client: &Client,
    name: &Reference,
    options: &PullOptions,
    reporter: &dyn Reporter,
) -> Result<Pulled> {
    let candidates = client.candidates(name)?;
    let here =
        || std::iter::once(name).chain(&candidates).find_map(|name| find(store, name, options));
    match options.policy {
        Policy::Never | Policy::Missing => {
            if let Some(named) = here() {
                return kept(store, client, name, named);
            }
            if options.policy == Policy::Never {
                return Err(Error::not_found(format!("image {name} is not in the store"))
                    .hint("no registry was queried because the pull policy is `never`"));
            }
        }
        Policy::Always | Policy::Newer => {}
    }
    let pulled = pull_first(store, client, &candidates, options, reporter)
        .map_err(|error| error.context(format!("cannot pull {name}")).about(name.to_string()));
    match pulled {
        Err(error) if options.policy == Policy::Newer && error.kind() == Kind::Network => {
            let named = here().ok_or(error)?;
            tracing::warn!("no registry is reachable for {name}; using the image in the store");
            kept(store, client, name, named)
        }
        pulled => pulled,
    }
}

/// Returns the image in the store if nothing that the options select is missing.
fn find(store: &Store, name: &Reference, options: &PullOptions) -> Option<Named> {
    let name = name.to_string();
    let named = store.resolve(&name).ok()?;
    let descriptor = &named.descriptor;
    if let (Layers::Only(choose), true) = (options.layers, named.has_remote_layers()) {
        let image = store.image_at(descriptor, None).ok()?;
        let is_here = |layer| matches!(store.blob_size(layer), Ok(Some(_)));
        return choose(&image).ok()?.iter().all(is_here).then_some(named);
    }
    let is_here = match &options.selection.platforms {
        Platforms::Host => store.image_at(descriptor, None).is_ok(),
        Platforms::Only(several) => {
            several.iter().all(|platform| store.image_at(descriptor, Some(platform)).is_ok())
        }
        Platforms::All => true,
    };
    (is_here && store.check_complete_image(descriptor).is_ok()).then_some(named)
}

fn kept(store: &Store, client: &Client, name: &Reference, named: Named) -> Result<Pulled> {
    let verdict = Arbiter::policy(client).admit(store, &named)?;
    let Named { reference, descriptor, .. } = named;
    Ok(Pulled {
        reference: reference.unwrap_or_else(|| name.clone()),
        id: id_of(store, &descriptor),
        descriptor,
        moved: Moved::default(),
        verdict,
    })
}

fn id_of(store: &Store, descriptor: &Descriptor) -> Option<Digest> {
    let image = store.image_at(descriptor, None).ok()?;
    Some(image.id().clone())
}

/// Pulls the first of `candidates` that a registry has.
fn pull_first(
    store: &Store,
    client: &Client,
    candidates: &[Reference],
    options: &PullOptions,
    reporter: &dyn Reporter,
) -> Result<Pulled> {
    let mut failures: Vec<(&Reference, Error)> = Vec::new();
    for candidate in candidates {
        match pull_one(store, client, candidate, options, reporter) {
            Ok(pulled) => return Ok(pulled),
            // Another registry may have the image.
            Err(error) if passes_on(&error) => failures.push((candidate, error)),
            Err(error) => return Err(error),
        }
    }
    if failures.len() > 1 {
        let tried: Vec<String> =
            failures.iter().map(|(candidate, error)| format!("{candidate}: {error}")).collect();
        let kind = failures.iter().map(|(_, error)| error.kind());
        let kind = kind.reduce(|first, next| match first {
            Kind::NotFound => next,
            first => first,
        });
        return Err(Error::new(
            kind.unwrap_or(Kind::NotFound),
            format!("no registry provides it: {}", tried.join("; ")),
        )
        .hint("name the registry: REGISTRY/NAME:TAG"));
    }
    match failures.pop() {
        Some((_, error)) => Err(error),
        None => Err(Error::not_found("no registry is configured for names without one").hint(
            "name the registry, or list some as unqualified-search-registries in registries.conf",
        )),
    }
}

fn passes_on(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Denied | Kind::Network)
}

fn pull_one(
    store: &Store,
    client: &Client,
    reference: &Reference,
    options: &PullOptions,
    reporter: &dyn Reporter,
) -> Result<Pulled> {
    if reference.registry() == Some(LOCAL_REGISTRY) {
        return Err(Error::not_found(format!(
            "{reference} is not in the store, and `{LOCAL_REGISTRY}` is not a registry: it is \
             the prefix of images built here"
        )));
    }
    let source = Remembering { source: RegistrySource::new(client, reference)?, store };
    let mut selection = options.selection.clone();
    // An image requested by digest stays available under that digest.
    selection.keep_index |= reference.digest().is_some();
    let mut plan = Plan::read(&source, &selection, options.jobs)?;
    let mut sink = StoreSink::new(store, std::slice::from_ref(reference)).unpacking(options.unpack);
    if let Layers::Only(choose) = options.layers
        && plan.leave_layers(&source, choose)?
    {
        sink = sink.with_remote_layers();
    }
    let copied = engine::copy_plan(&source, &sink, &plan, options.jobs, reporter)?;
    // Later uses of the image need no registry then.
    if let Err(error) = keep_signatures(store, client, reference, &plan) {
        tracing::warn!("cannot keep the signatures of {reference}: {error}");
    }
    // Images built on this one can be pushed to the same registry without uploading these blobs.
    let blobs = plan.blobs.iter().map(|blob| &blob.digest);
    if let Err(error) = KnownBlobs::of(store).remember(reference, blobs) {
        tracing::debug!("cannot record where the blobs of {reference} are: {error}");
    }
    Ok(Pulled {
        reference: reference.clone(),
        id: copied.config.or_else(|| id_of(store, &copied.root)),
        descriptor: copied.root,
        moved: copied.moved,
        verdict: copied.verdict,
    })
}

/// Keeps the signatures that the policy demands with the image: those of what the name refers to, and
/// those of the selected manifests.
fn keep_signatures(
    store: &Store,
    client: &Client,
    reference: &Reference,
    plan: &Plan,
) -> Result<()> {
    let shelf = StoreShelf::new(store);
    let whole = &plan.source_digest;
    let is_signed = client.keep_signatures(reference, whole, &shelf)?;
    for (manifest, _) in plan.manifests.iter().filter(|(manifest, _)| manifest.digest != *whole) {
        client.keep_signatures(reference, &manifest.digest, &shelf)?;
        if is_signed && plan.root.descriptor.digest != *whole {
            let index = client.repository(reference)?.document(&Target::Digest(whole.clone()))?;
            shelf.keep_index(&manifest.digest, &index.bytes)?;
        }
    }
    Ok(())
}

/// A registry source that takes documents from the store where possible.
struct Remembering<'a> {
    source: RegistrySource,
    store: &'a Store,
}

impl ImageSource for Remembering<'_> {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn root(&self) -> Result<SourceDocument> {
        self.source.root()
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        match self.store.read_blob(&descriptor.digest, MAX_DOCUMENT) {
            Ok(bytes) => Ok(bytes),
            // Missing or damaged.
            Err(_) => self.source.document(descriptor),
        }
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.source.open(descriptor, offset)
    }

    fn has_ranges(&self) -> bool {
        self.source.has_ranges()
    }

    fn open_ranges(
        &self,
        descriptor: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        self.source.open_ranges(descriptor, ranges)
    }

    fn reference(&self) -> Option<&Reference> {
        self.source.reference()
    }

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        self.source.admit(digest, manifests)
    }

    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        self.source.mountable(registry, digest)
    }
}
