//! `imgctl manifest exists`.

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_transfer::transfer::manifest_list;

/// Report by exit code whether a manifest list exists
#[derive(Args, Debug)]
#[command(
    after_help = "The exit code is 0 if it exists, 3 if the name does not exist, 2 if it is an image.

Examples:
  imgctl manifest exists etcd:v1 || imgctl manifest create etcd:v1"
)]
pub(super) struct ExistsArgs {
    /// Name of the list
    list: String,
}

/// Fails unless the list exists.
pub(super) fn run(args: &ExistsArgs, context: &Context) -> Result<()> {
    manifest_list::find(context.store()?, &args.list).map(drop)
}
