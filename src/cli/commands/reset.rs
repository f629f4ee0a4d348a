//! `imgctl reset`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::context::Context;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::reset;

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
    let name = &args.cluster.cluster;
    let work = Work::begin("reset", name, &args.work, context)?;
    let mut desired = work.existing()?.clone();
    desired.cluster.hosts.extend(work.state.touched()?);
    let prepared = work.recorded(desired)?;
    let summary =
        work.carry_out(&prepared, &args.ssh, args.force, |means, scene| reset::plan(means, scene))?;
    if summary.is_some() && !context.ui.is_json() {
        context.ui.line(&format!("cluster {name} is gone"))?;
    }
    Ok(())
}
