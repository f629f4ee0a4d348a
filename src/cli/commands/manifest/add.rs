//! `imgctl manifest add`.

use clap::Args;

use crate::cli::commands::manifest::details::{DetailArgs, members};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::Result;
use imgctl_transfer::transfer::manifest_list::ManifestList;

/// Add images to a manifest list
#[derive(Args, Debug)]
#[command(
    after_help = "Images are looked up in the store, then in registries, where they stay until the list is pushed.
From a multi-platform image, the one for --os and --arch is added (by default, this machine's), or
all of them with --all.

Examples:
  imgctl manifest add etcd:v1 etcd:v1-amd64
  imgctl manifest add etcd:v1 docker://registry.example.com/etcd:v1-arm64 --annotation tier=edge"
)]
pub(super) struct AddArgs {
    /// Name of the list
    list: String,

    /// Images to add
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Add all platforms of a multi-platform image
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    details: DetailArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Adds the images and prints the list's digest.
pub(super) fn run(args: &AddArgs, context: &Context) -> Result<()> {
    let details = args.details.details(context)?;
    let choice = args.details.choice(args.all);
    let mut found = Vec::new();
    for image in &args.images {
        found.extend(members(image, &choice, &args.registry, context)?);
    }
    let mut list = ManifestList::open(context.store()?, &args.list)?;
    for member in found {
        list.add(member, &details)?;
    }
    super::show(&list.save()?, context)
}
