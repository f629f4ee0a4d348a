//! What a summary says of an image: read from its documents, never from its layers.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use crate::build::{Built, Options};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Digest, EMBEDDED_IMAGES, LayerKind, Platform, Reference};
use imgctl_base::progress::Reporter;
use imgctl_store::store::{Image, Store};
use imgctl_transfer::transfer::copy::Copier;
use imgctl_transfer::transfer::location::Location;
use imgctl_transfer::transfer::plan::{Plain, Platforms};

/// One platform's image.
#[derive(Clone, Debug)]
pub struct ImageFacts {
    pub platform: Platform,
    pub digest: Digest,
    /// Lowest first.
    pub layers: Vec<LayerFacts>,
    /// Embedded images: digests by reference.
    pub embedded: BTreeMap<String, String>,
}

/// One layer.
#[derive(Clone, Debug)]
pub struct LayerFacts {
    pub digest: Digest,
    pub kind: Option<LayerKind>,
    /// As stored, thus as transferred.
    pub size: u64,
    /// The step that made it.
    pub created_by: String,
}

impl ImageFacts {
    fn new(image: &Image) -> Self {
        let config = &image.config;
        let mut steps = config.history.iter().filter(|step| !step.empty_layer);
        let layers = image.manifest.layers.iter().map(|layer| LayerFacts {
            digest: layer.digest.clone(),
            kind: layer.layer_kind(),
            size: layer.size,
            created_by: steps.next().and_then(|step| step.created_by.clone()).unwrap_or_default(),
        });
        let list = config.config.labels.get(EMBEDDED_IMAGES);
        // A foreign image may have anything there.
        let embedded = list.and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
        Self {
            platform: config.platform(),
            digest: image.descriptor.digest.clone(),
            layers: layers.collect(),
            embedded,
        }
    }

    /// Returns the size of all layers.
    pub(crate) fn size(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add)
    }
}

/// Returns what a build made, one image per platform.
pub fn images_of_build(store: &Store, built: &Built) -> Result<Vec<ImageFacts>> {
    Ok(store.platform_images(&built.descriptor)?.iter().map(ImageFacts::new).collect())
}

/// The image that a build is compared with.
#[derive(Debug)]
pub struct Before {
    pub name: String,
    /// The images of the build's platforms; empty if there is none; or why they are not known.
    pub images: Result<Vec<ImageFacts>>,
}

/// Reads the documents of the image `name`, from the store, a registry or another place. This must
/// happen before the build, which may give its result the same name.
pub fn image_before(
    store: &Store,
    options: &Options,
    name: &str,
    reporter: &dyn Reporter,
) -> Before {
    let images = read(store, options, name, reporter).found();
    Before { name: name.to_owned(), images: images.map(Option::unwrap_or_default) }
}

fn read(
    store: &Store,
    options: &Options,
    name: &str,
    reporter: &dyn Reporter,
) -> Result<Vec<ImageFacts>> {
    let place = Location::parse(OsStr::new(name))?;
    let Some(client) = &options.base_images.client else {
        let image = store.image(name, None)?;
        return Ok(vec![ImageFacts::new(&image)]);
    };
    if let Location::Name(name) = &place
        && Reference::parse(name)?.registry() == Some(LOCAL_REGISTRY)
    {
        // No registry has such a name.
        store.resolve(name)?;
    }
    let scratch = store.scratch_directory()?;
    let source = Copier::reading(store, client, reporter).source(&place, &scratch)?;
    // A registry is asked only now.
    source.root()?;
    let mut images = Vec::new();
    for platform in &*options.platforms_or_own() {
        let only = Platforms::Only(vec![platform.clone()]);
        match Plain::read(&*source, &only) {
            Ok(plain) => images.push(ImageFacts::new(&plain.image)),
            // Built for this platform for the first time.
            Err(error) if is_other_platform(&error) => {}
            Err(error) => return Err(error.context(format!("cannot read {name}"))),
        }
    }
    Ok(images)
}

fn is_other_platform(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Usage)
}
