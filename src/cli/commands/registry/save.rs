//! `imgctl registry save`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::commands::build_embedding::ChartArgs;
use crate::cli::commands::registry::selection::SelectionArgs;
use crate::cli::commands::registry::sync::show;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Reference;
use imgctl_build::build;
use imgctl_build::embed::search::SearchOptions;
use imgctl_registry::Client;
use imgctl_store::store::ScratchDirectory;
use imgctl_transfer::transfer::copy::Copier;
use imgctl_transfer::transfer::engine::CopyOptions;
use imgctl_transfer::transfer::location::{Archived, Location};
use imgctl_transfer::transfer::mirror::{self, IMAGES, MirrorOptions};
use imgctl_transfer::transfer::mirror_images::{Found, find, items, read_list};
use imgctl_transfer::transfer::mirror_place::{Place, PlaceName};
use imgctl_transfer::transfer::plan::Selection;

/// Maximum size of a list of images, in bytes.
const MAX_LIST: u64 = 16 << 20;

/// Save images, or the images that a build context names, into a registry tree on disk
#[derive(Args, Debug)]
#[command(
    after_help = "The tree is what docker-distribution keeps and what a cluster image holds under registry/. Names
lose their registry: quay.io/a/b:v1 becomes a/b:v1; two images that get the same name are an error.
Content already in the tree is not fetched again. Without --images, --images-file and --tars, it
saves what a build of CONTEXT would embed: the images in its charts/, manifests/ and images/.

Examples:
  imgctl registry save ./mycluster --arch arm64
  imgctl registry save --images quay.io/coreos/etcd:v3.5.9,nginx:1.27
  imgctl registry save -f images.txt --registry-dir ./registry --platform linux/amd64,linux/arm64
  imgctl registry save --tars docker-archive:/tmp/app.tar@team/app:v1"
)]
pub(crate) struct SaveArgs {
    /// Directory to search, which also contains --registry-dir [default: .]
    #[arg(value_name = "CONTEXT")]
    context: Option<PathBuf>,

    /// Images to save
    #[arg(long, value_name = "IMAGE", value_delimiter = ',')]
    images: Vec<String>,

    /// File with one image per line; blank lines and comments (#) are ignored
    #[arg(short = 'f', long = "images-file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Archives to save, each with a name for its image
    #[arg(long, value_name = "TRANSPORT:FILE@NAME", value_delimiter = ',')]
    tars: Vec<String>,

    /// Directory of the tree
    #[arg(long, value_name = "DIR", default_value = "registry")]
    registry_dir: PathBuf,

    /// Number of images to fetch in parallel
    #[arg(long, visible_alias = "max-pull-procs", value_name = "N", default_value_t = IMAGES)]
    jobs: usize,

    #[command(flatten)]
    charts: ChartArgs,

    #[command(flatten)]
    selection: SelectionArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Saves the images and prints their names in the tree.
pub(crate) fn run(args: &SaveArgs, context: &Context) -> Result<()> {
    let mut sources = Sources::default();
    for file in &args.files {
        let text = read_file(file)?;
        sources.add_images(read_list(&text).iter().map(String::as_str))?;
    }
    sources.add_images(args.images.iter().map(String::as_str))?;
    for tar in &args.tars {
        sources.add_tar(tar)?;
    }
    let here = args.context.as_deref().unwrap_or(Path::new("."));
    if sources.is_empty() {
        sources.add_context(here, &args.charts.search()?, context)?;
    }
    let client = args.registry.client(context)?;
    let to =
        PlaceName::Directory(here.join(&args.registry_dir)).sink(&client, context.settings.sync)?;
    deliver(&sources, &to, &client, &args.selection, args.jobs, context)
}

fn read_file(path: &Path) -> Result<String> {
    let size = std::fs::metadata(path).path("read", path)?.len();
    if size > MAX_LIST {
        return Err(Error::usage(format!("{} is too long for a list", path.display())));
    }
    std::fs::read_to_string(path).path("read", path)
}

/// Images to save or copy, as the user named them.
#[derive(Debug, Default)]
pub(super) struct Sources {
    images: Vec<Reference>,
    archives: Vec<(Location, Reference)>,
}

impl Sources {
    /// Returns images given by name.
    pub(super) fn of(words: &[OsString]) -> Result<Self> {
        let mut sources = Self::default();
        for word in words {
            let text = word.to_str().ok_or_else(|| {
                Error::usage(format!("`{}` is not an image name", word.display()))
            })?;
            sources.add_images([text])?;
        }
        Ok(sources)
    }

    fn is_empty(&self) -> bool {
        self.images.is_empty() && self.archives.is_empty()
    }

    fn add_images<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for name in names {
            let reference = match Location::parse(OsStr::new(name))? {
                Location::Registry(reference) => reference,
                Location::Name(name) => Reference::parse(&name)?,
                _ => {
                    self.add_tar(name)?;
                    continue;
                }
            };
            if !self.images.contains(&reference) {
                self.images.push(reference);
            }
        }
        Ok(())
    }

    /// Adds the images that a build context names.
    fn add_context(
        &mut self,
        directory: &Path,
        options: &SearchOptions,
        context: &Context,
    ) -> Result<()> {
        let found = build::embedding::scan(directory, options)?;
        for skipped in &found.skipped {
            let (text, place, reason) = (&skipped.text, &skipped.place, &skipped.reason);
            tracing::info!("{place}: `{text}` is skipped: {reason}");
        }
        let archived =
            |name: &Reference| found.archives.iter().any(|other| other.reference == *name);
        let images = found.images.iter().map(|image| &image.reference);
        // An archive in the context takes precedence over a registry.
        self.images.extend(images.filter(|name| !archived(name)).cloned());
        for archive in &found.archives {
            let place = Archived { path: directory.join(&archive.path), name: None };
            let place = match &*archive.transport {
                "oci-archive" => Location::OciArchive(place),
                _ => Location::DockerArchive(place),
            };
            self.archives.push((place, archive.reference.clone()));
        }
        if self.is_empty() {
            return Err(Error::not_found(format!(
                "{} names no container images",
                directory.display()
            ))
            .hint(
                "imgctl looks in charts/, manifests/ and images/shim/; or pass --images, \
                   --images-file or --tars",
            ));
        }
        let count = self.images.len() + self.archives.len();
        context.ui.say(&format!(
            "{count} container {} in {}, {} left out (-v lists them)",
            if count == 1 { "image" } else { "images" },
            directory.display(),
            found.skipped.len()
        ));
        Ok(())
    }

    /// Adds an archive given as `docker-archive:FILE@NAME`.
    fn add_tar(&mut self, text: &str) -> Result<()> {
        let wrong = || {
            Error::usage(format!("`{text}` does not name the image"))
                .hint("write it as docker-archive:FILE@NAME:TAG or oci-archive:FILE@NAME:TAG")
        };
        let (place, name) = text.rsplit_once('@').ok_or_else(wrong)?;
        let place = Location::parse(OsStr::new(place))?;
        if matches!(place, Location::Name(_) | Location::Registry(_)) {
            return Err(wrong());
        }
        self.archives.push((place, Reference::parse(name)?.qualified()));
        Ok(())
    }
}

/// Finds the images and copies them to a place under their own names.
pub(super) fn deliver(
    sources: &Sources,
    to: &Place,
    client: &Client,
    selection: &SelectionArgs,
    jobs: usize,
    context: &Context,
) -> Result<()> {
    let scratch = context.store()?.scratch_directory()?;
    let found = find_all(sources, client, &scratch, context)?;
    let platforms = selection.of_host()?;
    let items = items(found, to, &platforms)?;
    let options = MirrorOptions { selection: Selection::default(), images: jobs.max(1) };
    show(&mirror::copy_all(&items, &options, context.ui.reporter())?, context)
}

/// Finds all images; archives are unpacked into `scratch`.
fn find_all<'a>(
    sources: &Sources,
    client: &'a Client,
    scratch: &ScratchDirectory,
    context: &'a Context,
) -> Result<Vec<Found<'a>>> {
    let store = context.store()?;
    let mut found = Vec::new();
    for name in &sources.images {
        found.push(find(store, client, name)?);
    }
    for (place, reference) in &sources.archives {
        let copier = Copier {
            store,
            client,
            options: CopyOptions::default(),
            preserve_digests: false,
            reporter: context.ui.reporter(),
        };
        found.push(Found { reference: reference.clone(), source: copier.source(place, scratch)? });
    }
    Ok(found)
}
