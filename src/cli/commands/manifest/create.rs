//! `imgctl manifest create`.

use clap::Args;

use crate::cli::commands::manifest::details::members;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::Result;
use imgctl_base::image::{Platform, Reference};
use imgctl_transfer::transfer::manifest_list::{Choice, Details, ManifestList};

/// Create a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Images are looked up in the store, then in registries, where they stay.

Examples:
  imgctl manifest create etcd:v1
  imgctl manifest create --amend etcd:v1 etcd:v1-amd64 docker://registry.example.com/etcd:v1-arm64")]
pub(super) struct CreateArgs {
    /// Name of the list
    list: String,

    /// Images to add to the list
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,

    /// Add all platforms of a multi-platform image
    #[arg(long)]
    all: bool,

    /// Add to the list if it exists
    #[arg(short, long)]
    amend: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Creates the list and prints its digest.
pub(super) fn run(args: &CreateArgs, context: &Context) -> Result<()> {
    let name = Reference::parse(&args.list)?;
    let choice = if args.all { Choice::All } else { Choice::One(Platform::host()) };
    let mut found = Vec::new();
    for image in &args.images {
        found.extend(members(image, &choice, &args.registry, context)?);
    }
    let mut list = ManifestList::create(context.store()?, &name, args.amend)?;
    for member in found {
        list.add(member, &Details::default())?;
    }
    super::show(&list.save()?, context)
}
