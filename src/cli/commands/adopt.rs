//! `imgctl adopt`: begin with a cluster that is there already.

use clap::Args;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::{ExactClusterArg, HostsArgs, StateArgs, WorkArgs};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::adopt::{self as operation, AdoptRequest};

/// Manage a cluster that kubeadm made, or whose controller was lost
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Reads the cluster, reports what imgctl cannot manage, and records the rest on this machine and as a
Secret in the cluster. Its hosts get only imgctl's agent. Afterwards, hosts can be added, the
cluster upgraded, its certificates renewed. Name every host, unless an earlier controller left a
record in the cluster; then one control plane is enough. Running it again changes nothing.

Examples:
  imgctl adopt --masters 10.0.0.1,10.0.0.2,10.0.0.3 --nodes 10.0.0.10-10.0.0.19 --dry-run
  imgctl adopt --masters 10.0.0.1 --nodes 10.0.0.10 -c prod -u ops -i ~/.ssh/prod
  imgctl adopt --masters 10.0.0.1 -c prod                      (the controller of prod was lost)"
)]
pub(crate) struct AdoptArgs {
    #[command(flatten)]
    cluster: ExactClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

pub(crate) fn adopt(args: &AdoptArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let request = AdoptRequest {
        cluster: args.cluster.name(context)?,
        hosts: args.hosts.of(&session),
        encrypt_state: args.state.encrypt_state.clone(),
        options: args.work.options(context)?,
    };
    operation::adopt(&request, &session)
}
