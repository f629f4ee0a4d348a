//! `imgctl renumber`: other addresses for hosts of a running cluster.

use clap::Args;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::{ClusterArg, WorkArgs};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_model::renumber::Renumbering;
use imgctl_ops::renumber::{self, Renumber};

/// Change the addresses of hosts of a running cluster
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The hosts move one after the other, in the order given. Each must have its new address on an
interface and accept SSH there with the same login; it may still have the old one. imgctl verifies
that it is the same machine, then changes what the cluster knows of it: certificates, manifests,
members of etcd, kubeconfigs, hosts files, load balancers, the Clusterfile. After a failure, run
the same command again: it resumes where it stopped. `imgctl renumber NEW=OLD` reverts it.

Examples:
  imgctl renumber 10.0.0.11=10.9.0.11 --dry-run
  imgctl renumber 10.0.0.11=10.9.0.11 10.0.0.12=10.9.0.12 10.0.0.13=10.9.0.13
  imgctl renumber 10.0.0.21=10.9.0.21 --cluster prod --yes"
)]
pub(crate) struct RenumberArgs {
    /// Address of a host and its new one
    #[arg(required = true, value_name = "OLD=NEW")]
    changes: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn run(args: &RenumberArgs, context: &Context) -> Result<()> {
    let changes = args.changes.iter().map(|text| Renumbering::parse(text));
    let request = Renumber {
        cluster: args.cluster.name(context)?,
        changes: changes.collect::<Result<_>>()?,
        options: args.work.options(context)?,
    };
    renumber::renumber(&request, &context.session(&args.ssh, &args.registry)?)
}
