//! `imgctl registry save`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::commands::build_embedding::ChartArgs;
use crate::cli::commands::registry::selection::SelectionArgs;
use crate::cli::commands::registry::sync::show;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_build::build;
use imgctl_transfer::transfer::location::{Archived, Location};
use imgctl_transfer::transfer::mirror::IMAGES;
use imgctl_transfer::transfer::mirror_place::PlaceName;
use imgctl_transfer::transfer::mirror_sources::{Sources, read_list};

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
        add_context(&mut sources, here, &args.charts, context)?;
    }
    let client = args.registry.client(context)?;
    let to =
        PlaceName::Directory(here.join(&args.registry_dir)).sink(&client, context.settings.sync)?;
    let platforms = args.selection.of_host()?;
    let (store, reporter) = (context.store()?, context.ui.reporter());
    show(&sources.copy(&to, store, &client, &platforms, args.jobs, reporter)?, context)
}

fn read_file(path: &Path) -> Result<String> {
    let size = std::fs::metadata(path).path("read", path)?.len();
    if size > MAX_LIST {
        return Err(Error::usage(format!("{} is too long for a list", path.display())));
    }
    std::fs::read_to_string(path).path("read", path)
}

/// Adds the images that a build context names.
fn add_context(
    sources: &mut Sources,
    directory: &Path,
    charts: &ChartArgs,
    context: &Context,
) -> Result<()> {
    let found = build::embedding::scan(directory, &charts.search()?)?;
    for skipped in &found.skipped {
        let (text, place, reason) = (&skipped.text, &skipped.place, &skipped.reason);
        tracing::info!("{place}: `{text}` is skipped: {reason}");
    }
    let archives = found.archives.iter().map(|archive| {
        let place = Archived { path: directory.join(&archive.path), name: None };
        let place = match &*archive.transport {
            "oci-archive" => Location::OciArchive(place),
            _ => Location::DockerArchive(place),
        };
        (place, archive.reference.clone())
    });
    let images = found.images.iter().map(|image| image.reference.clone());
    sources.add(images.collect(), archives.collect());
    if sources.is_empty() {
        let what = format!("{} names no container images", directory.display());
        return Err(Error::not_found(what).hint(
            "imgctl looks in charts/, manifests/ and images/shim/; or pass --images, \
             --images-file or --tars",
        ));
    }
    let count = sources.count();
    context.ui.say(&format!(
        "{count} container {} in {}, {} left out (-v lists them)",
        if count == 1 { "image" } else { "images" },
        directory.display(),
        found.skipped.len()
    ));
    Ok(())
}
