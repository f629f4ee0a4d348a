//! `imgctl manifest push`.

use std::ffi::OsString;

use clap::Args;

use crate::cli::commands::push::{own_name, show, to};
use crate::cli::context::Context;
use crate::cli::push_options::{PushFlags as Shared, write_digest};
use imgctl_base::error::Result;
use imgctl_store::store::prune::PruneOptions;
use imgctl_transfer::transfer::location::Location;
use imgctl_transfer::transfer::manifest_list;
use imgctl_transfer::transfer::push::PushOptions;

/// Push a manifest list with its images
#[derive(Args, Debug)]
#[command(
    after_help = "Images of the list that are not in the store are copied from the registry where they were found,
within that registry if it is the same one.

Examples:
  imgctl manifest push etcd:v1 docker://registry.example.com/team/etcd:v1
  imgctl manifest push --rm registry.example.com/team/etcd:v1"
)]
pub(super) struct PushArgs {
    /// Name of the list
    list: String,

    /// Destination; without it, the registry in the list's name
    #[arg(value_name = "DESTINATION")]
    destination: Option<OsString>,

    /// Also push the images; =false if the images are already at the destination
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    all: bool,

    /// Remove the list from the store after the push
    #[arg(long, visible_alias = "purge")]
    rm: bool,

    #[command(flatten)]
    shared: Shared,
}

/// Pushes the list and prints its digest.
pub(super) fn run(args: &PushArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let (list, _) = manifest_list::find(store, &args.list)?;
    let options = PushOptions { list_only: !args.all, ..args.shared.options()? };
    let location = match &args.destination {
        Some(text) => Location::parse(text)?,
        None => Location::Registry(own_name(&list)?),
    };
    let report = to(&location, &list, &options, &args.shared, context)?;
    write_digest(args.shared.digestfile.as_deref(), &report.root.digest)?;
    if args.rm {
        store.untag(&[list])?;
        let plan = store.plan_prune(&PruneOptions::default())?;
        store.prune(&plan, context.ui.reporter())?;
    }
    show(&location, &report, context)
}
