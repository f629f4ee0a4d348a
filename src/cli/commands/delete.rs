//! `imgctl delete`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::members::{Removal, remove};

/// Remove hosts from a cluster
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Each host is drained and leaves the cluster; then everything that belongs to the cluster is removed
from it. The first control plane cannot be removed.

Examples:
  imgctl delete --nodes 10.0.0.25 --dry-run
  imgctl delete --masters 10.0.0.3 --yes
  imgctl delete --nodes 10.0.0.25 --force       (for an unreachable host)"
)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Control planes to remove: IP, IP:PORT, IP-IP, CIDR or name, separated by commas
    #[arg(long, value_name = "LIST")]
    masters: Option<String>,

    /// Workers to remove, in the same format
    #[arg(long, value_name = "LIST")]
    nodes: Option<String>,

    /// Also remove hosts that do not answer from the cluster, without cleaning them up
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Removes the hosts.
pub(crate) fn run(args: &DeleteArgs, context: &Context) -> Result<()> {
    let request = Removal {
        cluster: args.cluster.cluster.clone(),
        hosts: [&args.masters, &args.nodes].into_iter().flatten().cloned().collect(),
        force: args.force,
        options: args.work.options(context)?,
    };
    remove(&request, &context.session(&args.ssh, &args.registry)?)
}
