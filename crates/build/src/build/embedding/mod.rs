//! Embedded container images: found in the context, resolved before the first step, and written as
//! registry layers after the last one.

mod layers;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::build::context::{ContextTree, ImageTree};
use crate::build::context_files::Files;
use crate::build::file;
use crate::build::lock_file::{self, LockFile};
use crate::build::options::{LockUse, Options};
use crate::build::shared::{ImageLayer, Shared, StageImage};
use crate::build::step_cache::{CachedLayer, StatCache};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::{Descriptor, Digest, EMBEDDED_IMAGES, History, Platform, Verdict};
use imgctl_base::progress::Reporter;
use imgctl_embed::found::FoundArchive;
use imgctl_embed::plan::{self, Present};
use imgctl_embed::resolve::{ResolvedImage, Resolver, Wanted};
use imgctl_embed::search::{self, SearchOptions, names};
use imgctl_embed::{ContextFiles, Found, FoundImage, Skipped};
use imgctl_layer::LayerPath;
use imgctl_store::store::{Named, Store};
use imgctl_transfer::transfer::{self, Input, LoadOptions};

/// Annotation of a registry layer that lists its content, for people.
const LAYER_IMAGES: &str = "io.imgctl.layer.images";
/// Maximum size of a link file, in bytes: an algorithm, a colon and a digest.
const MAX_LINK: u64 = 256;

/// Returns the archives in a context whose images a build embeds, as paths of the context.
pub(super) fn archives(context: &ContextTree) -> Result<Vec<String>> {
    let found = search::archives(&Files::of(context))?;
    Ok(found.into_iter().map(|archive| archive.path).collect())
}

/// The images that a build embeds.
pub(super) struct Embedding {
    images: Vec<ResolvedImage>,
    /// Layers that this build has made, by key, for reuse in the images of all platforms.
    made: Mutex<HashMap<String, CachedLayer>>,
}

/// Inputs for finding images before a build.
struct Question<'a> {
    store: &'a Store,
    options: &'a Options,
    context: Option<&'a ContextTree>,
    platforms: &'a [Platform],
    /// Knows files that name no image.
    known: Option<&'a Mutex<StatCache>>,
    reporter: &'a dyn Reporter,
}

impl Question<'_> {
    fn search(&self) -> Result<Found> {
        match self.context {
            Some(context) => {
                let files = Files { context, known: self.known };
                search::search(&files, &self.options.embed.search)
            }
            None => search::search(&NoFiles, &self.options.embed.search),
        }
    }

    fn wanted(&self, found: &Found) -> Result<Vec<Wanted>> {
        let mut wanted: Vec<Wanted> = found
            .images
            .iter()
            .map(|image| Wanted {
                reference: image.reference.clone(),
                places: image.places.clone(),
                stored: None,
            })
            .collect();
        for archive in &found.archives {
            let stored = Some(self.load(archive)?);
            let places = vec![archive.place.clone()];
            // An archive in the context takes precedence over a registry.
            wanted.retain(|image| image.reference != archive.reference);
            wanted.push(Wanted { reference: archive.reference.clone(), places, stored });
        }
        wanted.sort_by(|a, b| a.reference.cmp(&b.reference));
        wanted.dedup_by(|a, b| a.reference == b.reference);
        Ok(wanted)
    }

    /// Loads an archive's image into the store under a temporary name.
    fn load(&self, archive: &FoundArchive) -> Result<Descriptor> {
        let context = self.context.ok_or_else(|| Error::usage("there is no build context"))?;
        let file = context
            .open(&LayerPath::parse(archive.path.as_bytes())?)
            .context(|| archive.place.to_string())?;
        let hash = blake3::hash(archive.path.as_bytes()).to_hex();
        let name = names::normalise(&format!("localhost/embedded-archive-{}", &hash[..16]))?;
        let arbiter = self.options.base_images.arbiter();
        let options = LoadOptions { tags: vec![name.clone()], ..LoadOptions::new(arbiter.clone()) };
        let input = Input::Stream(Box::new(file));
        let loaded = transfer::load(self.store, input, &options, self.reporter)
            .context(|| format!("{}: cannot use {}", archive.place, archive.path))?;
        // From here on, this process holds the image, so that the name can be removed.
        let image = loaded
            .first()
            .ok_or_else(|| Error::bad_content(format!("{} has no image", archive.path)))?;
        self.store.image_at(&image.descriptor, None)?;
        // The name that the image gets in the embedded registry.
        let (embedded, origin) = (Some(&archive.reference), &image.origin);
        let _admitted: Verdict =
            arbiter.admit_arriving(self.store, embedded, &image.descriptor, origin)?;
        // Another build of this context may have removed the name or moved it to its own image.
        self.store.untag(&[Named {
            reference: Some(name),
            // The archive's own names for the image are irrelevant here.
            descriptor: Descriptor { annotations: BTreeMap::new(), ..image.descriptor.clone() },
            origin: None,
        }])?;
        Ok(image.descriptor.clone())
    }
}

/// Used without a context: there are no files.
struct NoFiles;

impl ContextFiles for NoFiles {
    fn list(&self, _directory: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn read(&self, path: &str, _limit: u64) -> Result<Vec<u8>> {
        Err(Error::not_found(format!("{path} does not exist")))
    }
}

/// Finds and resolves the images of a build; returns `None` if there are none or embedding is
/// disabled.
pub(super) fn prepare(
    store: &Store,
    options: &Options,
    context: Option<&ContextTree>,
    platforms: &[Platform],
    known: &Mutex<StatCache>,
    lock: &mut LockFile,
    reporter: &dyn Reporter,
) -> Result<Option<Embedding>> {
    if !options.embed.save {
        return Ok(None);
    }
    let known = Some(known);
    let question = Question { store, options, context, platforms, known, reporter };
    let found = question.search()?;
    for skipped in &found.skipped {
        let (text, place, reason) = (&skipped.text, &skipped.place, &skipped.reason);
        tracing::info!("{place}: skipping `{text}`: {reason}");
    }
    lock.check(&found)?;
    let wanted = question.wanted(&found)?;
    if wanted.is_empty() {
        lock.update_images(options, &[], reporter)?;
        return Ok(None);
    }
    reporter.note(&format!(
        "{} container {} to embed, {} skipped (--images-report lists them)",
        wanted.len(),
        if wanted.len() == 1 { "image" } else { "images" },
        found.skipped.len()
    ));
    let images = resolver(&question, lock.in_use()).resolve_all(&wanted)?;
    lock.update_images(options, &images, reporter)?;
    Ok(Some(Embedding { images, made: Mutex::default() }))
}

fn resolver<'a>(
    question: &'a Question<'a>,
    lock: Option<&'a imgctl_embed::lock::Lock>,
) -> Resolver<'a> {
    Resolver {
        store: question.store,
        client: question.options.base_images.client.as_ref(),
        lock,
        platforms: question.platforms,
        all: question.options.embed.all,
        parallel: question.options.embed.pulls,
        reporter: question.reporter,
    }
}

/// The tree of an image, queried for files of the embedded registry.
struct ImageFiles(ImageTree);

impl Present for ImageFiles {
    fn size(&self, path: &str) -> Option<u64> {
        self.0.file_size(&LayerPath::parse(path.as_bytes()).ok()?)
    }

    fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let path = LayerPath::parse(path.as_bytes())?;
        self.0.read_small(&path, MAX_LINK)
    }
}

impl Embedding {
    /// Adds the registry layers on top of a finished image.
    pub(super) fn add_to(&self, shared: &Shared<'_>, mut image: StageImage) -> Result<StageImage> {
        let tree = ImageFiles(image.tree(shared, "the image")?);
        let naming = shared.options.embed.naming;
        let plans = plan::plan(&self.images, naming, &tree)?;
        let layers = layers::write(shared, &self.images, &plans, &self.made)?;
        for (plan, layer) in plans.iter().zip(layers) {
            let mut descriptor = layer.descriptor;
            descriptor.annotations.insert(LAYER_IMAGES.to_owned(), plan.title.clone());
            image.layers.push(ImageLayer { descriptor, diff_id: layer.diff_id });
            image.config.history.push(History {
                created_by: Some(format!("imgctl build: embed {}", plan.title)),
                comment: Some("registry layer".to_owned()),
                ..History::default()
            });
        }
        let labels = &mut image.config.config.labels;
        // The images of the base are still in its layers.
        let mut list: BTreeMap<String, String> = labels
            .get(EMBEDDED_IMAGES)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        list.extend(
            self.images
                .iter()
                .map(|image| (image.reference.to_string(), image.root.digest.to_string())),
        );
        let list = serde_json::to_string(&list)
            .map_err(|error| Error::failed("cannot write the list of images").caused_by(error))?;
        labels.insert(EMBEDDED_IMAGES.to_owned(), list);
        Ok(image)
    }
}

impl Embedding {
    /// Forgets the layers made so far, before the build is repeated.
    pub(super) fn restart(&self) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Returns the blobs needed to resolve an image offline, besides its layers: documents and configs.
fn documents_of(image: &ResolvedImage) -> impl Iterator<Item = Digest> {
    let documents = image.documents.iter();
    let documents = documents.map(|document| &document.descriptor.digest);
    documents.chain(&image.configs).cloned()
}

/// Shared with the threads that write layers.
type Made = Mutex<HashMap<String, CachedLayer>>;

/// All images found and skipped.
#[derive(Debug)]
pub struct Report {
    pub images: Vec<ReportedImage>,
    pub skipped: Vec<Skipped>,
}

/// One image of the report.
#[derive(Debug)]
pub struct ReportedImage {
    pub found: FoundImage,
    /// The image's repository in the embedded registry.
    pub repository: String,
    /// Digest in the name or in the lock, if that counts.
    pub digest: Option<Digest>,
    /// The resolved image, or why it could not be resolved; `None` if its registry is not asked.
    pub resolved: Option<Result<ResolvedImage>>,
}

/// Searches as a build would. Registries are asked only to update the lock, which is written if all
/// images are there; one that is not appears in the report and is not an error.
pub fn report(store: &Store, options: &Options, reporter: &dyn Reporter) -> Result<Report> {
    let (directory, source) = file::load(store, options)?;
    let context = file::context_tree(options, directory.as_ref(), &source)?;
    let platforms = &*options.platforms_or_own();
    let (context, known) = (context.as_ref(), None);
    let mut lock = lock_file::read(options, context)?;
    lock.check_charts(context, reporter)?;
    let question = Question { store, options, context, platforms, known, reporter };
    let found = question.search()?;
    lock.check(&found)?;
    let is_asked = options.embed.lock == LockUse::Update;
    // Archives of the context are at hand.
    let (asked, named): (Vec<Wanted>, Vec<Wanted>) = question
        .wanted(&found)?
        .into_iter()
        .partition(|wanted| is_asked || wanted.stored.is_some());
    let resolved = resolver(&question, lock.in_use()).try_all(&asked);
    let resolved = asked.into_iter().zip(resolved.into_iter().map(Some));
    let reported = |(wanted, resolved): (Wanted, Option<Result<ResolvedImage>>)| ReportedImage {
        repository: options.embed.naming.repository(&wanted.reference),
        digest: wanted
            .reference
            .digest()
            .or_else(|| lock.in_use()?.digest(&wanted.reference))
            .cloned(),
        found: FoundImage { reference: wanted.reference, places: wanted.places },
        resolved,
    };
    let named = named.into_iter().map(|wanted| (wanted, None));
    let mut images: Vec<ReportedImage> = resolved.chain(named).map(reported).collect();
    images.sort_by(|a, b| a.found.reference.cmp(&b.found.reference));
    let resolved = images.iter().filter_map(|image| image.resolved.as_ref()?.as_ref().ok());
    let resolved: Vec<ResolvedImage> = resolved.cloned().collect();
    if resolved.len() == images.len() {
        lock.update_images(options, &resolved, reporter)?;
    }
    Ok(Report { images, skipped: found.skipped })
}

/// Searches `directory` as a build with that context would, without resolving anything.
pub fn scan(directory: &Path, options: &SearchOptions) -> Result<Found> {
    let root = Root::open(directory)?;
    let rules = file::own_rules(&root)?;
    let context = ContextTree::new(directory.display().to_string(), root, rules);
    search::search(&Files::of(&context), options)
}
