//! The data of reports on images: layers, files, embedded images, packages, attached documents, and what
//! one image changes compared with another. Reads the store; must not know how reports look, and fetches
//! nothing.

mod attachments;
mod comparison;
mod configuration;
mod embedded;
mod embedded_packages;
mod files;
mod findings;
mod go_program;
mod objects;
mod values;

use std::collections::BTreeMap;

use files::Files;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::image::{Digest, LayerKind, media_type};
use imgctl_base::settings::Settings;
use imgctl_report::model::comparison::Comparison;
use imgctl_report::model::image::{
    Identity, ImageReport, Layer, Package, Packages, Setting, Totals,
};
use imgctl_report::model::{About, Finding, Kind};
use imgctl_store::store::{Image, Store};
use imgctl_trust::{sbom, sbom::contents::Contents};

/// Maximum length of a label's value, in bytes.
const LONGEST_LABEL: usize = 4096;
/// Maximum number of settings listed.
const MOST_SETTINGS: usize = 1000;
/// Annotation of image-spec: the base image's name.
const BASE_NAME: &str = "org.opencontainers.image.base.name";
/// Labels with the type of a cluster image.
const TYPE: &str = "sealos.io.type";

/// What to describe.
#[derive(Debug)]
pub struct Request<'a> {
    pub image: &'a Image,
    /// An older image to compare with.
    pub older: Option<&'a Image>,
    /// What a check of the Kubefile found.
    pub findings: Vec<Finding>,
    /// Program and version that asks.
    pub generator: &'a str,
    /// Now: RFC 3339.
    pub created: Option<String>,
}

/// Collects the data of a report. Both images are in `store`.
pub fn describe(store: &Store, request: Request<'_>) -> Result<ImageReport> {
    let image = request.image;
    let digest = &image.descriptor.digest;
    let doing = || format!("cannot describe {digest}");
    let described = Described::new(store, image).context(doing)?;
    let comparison = match request.older {
        Some(older) => {
            let before = Inspected::new(store, older)
                .context(|| format!("cannot describe {}", older.descriptor.digest))?;
            Some(comparison::compare(store, &before, &described.inspected).context(doing)?)
        }
        None => None,
    };
    let attachments = attachments::all(store, image)?;
    let mut found = request.findings;
    found.extend(findings::all(&described, &attachments));
    let Described { files, layers, inspected } = described;
    let Inspected { embedded, packages, .. } = inspected;
    Ok(ImageReport {
        about: About::new(Kind::Image, request.generator, request.created),
        image: identity(image),
        settings: settings(image),
        totals: Totals {
            compressed: layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add),
            hidden: layers.iter().map(|layer| layer.hidden).fold(0, u64::saturating_add),
            ..files.totals
        },
        layers,
        files: files.tree,
        embedded: embedded.images,
        packages,
        attachments,
        findings: found,
        comparison,
    })
}

/// Compares an image with an older one, both in `store`.
pub fn compare(store: &Store, older: &Image, image: &Image) -> Result<Comparison> {
    let doing = |image: &Image| format!("cannot describe {}", image.descriptor.digest);
    let before = Inspected::new(store, older).context(|| doing(older))?;
    let after = Inspected::new(store, image).context(|| doing(image))?;
    comparison::compare(store, &before, &after).context(|| doing(image))
}

/// One image as it is described.
struct Described<'a> {
    inspected: Inspected<'a>,
    files: Files,
    layers: Vec<Layer>,
}

impl<'a> Described<'a> {
    fn new(store: &'a Store, image: &'a Image) -> Result<Self> {
        let inspected = Inspected::new(store, image)?;
        let files = files::list(&inspected.contents, image.manifest.layers.len());
        let layers = layers(image, &files, &store.sharing(image)?);
        Ok(Self { inspected, files, layers })
    }
}

/// What is known of an image without a list of its files, of which there may be millions.
struct Inspected<'a> {
    image: &'a Image,
    contents: Contents<'a>,
    embedded: embedded::Embedded,
    packages: Packages,
}

impl<'a> Inspected<'a> {
    fn new(store: &'a Store, image: &'a Image) -> Result<Self> {
        let contents = Contents::new(store, image)?;
        let embedded = embedded::all(&contents, &image.config.platform())?;
        let (distribution, installed) = sbom::installed(&contents)?;
        let package = |package: sbom::packages::Package| Package {
            kind: package.kind.to_owned(),
            name: package.name,
            version: package.version,
            architecture: package.architecture,
        };
        let packages =
            Packages { distribution, list: installed.into_iter().map(package).collect() };
        Ok(Self { image, contents, embedded, packages })
    }
}

/// A foreign image may have anything in the label.
fn settings(image: &Image) -> Vec<Setting> {
    let settings = Settings::of_labels(&image.config.config.labels).ok().flatten();
    let all = settings.iter().flat_map(Settings::list).take(MOST_SETTINGS);
    all.map(|setting| Setting {
        name: setting.name,
        kind: setting.kind,
        description: cut(&setting.description, LONGEST_LABEL),
        default: setting.default.map(|value| cut(&value, LONGEST_LABEL)),
        required: setting.is_required,
        secret: setting.is_secret,
    })
    .collect()
}

fn identity(image: &Image) -> Identity {
    let config = &image.config.config;
    let label = |(name, value): (&String, &String)| (name.clone(), cut(value, LONGEST_LABEL));
    Identity {
        name: image.reference.as_ref().map(ToString::to_string),
        digest: image.descriptor.digest.to_string(),
        platform: image.config.platform().to_string(),
        created: image.config.created.clone(),
        image_type: config.labels.get(TYPE).cloned(),
        base: image.manifest.annotations.get(BASE_NAME).cloned(),
        entrypoint: config.entrypoint.clone().unwrap_or_default(),
        command: config.cmd.clone().unwrap_or_default(),
        labels: config.labels.iter().map(label).collect(),
    }
}

fn layers(image: &Image, files: &Files, sharing: &BTreeMap<Digest, Vec<String>>) -> Vec<Layer> {
    let mut steps = image.config.history.iter().filter(|step| !step.empty_layer);
    image
        .layers()
        .zip(&files.layers)
        .map(|((layer, diff_id), sums)| Layer {
            digest: layer.digest.to_string(),
            diff_id: diff_id.to_string(),
            kind: layer.layer_kind().map(LayerKind::as_str).map(str::to_owned),
            compression: compression(&layer.media_type).to_owned(),
            size: layer.size,
            content: sums.content,
            files: sums.files,
            hidden: sums.content.saturating_sub(sums.visible),
            instruction: steps.next().and_then(|step| step.created_by.clone()).unwrap_or_default(),
            shared_with: sharing.get(&layer.digest).cloned().unwrap_or_default(),
        })
        .collect()
}

/// Returns the compression of a layer, of which the media type tells.
fn compression(media: &str) -> &'static str {
    if media.ends_with("zstd") {
        "zstd"
    } else if media.ends_with("gzip") {
        "gzip"
    } else if media_type::is_layer(media) {
        "none"
    } else {
        "unknown"
    }
}

/// Returns at most `longest` bytes of a text.
fn cut(text: &str, longest: usize) -> String {
    if text.len() > longest {
        format!("{}…", &text[..text.floor_char_boundary(longest)])
    } else {
        text.to_owned()
    }
}
