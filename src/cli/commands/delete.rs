//! `imgctl delete`.

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::cluster_work::{Work, WorkArgs, change_of};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_report::report;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::clusterfile::ClusterDocument;
use imgctl_cluster::pipeline::change;
use imgctl_host::host::address::{self, SSH_PORT};

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
    let name = &args.cluster.cluster;
    let mut work = Work::begin("delete", name, &args.work, context)?.over(&args.ssh);
    let mut desired = work.existing()?.clone();
    let mut leaving = Vec::new();
    for list in [&args.masters, &args.nodes].into_iter().flatten() {
        leaving.extend(address::parse_list(list, SSH_PORT)?);
    }
    if leaving.is_empty() {
        return Err(Error::usage("no hosts to remove").hint("pass --masters or --nodes"));
    }
    // A host that never became a member can be removed as well: an earlier run may have left
    // something on it.
    for group in work.state.touched()? {
        let alone = ClusterDocument { hosts: vec![group.clone()], ..ClusterDocument::default() };
        if alone.addresses()?.iter().any(|own| leaving.contains(own)) {
            desired.cluster.hosts.push(group.clone());
            work.also.push(group);
        }
    }
    desired.cluster.remove_hosts(&leaving)?;
    let prepared = work.prepare(desired, &args.registry)?;
    let change = change_of("delete", &prepared, None, &[], work.current.as_ref());
    let summary = work.carry_out(&prepared, &args.ssh, args.force, |means, scene| {
        change::plan(means, scene, &change)
    })?;
    match summary {
        Some(summary) => report(&summary, name, context),
        None => Ok(()),
    }
}
