//! `imgctl uninstall`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::context::Context;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_report::report;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::pipeline::uninstall;

/// Uninstall an application from a cluster
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Runs the image's own command for it: the label `uninstall` or `clean`, or the script of that name.
Then removes its working directory.

Examples:
  imgctl uninstall labring/ingress-nginx:v1.11"
)]
pub(crate) struct UninstallArgs {
    /// Image, as the cluster lists it
    #[arg(value_name = "IMAGE")]
    image: String,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Uninstalls the application.
pub(crate) fn run(args: &UninstallArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    let work = Work::begin("uninstall", name, &args.work, context)?;
    let desired = work.existing()?.clone();
    if !desired.cluster.images.contains(&args.image) {
        return Err(Error::not_found(format!("cluster {name} has no image {}", args.image))
            .hint(format!("it has {}", desired.cluster.images.join(", "))));
    }
    let mut prepared = work.recorded(desired)?;
    prepared.forget_image(&args.image);
    let summary = work.carry_out(&prepared, &args.ssh, false, |means, scene| {
        uninstall::plan(means, scene, &args.image)
    })?;
    match summary {
        Some(summary) => report(&summary, name, context),
        None => Ok(()),
    }
}
