//! `imgctl copy`: copies an image from any location to any other. Copies between registries do not
//! touch the store.

use std::path::Path;

use walkdir::WalkDir;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::artifacts::WithArtifacts;
use crate::transfer::engine::{self, Copied, CopyOptions};
use crate::transfer::layout::{LayoutSink, LayoutSource};
use crate::transfer::load::{Input, LoadOptions, load};
use crate::transfer::location::{Archived, Location};
use crate::transfer::members::Loaded;
use crate::transfer::names;
use crate::transfer::output::{Content, OuterCompression, Tar, Target};
use crate::transfer::partial::local::StoreBlobs;
use crate::transfer::plan::Plan;
use crate::transfer::registry::{RegistrySink, RegistrySource};
use crate::transfer::save::{ArchiveFormat, Output, SaveOptions, save};
use crate::transfer::sink::ImageSink;
use crate::transfer::source::ImageSource;
use crate::transfer::store::{StoreSink, StoreSource};
use crate::transfer::tree::{TreeSink, TreeSource};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_base::progress::{Reporter, Silent};
use imgctl_registry::layout::Layout;
use imgctl_registry::{Client, Target as RegistryTarget};
use imgctl_store::store::{Named, ScratchDirectory, Store};

/// Store, client and options of a copy.
pub struct Copier<'a> {
    pub store: &'a Store,
    pub client: &'a Client,
    /// Decides about images that do not come from a registry.
    pub arbiter: Arbiter,
    pub options: CopyOptions,
    /// Refuse changes that would alter the image's digest.
    pub preserve_digests: bool,
    pub reporter: &'a dyn Reporter,
}

impl<'a> Copier<'a> {
    /// Creates a copier for [`Copier::source`] only.
    pub fn reading(store: &'a Store, client: &'a Client, reporter: &'a dyn Reporter) -> Self {
        Self {
            store,
            client,
            arbiter: Arbiter::policy(client),
            options: CopyOptions::default(),
            preserve_digests: false,
            reporter,
        }
    }

    /// Writes an image to `to`. Formats that must be assembled first use `scratch` meanwhile.
    pub fn write(
        &self,
        source: &dyn ImageSource,
        to: &Location,
        scratch: &ScratchDirectory,
    ) -> Result<Copied> {
        match to {
            Location::Name(name) => {
                let reference = Reference::parse(name)?.qualified();
                self.run(source, &StoreSink::new(self.store, &[reference]))
            }
            Location::Registry(reference) => {
                let reference = reference.clone().on_docker_hub().qualified();
                let sink = RegistrySink::new(self.client, &reference)?;
                self.run(source, &WithArtifacts::new(sink, source.kept()?))
            }
            Location::OciDirectory(Archived { path, name }) => {
                let sink = LayoutSink::open(path, name.as_deref())?;
                self.run(source, &WithArtifacts::new(sink, source.kept()?))
            }
            Location::OciArchive(Archived { path, name }) => {
                let layout = scratch.path().join("layout");
                let sink = LayoutSink::open(&layout, name.as_deref())?;
                let copied = self.run(source, &WithArtifacts::new(sink, source.kept()?))?;
                pack(&layout, path, OuterCompression::None)
                    .context(|| format!("cannot write {}", path.display()))?;
                Ok(copied)
            }
            Location::DockerArchive(Archived { path, name }) => {
                let name = name.as_deref().map(names::from_docker).transpose()?;
                let format = ArchiveFormat::DockerArchive;
                self.save(source, scratch, format, path, name)
            }
            Location::Directory(path) => {
                let format = ArchiveFormat::DockerDirectory;
                self.save(source, scratch, format, path, None)
            }
            Location::RegistryDirectory { path, name } => {
                let layout = Layout::create(path, self.store.is_synced())?.for_writing()?;
                let tag = name.clone().qualified().tag().map(str::to_owned);
                let sink = TreeSink::new(&layout, &tree_repository(name), tag.as_deref());
                self.run(source, &sink)
            }
        }
    }

    /// Opens the image at `place` for reading. Archives are unpacked into `scratch` first.
    pub fn source(
        &self,
        place: &Location,
        scratch: &ScratchDirectory,
    ) -> Result<Box<dyn ImageSource>> {
        Ok(match place {
            Location::Name(name) => return self.named(name),
            Location::Registry(reference) => {
                let reference = reference.clone().on_docker_hub().qualified();
                Box::new(RegistrySource::new(self.client, &reference)?)
            }
            Location::OciDirectory(place) => Box::new(LayoutSource::oci(place, &self.arbiter)?),
            Location::Directory(path) => Box::new(LayoutSource::flat(path, &self.arbiter)?),
            Location::OciArchive(place) | Location::DockerArchive(place) => {
                let store = self.temporary(scratch, "loaded")?;
                let input = Input::Path(&place.path);
                // It decides when the image is copied.
                let options = LoadOptions::new(Arbiter::everything());
                let image = choose(load(&store, input, &options, self.reporter)?, place)?;
                let named = Named {
                    reference: image.references.into_iter().next(),
                    descriptor: image.descriptor,
                    origin: Some(image.origin),
                };
                let source = StoreSource::new(&store, &named, &self.arbiter)?;
                Box::new(source.called(place_name(place)))
            }
            Location::RegistryDirectory { path, name } => {
                let layout = Layout::open(path, false)?;
                let (repository, target) = (tree_repository(name), RegistryTarget::of(name));
                Box::new(TreeSource::new(&layout, &repository, target, &self.arbiter))
            }
        })
    }

    /// Resolves a bare name: in the store first, then in registries.
    fn named(&self, name: &str) -> Result<Box<dyn ImageSource>> {
        let missing = match self.store.resolve(name) {
            Ok(named) => {
                return Ok(Box::new(StoreSource::new(self.store, &named, &self.arbiter)?));
            }
            Err(error) => error,
        };
        if Digest::parse(name).is_ok() {
            return Err(missing);
        }
        let candidates = self.client.candidates(&Reference::parse(name)?)?;
        let mut failed = missing;
        for candidate in &candidates {
            let source = RegistrySource::new(self.client, candidate)?;
            match source.exists() {
                Ok(true) => return Ok(Box::new(source)),
                Ok(false) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed.context(format!("{name} is neither in the store nor in a reachable registry")))
    }

    fn run(&self, source: &dyn ImageSource, sink: &dyn ImageSink) -> Result<Copied> {
        let CopyOptions { selection, jobs } = &self.options;
        let plan = Plan::read(source, selection, *jobs)
            .context(|| format!("cannot read {}", source.describe()))?;
        let digest = &plan.root.descriptor.digest;
        if self.preserve_digests && *digest != plan.source_digest {
            return Err(Error::usage(format!(
                "the digest would change from {} to {digest}",
                plan.source_digest
            ))
            .hint("copy the whole index with --all-platforms, or drop --preserve-digests"));
        }
        let near = StoreBlobs::of(self.store);
        engine::copy_near(source, sink, &plan, *jobs, near, self.reporter)
    }

    fn temporary(&self, scratch: &ScratchDirectory, name: &str) -> Result<Store> {
        let options = imgctl_store::store::Options { sync: false };
        let store = Store::open(&scratch.path().join(name), options)?;
        Ok(store.with_limits(self.store.limits()))
    }

    /// Writes one of the formats of `imgctl save`, by way of a temporary store.
    fn save(
        &self,
        source: &dyn ImageSource,
        scratch: &ScratchDirectory,
        format: ArchiveFormat,
        path: &Path,
        name: Option<Reference>,
    ) -> Result<Copied> {
        if self.preserve_digests {
            return Err(Error::usage(format!(
                "{} would get a manifest of its own, with another digest",
                path.display()
            ))
            .hint("use oci: or oci-archive:, which keep it, or drop --preserve-digests"));
        }
        let store = self.temporary(scratch, "copied")?;
        let references: Vec<Reference> = name.into_iter().collect();
        let copied = self.run(source, &StoreSink::new(&store, &references))?;
        let named = Named {
            reference: references.into_iter().next(),
            descriptor: copied.root.clone(),
            origin: copied.verdict.origin().cloned(),
        };
        let options = SaveOptions { format, ..SaveOptions::default() };
        save(&store, &[named], &options, Output::Path(path), &Silent)?;
        Ok(copied)
    }
}

/// A registry tree has no registry hosts: what looks like a host is part of the name.
fn tree_repository(name: &Reference) -> String {
    name.name()
}

fn place_name(place: &Archived) -> String {
    match &place.name {
        Some(name) => format!("{}:{name}", place.path.display()),
        None => place.path.display().to_string(),
    }
}

/// Selects the image of an archive that `place` names.
fn choose(mut all: Vec<Loaded>, place: &Archived) -> Result<Loaded> {
    let path = place.path.display();
    let Some(wanted) = &place.name else {
        return match all.len() {
            1 => Ok(all.remove(0)),
            count => Err(Error::usage(format!("there are {count} images in {path}"))
                .hint(format!("write {path}:NAME"))),
        };
    };
    let full = Reference::parse(wanted).map(|name| name.qualified());
    let on_hub = Reference::parse(wanted).map(|name| name.on_docker_hub().qualified());
    let is_meant = |name: &Reference| {
        full.as_ref().is_ok_and(|full| full == name)
            || on_hub.as_ref().is_ok_and(|full| full == name)
            || name.tag() == Some(wanted)
    };
    let found = all.iter().position(|image| image.references.iter().any(is_meant));
    match found {
        Some(position) => Ok(all.swap_remove(position)),
        None => Err(Error::not_found(format!("there is no image `{wanted}` in {path}"))),
    }
}

/// Writes a layout as a tar.
pub fn pack(layout: &Path, path: &Path, compression: OuterCompression) -> Result<()> {
    let mut target = Target::Tar(Box::new(Tar::to_path(path, compression)?));
    for name in ["oci-layout", "index.json", "manifest.json", "repositories"] {
        if layout.join(name).exists() {
            add(&mut target, layout, name)?;
        }
    }
    for entry in WalkDir::new(layout.join("blobs")).sort_by_file_name() {
        let entry = entry.path("list", layout)?;
        let name = entry.path().strip_prefix(layout).unwrap_or(entry.path()).to_string_lossy();
        if entry.file_type().is_dir() {
            target.directory(&name)?;
        } else {
            add(&mut target, layout, &name)?;
        }
    }
    target.finish()
}

fn add(target: &mut Target, layout: &Path, name: &str) -> Result<()> {
    let path = layout.join(name);
    let file = std::fs::File::open(&path).path("open", &path)?;
    let size = file.metadata().path("look at", &path)?.len();
    target.file(name, Content::File(&file, size))
}
