//! `imgctl gen`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_options::{
    ClusterArg, ClusterSshArgs, DesiredArgs, HostsArgs, data_root, images, state, with_surroundings,
};
use crate::cli::context::Context;
use crate::cli::image_files::StoreFiles;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_cluster::cluster::clusterfile::{self, Clusterfile};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::image::{ClusterImage, check_together};
use imgctl_cluster::cluster::local_addresses;
use imgctl_cluster::runtime::certificates::validity::Validity;
use imgctl_cluster::runtime::k3s::K3s;
use imgctl_cluster::runtime::kubeadm::Kubeadm;

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
    let flags = args.hosts.flags(args.ssh.ssh());
    let mut made = Clusterfile::new(name, &args.images, &flags, local_addresses::primary())?;
    // In the file, variables from the command line become variables of the cluster.
    made.cluster.environment = args.desired.environment()?;
    made.cluster.command.clone_from(&args.desired.cmd);
    args.desired.add_documents(&mut made, context)?;
    let images = images(&args.images, name, None, &args.registry, context)?;
    check_together(&images)?;
    let data_root = data_root(&context.environment)?;
    let directory = state(name, context)?.directory().to_owned();
    let scene = with_surroundings(context, |surroundings| {
        ClusterContext::new(&made, images, &data_root, directory, surroundings)
    })?;
    let mut defaults =
        Clusterfile { documents: default_documents(&scene, context)?, ..Clusterfile::default() };
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

/// Returns the documents with which the image's runtime would create this cluster.
fn default_documents(scene: &ClusterContext, context: &Context) -> Result<Vec<serde_json::Value>> {
    let files = StoreFiles { store: context.store()?, platform: None };
    let rootfs = scene.rootfs().map(ClusterImage::distribution);
    let text = match rootfs {
        Some("" | "kubernetes" | "kubeadm") => {
            Kubeadm::new(&files, Validity::default()).default_documents(scene)?
        }
        Some("k3s") => K3s::new(&files).default_document(scene)?,
        _ => return Ok(Vec::new()),
    };
    let (read, _) = clusterfile::read_additions(&text, "the runtime's defaults")?;
    Ok(read.documents)
}
