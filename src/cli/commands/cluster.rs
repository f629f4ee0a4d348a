//! The verbs that create, grow, shrink and remove clusters: `run`, `add`, `delete`, `uninstall`
//! and `reset`.

use clap::Args;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::{
    self, ClusterArg, DesiredArgs, ExactClusterArg, HostsArgs, PeersArgs, StateArgs, WaitArgs,
    WorkArgs,
};
use imgctl_frontend::drain_options::DrainArgs;
use imgctl_frontend::kubeconfig_options::{ApplicationArgs, KubeconfigArgs, PruneArgs};
use imgctl_frontend::source_options::SourceArgs;
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::apps::{self, AppInstallation, AppRemoval};
use imgctl_ops::install::{self, Installation};
use imgctl_ops::maintain::{self, TearDown, Uninstallation};
use imgctl_ops::members::{self, Addition, Removal};

/// Create a cluster from images, or install images on an existing one
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The first run creates the cluster from the images, one of which is a rootfs image. Without hosts,
the cluster consists of this machine alone, reached without SSH; imgctl asks first, or needs
--local. On an existing cluster, missing images are installed and missing hosts are added. After a
failure, run the same command again: it resumes where it stopped, and does nothing when everything
is done.

With --kubeconfig, applications are installed on a cluster that imgctl did not make, and nothing is
known about its hosts: the commands of the images run on this machine (docs/applications.md).

Examples:
  imgctl run etcd-cluster:v1 --masters 10.0.0.11,10.0.0.12,10.0.0.13
  imgctl run labring/kubernetes:v1.29.9 labring/helm:v3.14 labring/cilium:v1.15 --masters 10.0.0.1 --nodes 10.0.0.2-10.0.0.9
  imgctl run kubernetes.tar --masters 10.0.0.1 -u ops --sudo-passwd-file pw --dry-run
  imgctl run labring/ingress-nginx:v1.11 --env replicas=3
  imgctl run shop:v2 --kubeconfig prod.yaml --registry harbor.example.com/shop --rewrite-images"
)]
pub(crate) struct RunArgs {
    /// Images or image archives, in installation order
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    cluster: ExactClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    /// Make this machine the only host of a new cluster, without asking
    #[arg(long, conflicts_with_all = ["masters", "nodes", "kubeconfig"], help_heading = "Host options")]
    local: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    kubeconfig: KubeconfigArgs,

    #[command(flatten)]
    application: ApplicationArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    peers: PeersArgs,

    /// Also run the commands of images that the cluster already has
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    prune: PruneArgs,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn run(args: &RunArgs, context: &Context) -> Result<()> {
    cluster_options::refuse_clusterfiles(&args.images)?;
    let session = context.session(&args.ssh, &args.registry)?;
    if let Some(access) = args.kubeconfig.access() {
        args.hosts.refuse("--kubeconfig")?;
        args.state.refuse("--kubeconfig")?;
        args.source.refuse("--kubeconfig")?;
        let request = AppInstallation {
            access,
            images: args.desired.images(&args.images),
            push: args.application.push()?,
            prune: args.prune.prune(),
            additions: args.peers.with(args.desired.additions(context)?),
            force: args.force,
            options: args.work.options(context)?,
        };
        return apps::run(&request, &session);
    }
    let request = Installation {
        cluster: args.cluster.name(context)?,
        images: args.desired.images(&args.images),
        hosts: args.hosts.of(&session).on_this_machine(args.local),
        additions: args.peers.with(args.desired.additions(context)?),
        encrypt_state: args.state.encrypt_state.clone(),
        prune: args.prune.prune(),
        force: args.force,
        wait: args.wait.wait()?,
        options: args.source.with(args.work.options(context)?),
    };
    install::run(&request, &session)
}

/// Add hosts to a cluster
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  imgctl add --nodes 10.0.0.20-10.0.0.25
  imgctl add --masters 10.0.0.2,10.0.0.3 --cluster prod -u ops -i ~/.ssh/prod
  imgctl add --nodes 10.0.0.20 --image kubernetes:v1.34.9     (the cluster was adopted)")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Rootfs image for the new hosts of a cluster that was adopted and has no image: one of the
    /// cluster's version
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Also add hosts with the files of another cluster: only if that cluster no longer exists
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn add(args: &AddArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &args.registry)?;
    let request = Addition {
        cluster: args.cluster.name(context)?,
        hosts: args.hosts.of(&session),
        image: args.image.clone(),
        force: args.force,
        wait: args.wait.wait()?,
        options: args.source.with(args.work.options(context)?),
    };
    members::add(&request, &session)
}

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

    /// Also remove hosts that do not answer, or that belong to another cluster by now, without
    /// cleaning them up
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    drain: DrainArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn delete(args: &DeleteArgs, context: &Context) -> Result<()> {
    let request = Removal {
        cluster: args.cluster.name(context)?,
        masters: args.masters.clone(),
        nodes: args.nodes.clone(),
        force: args.force,
        options: args.drain.with(args.work.options(context)?)?,
    };
    members::remove(&request, &context.session(&args.ssh, &args.registry)?)
}

/// Uninstall an application from a cluster
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Runs the image's own command for it: the label `uninstall` or `clean`, or the script of that name.
Then removes its working directory. If the image has no such command, the objects are removed that
were recorded when the application was installed.

Examples:
  imgctl uninstall labring/ingress-nginx:v1.11
  imgctl uninstall shop:v2 --kubeconfig ~/.kube/config --dry-run"
)]
pub(crate) struct UninstallArgs {
    /// Image, as the cluster lists it
    #[arg(value_name = "IMAGE")]
    image: String,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    kubeconfig: KubeconfigArgs,

    /// Also remove its Namespaces, PersistentVolumeClaims and CustomResourceDefinitions, if its
    /// objects are removed one by one
    #[arg(long)]
    purge: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn uninstall(args: &UninstallArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &args.registry)?;
    if let Some(access) = args.kubeconfig.access() {
        let request = AppRemoval {
            access,
            image: args.image.clone(),
            purge: args.purge,
            options: args.work.options(context)?,
        };
        return apps::uninstall(&request, &session);
    }
    let request = Uninstallation {
        cluster: args.cluster.name(context)?,
        image: args.image.clone(),
        purge: args.purge,
        options: args.work.options(context)?,
    };
    maintain::uninstall(&request, &session)
}

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
    cluster: ExactClusterArg,

    /// Skip hosts that do not answer, and hosts that belong to another cluster by now
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

pub(crate) fn reset(args: &ResetArgs, context: &Context) -> Result<()> {
    let request = TearDown {
        cluster: args.cluster.name(context)?,
        force: args.force,
        options: args.work.options(context)?,
    };
    maintain::tear_down(&request, &context.session(&args.ssh, &RegistryArgs::default())?)
}
