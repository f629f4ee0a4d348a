//! Delivers what was built: the image to files, to registries and into a manifest list of the store,
//! the build cache to its places. Tags in registries are written last, so that an earlier failure
//! leaves them unchanged.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::build::options::{Built, Form, Options};
use crate::cache::Exported;
use crate::cache::export::export;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::{Origin, Reference};
use imgctl_base::progress::Reporter;
use imgctl_layer::{Compression, LayerPath};
use imgctl_registry::{Client, Repository};
use imgctl_store::mount::{checkout, tar_export};
use imgctl_store::store::{Image, Named, Store};
use imgctl_transfer::transfer::arbiter::Arbiter;
use imgctl_transfer::transfer::engine::JOBS;
use imgctl_transfer::transfer::manifest_list::{self, Choice, Details, ManifestList};
use imgctl_transfer::transfer::publish::{self, Place, Published};
use imgctl_transfer::transfer::{self, ArchiveFormat, Output, SaveOptions};
use imgctl_trust::{
    referrer,
    referrer::{Attachment, Content},
};

/// All destinations of an image beside the store.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// The manifest list of the store that gets the image; created if it does not exist.
    pub list: Option<Reference>,
    pub exports: Vec<Export>,
    pub places: Vec<Place>,
    pub form: Form,
    /// Whether files go to a directory for each platform; `None` = if there are several.
    pub split: Option<bool>,
}

/// An image in a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    Archive {
        format: ArchiveFormat,
        to: To,
        /// Names in the archive; empty = those of the image.
        names: Vec<Reference>,
    },
    /// The files of the image in a directory; [`Delivery::split`]: in a directory for each platform.
    Files(PathBuf),
    /// The files of the image in a tar; [`Delivery::split`]: in a directory for each platform.
    Tar(To),
}

/// A file, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    Path(PathBuf),
    Stdout,
}

/// Opens standard output for an archive.
pub type Stdout<'a> = dyn Fn() -> Box<dyn Write + Send> + 'a;

impl Delivery {
    /// Fails if an output cannot have what will be built; called before the build.
    pub fn check(&self, options: &Options) -> Result<()> {
        self.check_platforms(options.platforms.len())?;
        let to_stdout = |export: &&Export| {
            matches!(export, Export::Archive { to: To::Stdout, .. } | Export::Tar(To::Stdout))
        };
        if self.exports.iter().filter(to_stdout).count() > 1 {
            return Err(Error::usage("only one output can go to standard output"));
        }
        match &self.list {
            Some(list) if options.tags.iter().any(|tag| tag.qualified() == list.qualified()) => {
                Err(Error::usage(format!("{list} cannot name both the image and a manifest list"))
                    .hint("give -t and --manifest different names"))
            }
            _ => Ok(()),
        }
    }

    fn check_platforms(&self, platforms: usize) -> Result<()> {
        let is_for_one = |export: &Export| {
            matches!(export, Export::Archive { format: ArchiveFormat::DockerArchive, .. })
        };
        let is_files = |export: &Export| matches!(export, Export::Files(_) | Export::Tar(_));
        if platforms > 1 && self.split == Some(false) && self.exports.iter().any(is_files) {
            return Err(Error::usage(
                "platform-split=false: files of several platforms need a directory each",
            )
            .hint("leave it out, or build one platform"));
        }
        if platforms > 1 && self.exports.iter().any(is_for_one) {
            let why = format!("a docker archive holds one platform, and {platforms} are built");
            return Err(Error::usage(why).hint("use type=oci, or build one platform"));
        }
        Ok(())
    }

    /// Returns whether anything goes to standard output.
    pub fn uses_stdout(&self) -> bool {
        let is_stdout = |export: &Export| match export {
            Export::Archive { to, .. } | Export::Tar(to) => *to == To::Stdout,
            Export::Files(_) => false,
        };
        self.exports.iter().any(is_stdout)
    }
}

/// Delivers the built image; returns the registry names that refer to it now.
pub fn deliver(
    store: &Store,
    client: &Client,
    built: &Built,
    delivery: &Delivery,
    stdout: &Stdout<'_>,
    reporter: &dyn Reporter,
) -> Result<Vec<Published>> {
    delivery.check_platforms(built.manifests.len())?;
    let count = built.manifests.len();
    let split = delivery.split.unwrap_or(count > 1 || built.is_list);
    let job = Job { store, built, split, stdout, reporter };
    for export in &delivery.exports {
        job.export(export).context(|| format!("the image is built, but not in {export}"))?;
    }
    let mut image = Named { reference: built.names.first().cloned(), ..job.unnamed() };
    manifest_list::set_origins(&mut image.descriptor, &built.origins)?;
    let attach = |repository: &Repository| match delivery.form {
        Form::Index => Ok(()),
        Form::Referrers | Form::Both => job.attach(repository),
    };
    let published =
        publish::publish(store, client, &image, &delivery.places, JOBS, &attach, reporter)
            .context(|| "the image is built, but not pushed".to_owned())?;
    if !built.is_stored() {
        let (count, plural) = match built.origins.len() {
            1 => (1, ""),
            count => (count, "s"),
        };
        reporter.note(&format!(
            "{count} layer{plural} stayed in the registry, so the store does not name the image \
             (--load fetches what is missing)"
        ));
    }
    if let Some(list) = &delivery.list {
        job.add_to(list, &Arbiter::policy(client))
            .context(|| format!("the image is built, but not in the list {list}"))?;
    }
    Ok(published)
}

/// Writes the caches of `--cache-to`, after [`deliver`], so that pushed layers are not sent again. A
/// failure is a warning, unless the cache's options say otherwise.
pub fn export_cache(
    store: &Store,
    options: &Options,
    built: &Built,
    reporter: &dyn Reporter,
) -> Result<Vec<Exported>> {
    let client = options.base_images.client.as_ref();
    let today = u32::try_from(options.now / 86_400).unwrap_or(0);
    let mut exported = Vec::new();
    for target in &options.cache.to {
        let place = &target.place;
        let written = export(target, &built.cache, &built.imported, store, client, today)
            .context(|| format!("cannot write the build cache {place}"));
        match written {
            Ok(cache) => {
                let how = if cache.unchanged { "is up to date" } else { "is written" };
                reporter.note(&format!("the build cache {place} {how} (steps: {})", cache.steps));
                exported.push(cache);
            }
            Err(error) if target.ignore_error => tracing::warn!("{}", error.chain().join(": ")),
            Err(error) => return Err(error),
        }
    }
    Ok(exported)
}

struct Job<'a> {
    store: &'a Store,
    built: &'a Built,
    split: bool,
    stdout: &'a Stdout<'a>,
    reporter: &'a dyn Reporter,
}

impl Job<'_> {
    fn unnamed(&self) -> Named {
        Named {
            reference: None,
            descriptor: self.built.descriptor.clone(),
            origin: Some(Origin::Built),
        }
    }

    fn add_to(&self, list: &Reference, arbiter: &Arbiter) -> Result<()> {
        let (built, all) = (self.unnamed(), Choice::All);
        let members = manifest_list::in_store(self.store, &built, &all, arbiter)?;
        let mut list = ManifestList::create(self.store, list, true, arbiter)?;
        for member in members {
            list.add(member, &Details::default())?;
        }
        list.save().map(drop)
    }

    fn export(&self, export: &Export) -> Result<()> {
        match export {
            Export::Archive { format, to, names } => {
                let named =
                    |name: &Reference| Named { reference: Some(name.clone()), ..self.unnamed() };
                let names = if names.is_empty() { &self.built.names } else { names };
                let mut images: Vec<Named> = names.iter().map(named).collect();
                if images.is_empty() {
                    images.push(self.unnamed());
                }
                let output = match to {
                    To::Path(path) => Output::Path(path),
                    To::Stdout => Output::Stream((self.stdout)()),
                };
                // Of an index with attestations, the docker formats take the image.
                let options = SaveOptions { format: *format, ..SaveOptions::default() };
                transfer::save(self.store, &images, &options, output, self.reporter)
            }
            Export::Files(directory) => self.files(directory),
            Export::Tar(to) => self.tar(to),
        }
    }

    /// Writes the files of each platform to one tar.
    fn tar(&self, to: &To) -> Result<()> {
        let count = self.built.manifests.len();
        let images = (0..count).map(|index| self.image(index)).collect::<Result<Vec<_>>>()?;
        let mut trees = Vec::with_capacity(count);
        for image in &images {
            let directory = if self.split {
                LayerPath::parse(directory_of(image).as_bytes())?
            } else {
                LayerPath::root()
            };
            trees.push((directory, image));
        }
        let (store, none, reporter) = (self.store, Compression::None, self.reporter);
        match to {
            To::Path(path) => tar_export::all_to_file(store, &trees, path, none, reporter),
            To::Stdout => {
                let stdout = (self.stdout)();
                tar_export::all_to_writer(store, &trees, stdout, none, reporter).map(drop)
            }
        }
    }

    fn image(&self, index: usize) -> Result<Image> {
        let manifest = self.built.manifests.get(index);
        let manifest = manifest.ok_or_else(|| Error::failed("no image was built"))?;
        self.store.image_at(manifest, None)
    }

    /// Writes the files of each platform, with the documents about them, as BuildKit does.
    fn files(&self, directory: &Path) -> Result<()> {
        for index in 0..self.built.manifests.len() {
            let image = self.image(index)?;
            let target = if self.split {
                directory.join(directory_of(&image))
            } else {
                directory.to_owned()
            };
            for note in checkout::export(self.store, &image, &target, self.reporter)? {
                self.reporter.note(&note);
            }
            for document in self.built.attested.get(index).into_iter().flat_map(|a| &a.documents) {
                let path = target.join(document.file_name());
                // The image may have a link of this name, which leads anywhere.
                atomic::write_with(&path, 0o644, Durability::Atomic, |file| {
                    document.content().copy_to(file)
                })?;
            }
        }
        Ok(())
    }

    /// Attaches the documents to the images, which `repository` has.
    fn attach(&self, repository: &Repository) -> Result<()> {
        for attested in &self.built.attested {
            for document in &attested.documents {
                let attachment = Attachment {
                    artifact_type: document.media_type(),
                    media_type: document.media_type(),
                    content: Content::File(document.content()),
                    annotations: &[],
                };
                referrer::attach(repository, &attested.subject, &attachment)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of the directory for one of several platforms, as BuildKit has it.
fn directory_of(image: &Image) -> String {
    image.config.platform().to_string().replace('/', "_")
}

impl std::fmt::Display for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Archive { to: To::Path(path), .. }
            | Self::Tar(To::Path(path))
            | Self::Files(path) => write!(f, "{}", path.display()),
            Self::Archive { to: To::Stdout, .. } | Self::Tar(To::Stdout) => {
                f.write_str("standard output")
            }
        }
    }
}
