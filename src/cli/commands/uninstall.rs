//! `imgctl uninstall`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::maintain::{Uninstallation, uninstall};

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
    let request = Uninstallation {
        cluster: args.cluster.cluster.clone(),
        image: args.image.clone(),
        options: args.work.options(context)?,
    };
    uninstall(&request, &context.session(&args.ssh, &RegistryArgs::default())?)
}
