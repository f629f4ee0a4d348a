//! What all stages of one platform's build share: the inputs, the caches, and the images of finished
//! stages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::build::addresses::Addresses;
use crate::build::context::{self, ContextTree, ImageTree};
use crate::build::file::{Source, own_rules};
use crate::build::items::{Item, LayerTar, SourceTree};
use crate::build::layer_step::LayerMaker;
use crate::build::local_paths;
use crate::build::materials::Materials;
use crate::build::options::{Format, NamedContext, Options};
use crate::build::plan::{From, SCRATCH};
use crate::build::scope::Args;
use crate::build::step_cache::{StatCache, StepCache};
use crate::cache::inline;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::{Descriptor, Digest, ImageConfig, Platform, Reference};
use imgctl_base::progress::Reporter;
use imgctl_kubefile::ast::Kubefile;
use imgctl_layer::tree::Tree;
use imgctl_layer::{LayerPath, Toc};
use imgctl_store::store::{Lease, Named, Store};
use imgctl_transfer::transfer::{self, Input, LoadOptions};
use imgctl_trust::provenance::Material;

/// `PATH` for images that set none, and for images built from scratch (Docker, buildah).
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One layer of a stage's image.
#[derive(Clone, Debug)]
pub(super) struct ImageLayer {
    pub descriptor: Descriptor,
    pub diff_id: Digest,
}

/// The image of a stage, finished or not.
#[derive(Clone, Debug)]
pub(crate) struct StageImage {
    /// Config and history; `rootfs` is filled in when the image is written.
    pub config: ImageConfig,
    pub layers: Vec<ImageLayer>,
    /// Number of layers that come from the base image.
    pub(crate) base_layers: usize,
    /// Name and manifest digest of the base image, for annotations.
    pub base: Option<(String, Digest)>,
    /// Newest modification time of all layers made by this build, in seconds since 1970.
    pub newest: Option<i64>,
    /// What the stage has declared by ARG.
    pub args: Args,
}

impl StageImage {
    /// Returns an image without layers.
    pub(super) fn empty(platform: &Platform) -> Self {
        let mut config = ImageConfig::default();
        config.rootfs.kind = "layers".to_owned();
        let (layers, args) = (Vec::new(), Args::default());
        let mut image = Self { config, layers, base_layers: 0, base: None, newest: None, args };
        image.set_platform(platform);
        image.complete_path();
        image
    }

    /// Says that the image is for `platform`.
    pub(super) fn set_platform(&mut self, platform: &Platform) {
        let config = &mut self.config;
        config.architecture.clone_from(&platform.architecture);
        config.variant.clone_from(&platform.variant);
        config.os.clone_from(&platform.os);
        if platform.os_version.is_some() {
            config.os_version.clone_from(&platform.os_version);
        }
    }

    /// Sets `PATH` if the image does not, so that `ENV PATH=/own:$PATH` finds the usual programs (BuildKit).
    pub(super) fn complete_path(&mut self) {
        let env = &mut self.config.config.env;
        // That of Windows is its own.
        if self.config.os != "windows" && !env.iter().any(|variable| variable.starts_with("PATH="))
        {
            env.push(format!("PATH={DEFAULT_PATH}"));
        }
    }

    /// Returns the image as a tree to copy files from.
    pub(super) fn tree(&self, shared: &Shared<'_>, name: &str) -> Result<ImageTree> {
        let tocs = self.tocs(shared)?;
        let tars = self.layers.iter().map(|layer| Arc::new(shared.tar_of(layer)));
        Ok(ImageTree::new(name.to_owned(), Arc::new(Tree::from_layers(tocs)?), tars.collect()))
    }

    pub(super) fn tocs(&self, shared: &Shared<'_>) -> Result<Vec<Arc<Toc>>> {
        self.layers.iter().map(|layer| shared.toc_of(layer)).collect()
    }
}

/// State shared by all stages of one platform's build.
pub(super) struct Shared<'a> {
    pub store: &'a Store,
    pub options: &'a Options,
    pub source: &'a Source,
    pub kubefile: &'a Kubefile,
    pub context: Option<&'a ContextTree>,
    /// The platform that is built for; a stage may have another one.
    pub platform: &'a Platform,
    pub lease: &'a Lease,
    pub cache: &'a StepCache,
    pub files: &'a Mutex<StatCache>,
    pub reporter: &'a dyn Reporter,
    pub results: &'a Results,
    /// Cache mounts that a build without cache has already emptied.
    pub emptied: &'a Mutex<BTreeSet<String>>,
    pub materials: &'a Materials,
    pub addresses: &'a Addresses<'a>,
}

impl<'a> Shared<'a> {
    /// Returns the layer maker with this build's options.
    pub(crate) fn layer_maker(&self) -> LayerMaker<'a> {
        let options = self.options;
        LayerMaker {
            store: self.store,
            lease: self.lease,
            cache: self.cache,
            files: self.files,
            compression: options.compression,
            docker: options.format == Format::Docker,
            threads: options.jobs,
            timestamp: options.timestamp,
            reporter: self.reporter,
        }
    }
}

impl Shared<'_> {
    /// Returns the table of contents of a layer, which may be in a registry.
    pub(super) fn toc_of(&self, layer: &ImageLayer) -> Result<Arc<Toc>> {
        let (digest, remotes) = (&layer.descriptor.digest, self.cache.remotes());
        remotes.toc(digest, &layer.diff_id, self.reporter)
    }

    /// Returns the tar of a layer, which may be in a registry until it is read.
    pub(super) fn tar_of(&self, layer: &ImageLayer) -> LayerTar {
        LayerTar::new(self.store, layer.descriptor.digest.clone(), self.cache.remotes())
    }

    /// Returns the build context; a build from a lone Kubefile has none.
    pub(super) fn context(&self) -> Result<&ContextTree> {
        self.context.ok_or_else(|| {
            Error::usage(
                "there is no build context to copy from: only a Kubefile was read from standard \
                 input",
            )
            .hint("pass a directory as the build context and the Kubefile with `-f -`")
        })
    }

    /// Returns a `--build-context` as a tree to copy from.
    pub(crate) fn named_tree(
        &self,
        name: &str,
        platform: &Platform,
    ) -> Result<Arc<dyn SourceTree + Send + Sync>> {
        match self.options.build_contexts.get(name) {
            Some(NamedContext::Directory(path)) => Ok(Arc::new(directory_tree(name, path)?)),
            _ => {
                let image = self.named_image(name, platform)?;
                Ok(Arc::new(image.tree(self, &format!("build context {name}"))?))
            }
        }
    }

    /// Returns a `--build-context` as a base image. A directory's files are not in it yet: see
    /// [`Shared::base_files`].
    pub(crate) fn named_image(&self, name: &str, platform: &Platform) -> Result<StageImage> {
        match self.options.build_contexts.get(name) {
            Some(NamedContext::Image(image)) if image != SCRATCH => {
                self.stored_image(image, platform)
            }
            Some(NamedContext::OciLayout(path)) => self.layout_image(name, path, platform),
            _ => Ok(StageImage::empty(platform)),
        }
    }

    /// Returns the files of a directory that is the base of a stage.
    pub(crate) fn base_files(&self, base: &From) -> Result<Vec<Item>> {
        let From::Context(name) = base else { return Ok(Vec::new()) };
        let Some(NamedContext::Directory(path)) = self.options.build_contexts.get(name) else {
            return Ok(Vec::new());
        };
        let mut items = directory_tree(name, path)?.below(&LayerPath::root())?;
        items.retain(|item| !item.entry.path.is_root());
        Ok(items)
    }

    /// Returns an image of an OCI layout on disk, loaded into the store under a temporary name.
    fn layout_image(&self, context: &str, path: &Path, platform: &Platform) -> Result<StageImage> {
        let hash = blake3::hash(&context::identity(path)).to_hex();
        let name =
            Reference::parse(&format!("localhost/build-context-{}", &hash[..16]))?.qualified();
        let arbiter = self.options.base_images.arbiter();
        let (path, choice) = local_paths::layout(path);
        let tags = vec![name.clone()];
        let options = LoadOptions { tags, choice, ..LoadOptions::new(arbiter) };
        let place = || format!("cannot use the OCI layout {} as a build context", path.display());
        let loaded = transfer::load(self.store, Input::Path(&path), &options, self.reporter)
            .context(place)?;
        let loaded =
            loaded.first().ok_or_else(|| Error::bad_content("it has no image").context(place()))?;
        // By its digest: another build of this context may have removed the name or moved it to its own image.
        let image = self.image(&loaded.descriptor.digest.to_string(), platform)?;
        self.store.untag(&[Named {
            reference: Some(name),
            descriptor: Descriptor { annotations: BTreeMap::new(), ..loaded.descriptor.clone() },
            origin: None,
        }])?;
        if let Some((_, digest)) = &image.base {
            self.materials.add(Material::layout(context, platform, digest));
        }
        Ok(image)
    }

    /// Returns an image of the store, pulled first if necessary, as a stage's base.
    pub(super) fn stored_image(&self, name: &str, platform: &Platform) -> Result<StageImage> {
        let image = self.image(name, platform)?;
        if let Some((name, digest)) = &image.base {
            self.materials.add(Material::image(name, Some(platform), digest));
        }
        Ok(image)
    }

    fn image(&self, name: &str, platform: &Platform) -> Result<StageImage> {
        let images = &self.options.base_images;
        let image = images.get(self.store, name, platform, self.reporter)?;
        self.lease.hold(&image.descriptor.digest)?;
        let layers: Vec<ImageLayer> = image
            .manifest
            .layers
            .into_iter()
            .zip(image.config.rootfs.diff_ids.iter().cloned())
            .map(|(descriptor, diff_id)| ImageLayer { descriptor, diff_id })
            .collect();
        for layer in &layers {
            self.lease.hold(&layer.descriptor.digest)?;
        }
        let mut config = image.config;
        config.rootfs.diff_ids.clear();
        inline::remove(&mut config);
        let base_name = image.reference.map_or_else(|| name.to_owned(), |name| name.to_string());
        Ok(StageImage {
            config,
            base_layers: layers.len(),
            layers,
            base: Some((base_name, image.descriptor.digest)),
            newest: None,
            args: Args::default(),
        })
    }
}

fn directory_tree(name: &str, path: &Path) -> Result<ContextTree> {
    let root = Root::open(path)?;
    let rules = own_rules(&root)?;
    Ok(ContextTree::new(format!("build context {name}"), root, rules))
}

/// Finished stages, by number. Waiting for a stage that fails ends, too.
#[derive(Debug, Default)]
pub(crate) struct Results {
    done: Mutex<HashMap<usize, Option<Arc<StageImage>>>>,
    changed: Condvar,
}

impl Results {
    fn lock(&self) -> Result<MutexGuard<'_, HashMap<usize, Option<Arc<StageImage>>>>> {
        self.done.lock().map_err(|_| Error::failed("another stage of the build has failed"))
    }

    /// Returns the image of a finished stage.
    pub(super) fn get(&self, index: usize) -> Result<Arc<StageImage>> {
        self.lock()?
            .get(&index)
            .cloned()
            .flatten()
            .ok_or_else(|| Error::failed(format!("stage {index} has not been built")))
    }

    pub(super) fn put(&self, index: usize, image: Option<Arc<StageImage>>) -> Result<()> {
        self.lock()?.insert(index, image);
        self.changed.notify_all();
        Ok(())
    }

    /// Whether a stage is finished, successfully or not.
    pub(super) fn has(&self, index: usize) -> Result<bool> {
        Ok(self.lock()?.contains_key(&index))
    }

    /// Waits until all of `needs` are finished; returns false if one of them failed.
    pub(super) fn wait(&self, needs: &BTreeSet<usize>) -> Result<bool> {
        let mut done = self.lock()?;
        loop {
            let states: Vec<_> = needs.iter().map(|index| done.get(index)).collect();
            if states.iter().any(|state| matches!(state, Some(None))) {
                return Ok(false);
            }
            if states.iter().all(Option::is_some) {
                return Ok(true);
            }
            done = self
                .changed
                .wait(done)
                .map_err(|_| Error::failed("another stage of the build has failed"))?;
        }
    }
}
