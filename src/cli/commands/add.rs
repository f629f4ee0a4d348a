//! `imgctl add`.

use clap::Args;

use crate::cli::cluster_options::{ClusterArg, HostsArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::members::{Addition, add};

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
    let session = context.session(&args.ssh, &args.registry)?;
    let request = Addition {
        cluster: args.cluster.cluster.clone(),
        hosts: args.hosts.of(&session),
        wait: args.wait.wait()?,
        options: args.work.options(context)?,
    };
    add(&request, &session)
}
