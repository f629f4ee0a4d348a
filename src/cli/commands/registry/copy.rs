//! `imgctl registry copy`.

use std::ffi::OsString;

use clap::Args;

use crate::cli::commands::registry::selection::SelectionArgs;
use crate::cli::commands::registry::sync::show;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, Result};
use imgctl_transfer::transfer::mirror::IMAGES;
use imgctl_transfer::transfer::mirror_place::PlaceName;
use imgctl_transfer::transfer::mirror_sources::Sources;

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
pub(crate) fn run(args: &CopyArgs, context: &Context) -> Result<()> {
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
