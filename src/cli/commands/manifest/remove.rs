//! `imgctl manifest remove`.

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_transfer::transfer::manifest_list::ManifestList;

/// Remove an image from a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl manifest remove etcd:v1 sha256:6a92cd1f…")]
pub(super) struct RemoveArgs {
    /// Name of the list
    list: String,

    /// Digest of the image, or its name in the store
    image: String,
}

/// Removes the image and prints the list's digest.
pub(super) fn run(args: &RemoveArgs, context: &Context) -> Result<()> {
    let digest = super::digest_of(&args.image, context)?;
    let mut list = ManifestList::open(context.store()?, &args.list)?;
    list.remove(&digest)?;
    super::show(&list.save()?, context)
}
