//! Images into registries and their trees: `imgctl registry sync`, `save` and `copy`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::build_embedding::ChartArgs;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_build::build;
use imgctl_frontend::{
    context::Context, image_options::SelectionArgs, registry_options::RegistryArgs,
};
use imgctl_registry::Target;
use imgctl_transfer::transfer::location::{Archived, Location};
use imgctl_transfer::transfer::mirror::{self, Action, IMAGES, MirrorOptions, Mirrored, Planned};
use imgctl_transfer::transfer::mirror_place::PlaceName;
use imgctl_transfer::transfer::mirror_sources::{Sources, read_list};

/// Copy all images of a registry, or of a tree on disk, to another
#[derive(Args, Debug)]
#[command(
    after_help = "SOURCE and DESTINATION: HOST[:PORT][/PREFIX] is a registry, a path is a directory such as
`registry serve` and docker-distribution keep (or an image's root with `registry/` in it).
Images that are identical at both ends are skipped; nothing is removed at the destination. Digests
are preserved, unless platforms are selected. An image that cannot be copied is an error, reported
after the others are copied.

Examples:
  imgctl registry sync ./registry localhost:5000
  imgctl registry sync --dry-run ./registry harbor.example.com/mirror
  imgctl registry sync --override-arch arm64 registry.example.com ./registry"
)]
pub(crate) struct SyncArgs {
    /// Registry or directory to read from
    source: OsString,

    /// Registry or directory to write to
    destination: OsString,

    /// Show what would be copied, without copying it
    #[arg(long)]
    dry_run: bool,

    /// Number of images to copy in parallel
    #[arg(long, visible_alias = "max-pull-procs", value_name = "N", default_value_t = IMAGES)]
    jobs: usize,

    #[command(flatten)]
    selection: SelectionArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Copies the differences and prints what was copied.
pub(crate) fn sync(args: &SyncArgs, context: &Context) -> Result<()> {
    let client = args.registry.client(context)?;
    let options = MirrorOptions { selection: args.selection.of_all()?, images: args.jobs.max(1) };
    let from = PlaceName::parse(&args.source)?.source(&client)?;
    let to = PlaceName::parse(&args.destination)?;
    let to = if args.dry_run {
        to.look(&client)?
    } else {
        Some(to.sink(&client, context.settings.sync)?)
    };
    let planned = mirror::plan(&from, to.as_ref(), &options)?;
    if args.dry_run {
        return show_plan(&planned, context);
    }
    let Some(to) = to else { return Ok(()) };
    let done = mirror::sync(&from, &to, &planned, &options, context.ui.reporter())?;
    if !context.ui.is_json() {
        let rest = planned.len() - done.len();
        if rest > 0 {
            context.ui.say(&format!("{rest} of {} images are up to date", planned.len()));
        }
    }
    show(&done, context)
}

fn show_plan(planned: &[Planned], context: &Context) -> Result<()> {
    let word = |action| match action {
        Action::UpToDate => "up-to-date",
        Action::Add => "add",
        Action::Replace => "replace",
    };
    if context.ui.is_json() {
        let list: Vec<Value> = planned
            .iter()
            .map(|one| {
                json!({
                    "repository": one.repository,
                    "tag": match &one.target {
                        Target::Tag(tag) => Some(tag),
                        Target::Digest(_) => None,
                    },
                    "digest": one.digest,
                    "destinationDigest": one.there,
                    "action": word(one.action),
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for one in planned {
        context.ui.line(&format!("{:<10} {}", word(one.action), one.name()))?;
    }
    Ok(())
}

/// Shows the result for each image; also used by `registry save` and `registry copy`.
pub(super) fn show(done: &[Mirrored], context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let list: Vec<Value> = done
            .iter()
            .map(|one| {
                json!({
                    "name": one.name,
                    "digest": one.digest,
                    "blobs": {
                        "copied": one.moved.copied,
                        "mounted": one.moved.mounted,
                        "existed": one.moved.existed,
                    },
                    "bytesCopied": one.moved.bytes,
                    "bytesReused": one.moved.reused,
                    "bytesTotal": one.moved.total,
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for one in done {
        // The name of an image requested by digest already shows the digest.
        let line = if one.name.contains('@') {
            one.name.clone()
        } else {
            format!("{}@{}", one.name, one.digest)
        };
        context.ui.line(&line)?;
    }
    Ok(())
}

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
pub(crate) fn save(args: &SaveArgs, context: &Context) -> Result<()> {
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

/// Copy images into a registry or a tree on disk under their own names
#[derive(Args, Debug)]
#[command(
    after_help = "The last argument is the destination: HOST[:PORT][/PREFIX] or a directory. Names lose their
registry: quay.io/a/b:v1 becomes HOST/a/b:v1. For other names see `imgctl copy`.

Examples:
  imgctl registry copy quay.io/coreos/etcd:v3.5.9 localhost:5000
  imgctl registry copy --all nginx:1.27 busybox:1 ./registry"
)]
pub(crate) struct CopyArgs {
    /// Images to copy
    #[arg(required = true, num_args = 2.., value_names = ["IMAGE", "DESTINATION"])]
    arguments: Vec<OsString>,

    /// Number of images to copy in parallel
    #[arg(long, visible_alias = "max-pull-procs", value_name = "N", default_value_t = IMAGES)]
    jobs: usize,

    #[command(flatten)]
    selection: SelectionArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Copies the images and prints their names.
pub(crate) fn copy(args: &CopyArgs, context: &Context) -> Result<()> {
    let Some((destination, images)) = args.arguments.split_last() else {
        return Err(Error::usage("nothing to copy"));
    };
    let client = args.registry.client(context)?;
    let to = PlaceName::parse(destination)?.sink(&client, context.settings.sync)?;
    let sources = Sources::of(images)?;
    let platforms = args.selection.of_host()?;
    let (store, reporter) = (context.store()?, context.ui.reporter());
    show(&sources.copy(&to, store, &client, &platforms, args.jobs, reporter)?, context)
}
