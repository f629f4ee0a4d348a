//! `imgctl merge`.

use clap::Args;
use serde_json::json;

use crate::cli::commands::build_options::pairs;
use crate::cli::context::Context;
use crate::cli::pull_options::PolicyArg;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::Result;
use imgctl_base::image::{Platform, Reference};
use imgctl_build::build::base_image::BaseImages;
use imgctl_store::layer::Compression;
use imgctl_transfer::edit::merge::{self, MergeOptions};
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
pub(crate) fn run(args: &MergeArgs, context: &Context) -> Result<()> {
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
    let platforms = if args.platforms.is_empty() {
        vec![None]
    } else {
        args.platforms.iter().map(|text| Platform::parse(text).map(Some)).collect::<Result<_>>()?
    };
    let reporter = context.ui.reporter();
    let registries = BaseImages::new(args.registry.client(context)?, args.pull.policy());
    let mut merged = Vec::new();
    for platform in &platforms {
        let mut inputs = Vec::new();
        for name in &args.images {
            // Without a requested platform, a stored image is used whatever its platform.
            let here = match (platform, args.pull) {
                (None, PolicyArg::Missing | PolicyArg::Never) => store.image(name, None).ok(),
                _ => None,
            };
            let image = match (here, platform) {
                (Some(image), _) => image,
                (None, Some(platform)) => registries.get(store, name, platform, reporter)?,
                (None, None) => registries.get(store, name, &Platform::host(), reporter)?,
            };
            inputs.push((name.clone(), image));
        }
        merged.push(merge::merge(store, &inputs, &options, reporter)?);
    }
    finish(&write_index(store, merged)?, &tags, context)
}

/// Returns the full names given by `-t` flags.
pub(crate) fn references(tags: &[String]) -> Result<Vec<Reference>> {
    tags.iter().map(|tag| Ok(Reference::parse(tag)?.qualified())).collect()
}

/// Names the result of an edit and prints its ID.
pub(crate) fn finish(edited: &Edited, tags: &[Reference], context: &Context) -> Result<()> {
    context.store()?.tag(tags, &edited.descriptor)?;
    for note in &edited.notes {
        context.ui.note(note);
    }
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "id": edited.id,
            "digest": edited.descriptor.digest,
            "names": tags.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }));
    }
    context.ui.line(edited.id.hex())
}
