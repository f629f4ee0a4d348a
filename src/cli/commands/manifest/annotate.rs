//! `imgctl manifest annotate`.

use clap::Args;

use crate::cli::commands::manifest::details::DetailArgs;
use crate::cli::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_transfer::transfer::manifest_list::ManifestList;

/// Change the entry of an image in a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl manifest annotate etcd:v1 sha256:6a92… --arch arm64 --variant v8
  imgctl manifest annotate --index --annotation org.opencontainers.image.version=1 etcd:v1")]
pub(super) struct AnnotateArgs {
    /// Name of the list
    list: String,

    /// Digest of the image, or its name in the store
    #[arg(value_name = "IMAGE", required_unless_present = "index")]
    image: Option<String>,

    /// Annotate the list itself
    #[arg(long, conflicts_with = "image")]
    index: bool,

    #[command(flatten)]
    details: DetailArgs,
}

/// Changes the entry and prints the list's digest.
pub(super) fn run(args: &AnnotateArgs, context: &Context) -> Result<()> {
    let details = args.details.details(context)?;
    if details.is_empty() {
        return Err(Error::usage("nothing to change")
            .hint("pass --os, --arch, --variant, --os-version, --os-features or --annotation"));
    }
    let mut list = ManifestList::open(context.store()?, &args.list)?;
    match &args.image {
        Some(image) => list.annotate(&super::digest_of(image, context)?, &details)?,
        None => list.annotate_index(&details.annotations),
    }
    super::show(&list.save()?, context)
}
