//! `imgctl gen`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_options::{ClusterArg, ClusterSshArgs, DesiredArgs, HostsArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_cluster::cluster::clusterfile::{self, Clusterfile};
use imgctl_cluster::cluster::image::check_together;
use imgctl_cluster::cluster::local_addresses;
use imgctl_ops::preview::default_documents;

/// Write the Clusterfile that `imgctl run` would create
#[derive(Args, Debug)]
#[command(
    after_help = "Changes nothing. The file is for `imgctl apply -f`; edit it first: it contains the kubeadm or k3s
documents with their defaults. Images are read from the store, and pulled if they are missing.
Without hosts, the cluster consists of this machine alone.

Examples:
  imgctl gen labring/kubernetes:v1.29.9 labring/helm:v3.14 --masters 10.0.0.1 --nodes 10.0.0.2-10.0.0.9 -o Clusterfile
  imgctl gen etcd-cluster:v1 --masters 10.0.0.11,10.0.0.12,10.0.0.13 --env etcdQuotaBytes=4294967296"
)]
pub(crate) struct GenArgs {
    /// Images in installation order; one of them must be a rootfs
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// File to write, readable only by its owner [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: ClusterSshArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Prints or writes the Clusterfile.
pub(crate) fn run(args: &GenArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    let additions = args.desired.additions(context)?;
    let flags = args.hosts.flags(args.ssh.ssh());
    let mut made = Clusterfile::new(name, &args.images, &flags, local_addresses::primary())?;
    // In the file, variables from the command line become variables of the cluster.
    made.cluster.environment = additions.environment;
    made.cluster.command = additions.command;
    additions.documents.into_iter().for_each(|documents| made.add_documents(documents));
    let session = context.session(&SshArgs::default(), &args.registry)?;
    let images = session.images(&args.images, name, None)?;
    check_together(&images)?;
    let cluster = session.cluster_context(&made, images)?;
    let documents = default_documents(&cluster, &session)?;
    let mut defaults = Clusterfile { documents, ..Clusterfile::default() };
    let given = std::mem::take(&mut made.documents);
    defaults.add_documents(Clusterfile { documents: given, ..Clusterfile::default() });
    made.documents = defaults.documents;
    let text = clusterfile::escape(&made.write()?);
    match &args.output {
        None => context.ui.print(&text),
        Some(path) => atomic::write(path, text.as_bytes(), 0o600, Durability::Durable)
            .context(|| "cannot write the Clusterfile".to_owned()),
    }
}
