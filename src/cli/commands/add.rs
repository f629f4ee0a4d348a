//! `imgctl add`.

use clap::Args;

use crate::cli::cluster_options::{ClusterArg, HostsArgs};
use crate::cli::cluster_work::{Work, WorkArgs, change_of};
use crate::cli::commands::run::add_new_hosts;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_report::report;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::clusterfile::Ssh;
use imgctl_cluster::pipeline::change;

/// Add hosts to a cluster
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  imgctl add --nodes 10.0.0.20-10.0.0.25
  imgctl add --masters 10.0.0.2,10.0.0.3 --cluster prod -u ops -i ~/.ssh/prod")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Adds the hosts.
pub(crate) fn run(args: &AddArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    let work = Work::begin("add", name, &args.work, context)?.over(&args.ssh);
    let mut desired = work.existing()?.clone();
    let (login, _) = args.ssh.resolve(context)?;
    let flags = args.hosts.flags(Ssh::of_login(&login, args.ssh.port));
    if flags.is_empty() {
        return Err(Error::usage("no hosts to add").hint("pass --masters or --nodes"));
    }
    add_new_hosts(&mut desired, &flags, context)?;
    let prepared = work.prepare(desired, &args.registry)?;
    let mut change = change_of("add", &prepared, None, &[], work.current.as_ref());
    change.wait = args.wait.wait()?;
    let summary = work.carry_out(&prepared, &args.ssh, false, |means, scene| {
        change::plan(means, scene, &change)
    })?;
    match summary {
        Some(summary) => report(&summary, name, context),
        None => Ok(()),
    }
}
