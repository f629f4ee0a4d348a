//! New images out of existing layers: `imgctl merge`, `rebase` and `annotate`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Platform, Reference, Verdict};
use imgctl_build::build::base_image::BaseImages;
use imgctl_frontend::image_options::{GateArg, PlatformArg, PolicyArg, platform, platform_of};
use imgctl_frontend::names::{pairs, references};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs};
use imgctl_layer::Compression;
use imgctl_transfer::edit::annotate::{self, Changes};
use imgctl_transfer::edit::merge::{self, MergeOptions};
use imgctl_transfer::edit::rebase::{self, BASE_DIGEST, BASE_NAME, Called};
use imgctl_transfer::edit::{Edited, write_index};

/// Merge images into one
#[derive(Args, Debug)]
#[command(
    after_help = "Files are merged as if each image were copied over those before it, but layers are reused, not
copied. Labels and variables of later images win. ENTRYPOINT and CMD are concatenated.
If one of the images is a rootfs image, so is the result.

Examples:
  imgctl merge -t cluster:v1 kubernetes:v1.34 helm:v3 calico:v3.30
  imgctl merge -t all:v1 --platform linux/amd64,linux/arm64 kubernetes:v1.34 helm:v3"
)]
pub(crate) struct MergeArgs {
    /// Images, lowest first
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Name of the result (may be repeated)
    #[arg(short, long = "tag", required = true, value_name = "NAME")]
    tags: Vec<String>,

    /// Platforms to merge; more than one produces an index
    #[arg(long = "platform", value_name = "OS/ARCH", value_delimiter = ',')]
    platforms: Vec<String>,

    /// Architecture to merge (short for --platform linux/ARCH)
    #[arg(long, conflicts_with = "platforms", hide = true)]
    arch: Option<String>,

    /// Operating system to merge
    #[arg(long, conflicts_with = "platforms", hide = true)]
    os: Option<String>,

    /// Variant of the architecture to merge
    #[arg(long, requires = "arch", hide = true)]
    variant: Option<String>,

    /// Add a label (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,

    /// Add an environment variable (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// Add an annotation to the manifest (may be repeated)
    #[arg(long = "annotation", value_name = "NAME=VALUE")]
    annotations: Vec<String>,

    /// Creation time of the image, in seconds since 1970 [default: the newest image's]
    #[arg(long, value_name = "SECONDS")]
    timestamp: Option<i64>,

    /// Compression of newly created layers: zstd, gzip or none, with an optional level (zstd:9)
    #[arg(long, value_name = "CODEC[:LEVEL]", default_value = "zstd")]
    compression: String,

    /// Pull policy for the images
    #[arg(long, value_enum, value_name = "POLICY", default_value = "missing")]
    pull: PolicyArg,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Merges the images and prints the new image's ID.
pub(crate) fn merge(args: &MergeArgs, context: &Context) -> Result<()> {
    merge::check_inputs(&args.images)?;
    let store = context.store()?;
    let options = MergeOptions {
        labels: pairs(&args.labels, "--label")?,
        env: args.env.clone(),
        annotations: pairs(&args.annotations, "--annotation")?,
        timestamp: args.timestamp,
        compression: Compression::parse(&args.compression, None)?,
    };
    let tags = references(&args.tags)?;
    let platforms = if args.arch.is_some() || args.os.is_some() {
        vec![Some(platform_of(&args.os, &args.arch, &args.variant))]
    } else if args.platforms.is_empty() {
        vec![None]
    } else {
        args.platforms.iter().map(|text| platform(text).map(Some)).collect::<Result<_>>()?
    };
    let reporter = context.ui.reporter();
    let registries = BaseImages::new(args.registry.client(context)?, args.pull.policy());
    let (mut merged, mut verdicts) = (Vec::new(), Vec::new());
    for platform in &platforms {
        let mut inputs = Vec::new();
        for name in &args.images {
            // Without a requested platform, a stored image is used whatever its platform.
            let here = match (platform, args.pull) {
                (None, PolicyArg::Missing | PolicyArg::Never) => {
                    registries.stored(store, name, None).found()?
                }
                _ => None,
            };
            let image = match (here, platform) {
                (Some((image, verdict)), _) => {
                    verdicts.push(verdict);
                    image
                }
                (None, Some(platform)) => registries.get(store, name, platform, reporter)?,
                (None, None) => registries.get(store, name, &Platform::host(), reporter)?,
            };
            inputs.push((name.clone(), image));
        }
        merged.push(merge::merge(store, &inputs, &options, reporter)?);
    }
    verdicts.extend(registries.verdicts());
    finish(&write_index(store, merged)?, &tags, &verdicts, context)
}

/// Names the result of an edit of images with these verdicts, and prints its ID.
fn finish(
    edited: &Edited,
    tags: &[Reference],
    inputs: &[Verdict],
    context: &Context,
) -> Result<()> {
    context.store()?.tag(tags, &edited.descriptor, &Verdict::made_from(inputs))?;
    context.ui.notes(&edited.notes);
    let view = json!({
        "id": edited.id,
        "digest": edited.descriptor.digest,
        "names": tags.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    context.ui.result(&view, edited.id.hex())
}

/// Move an image to another base without building
#[derive(Args, Debug)]
#[command(
    after_help = "The image must start with the old base's layers. Settings inherited unchanged from the old base are
taken from the new one. Without --old-base, the image's annotations name the old base.

Examples:
  imgctl rebase app:v1 --new-base debian:12.9 -t app:v1-r2
  imgctl rebase app:v1 --old-base base:1 --new-base base:2 -t app:v2"
)]
pub(crate) struct RebaseArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Base image that the image was built on
    #[arg(long, value_name = "IMAGE")]
    old_base: Option<String>,

    /// Base image to move the image to
    #[arg(long, value_name = "IMAGE")]
    new_base: String,

    /// Name of the result (may be repeated)
    #[arg(short, long = "tag", required = true, value_name = "NAME")]
    tags: Vec<String>,

    #[command(flatten)]
    gate: GateArg,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Rebases the image and prints the new image's ID.
pub(crate) fn rebase(args: &RebaseArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let tags = references(&args.tags)?;
    let image = args.platform.image(&args.image, context)?;
    let old_name = match &args.old_base {
        Some(name) => name.clone(),
        None => recorded_base(&args.image, &image.manifest.annotations)?,
    };
    let old = args.platform.image(&old_name, context)?;
    let new = args.platform.image(&args.new_base, context)?;
    // What the old base brings is not in the result.
    let admit = |name| args.gate.admit_input(name, context);
    let inputs = [admit(&args.image)?, admit(&args.new_base)?];
    let called = |name, image| Called { name, image };
    let edited = rebase::rebase(
        store,
        called(&args.image, &image),
        called(&old_name, &old),
        called(&args.new_base, &new),
    )?;
    finish(&edited, &tags, &inputs, context)
}

/// Returns the base recorded in the image's annotations; by digest, because its name may have
/// moved.
fn recorded_base(name: &str, annotations: &BTreeMap<String, String>) -> Result<String> {
    annotations.get(BASE_DIGEST).or_else(|| annotations.get(BASE_NAME)).cloned().ok_or_else(|| {
        Error::usage(format!("{name} does not record its base image"))
            .hint("pass the old base with --old-base")
    })
}

/// Change an image's annotations and labels
#[derive(Args, Debug)]
#[command(
    after_help = "Layers do not change; the result has a new digest. In a multi-platform image, annotations go to the
index and labels to every image in it.

Examples:
  imgctl annotate etcd:v1 --annotation org.opencontainers.image.source=https://git.example.com/etcd
  imgctl annotate app:v1 --label sealos.io.type=patch -t app:v1-patch
  imgctl annotate app:v1 --remove org.opencontainers.image.created"
)]
pub(crate) struct AnnotateArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Set an annotation (may be repeated)
    #[arg(short, long = "annotation", value_name = "NAME=VALUE")]
    annotations: Vec<String>,

    /// Remove an annotation (may be repeated)
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,

    /// Set a label (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,

    /// Remove a label (may be repeated)
    #[arg(long, value_name = "NAME")]
    remove_label: Vec<String>,

    /// Name of the result (may be repeated) [default: the image's own names]
    #[arg(short, long = "tag", value_name = "NAME")]
    tags: Vec<String>,

    #[command(flatten)]
    gate: GateArg,
}

/// Annotates the image and prints the new image's ID.
pub(crate) fn annotate(args: &AnnotateArgs, context: &Context) -> Result<()> {
    let changes = Changes {
        annotations: pairs(&args.annotations, "--annotation")?,
        remove: args.remove.clone(),
        labels: pairs(&args.labels, "--label")?,
        remove_labels: args.remove_label.clone(),
    };
    let store = context.store()?;
    let named = store.resolve(&args.image)?;
    let mut tags = references(&args.tags)?;
    if tags.is_empty() {
        let own = named.reference.clone().filter(|name| name.digest().is_none());
        tags.extend(own);
    }
    if tags.is_empty() {
        return Err(Error::usage(format!("{} is not a name", args.image))
            .hint("name the result with -t NAME"));
    }
    let input = args.gate.admit_input(&args.image, context)?;
    let edited = annotate::annotate(store, &named.descriptor, &changes)?;
    finish(&edited, &tags, &[input], context)
}
