//! `imgctl run`.

use clap::Args;

use crate::cli::cluster_options::{ClusterArg, DesiredArgs, HostsArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::install::{self, Installation};

/// Create a cluster from images, or install images on an existing one
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The first run creates the cluster from the images, one of which is a rootfs image. Without hosts, the
cluster consists of this machine alone, reached without SSH. On an existing cluster, missing images
are installed and missing hosts are added. After a failure, run the same command again: it resumes
where it stopped, and does nothing when everything is done.

Examples:
  imgctl run etcd-cluster:v1 --masters 10.0.0.11,10.0.0.12,10.0.0.13
  imgctl run labring/kubernetes:v1.29.9 labring/helm:v3.14 labring/cilium:v1.15 --masters 10.0.0.1 --nodes 10.0.0.2-10.0.0.9
  imgctl run kubernetes.tar --masters 10.0.0.1 -u ops --sudo-passwd-file pw --dry-run
  imgctl run labring/ingress-nginx:v1.11 --env replicas=3"
)]
pub(crate) struct RunArgs {
    /// Images or image archives, in installation order
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    /// Also run the commands of images that the cluster already has
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Creates or extends the cluster.
pub(crate) fn run(args: &RunArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &args.registry)?;
    let request = Installation {
        cluster: args.cluster.cluster.clone(),
        images: args.images.clone(),
        hosts: args.hosts.of(&session),
        additions: args.desired.additions(context)?,
        force: args.force,
        wait: args.wait.wait()?,
        options: args.work.options(context)?,
    };
    install::run(&request, &session)
}
