//! `imgctl reset`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::maintain::{TearDown, tear_down};

/// Tear down a cluster
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Removes everything that belongs to the cluster from its hosts: services, files, registry, hosts
entries; also if the cluster was never completed. Reports what could not be removed, with an exit
code other than 0. The Clusterfile is kept as Clusterfile.<time>.

Examples:
  imgctl reset --dry-run
  imgctl reset --cluster test --yes
  imgctl reset --cluster test --yes --force     (skips unreachable hosts)"
)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Skip hosts that do not answer
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Tears down the cluster.
pub(crate) fn run(args: &ResetArgs, context: &Context) -> Result<()> {
    let request = TearDown {
        cluster: args.cluster.cluster.clone(),
        force: args.force,
        options: args.work.options(context)?,
    };
    tear_down(&request, &context.session(&args.ssh, &RegistryArgs::default())?)
}
