//! What a cluster would consist of: `imgctl gen` and `imgctl render`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use imgctl_base::error::{Context as _, IoContext, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_frontend::cluster_options::{
    ClusterArg, ClusterSshArgs, DesiredArgs, ExactClusterArg, HostsArgs, PeersArgs, ValuesArgs,
};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_model::{clusterfile, clusterfile::Clusterfile};
use imgctl_model::{image::check_together, local_addresses};
use imgctl_ops::preview::{self, Origin, RenderRequest, default_documents};
use imgctl_ops::session::Needed;

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
    cluster: ExactClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: ClusterSshArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    peers: PeersArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn generate(args: &GenArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.name(context)?;
    let additions = args.peers.with(args.desired.additions(context)?);
    let flags = args.hosts.flags(args.ssh.ssh()?);
    let mut made = Clusterfile::new(name, &args.images, &flags, local_addresses::primary())?;
    // In the file, variables from the command line become variables of the cluster.
    made.cluster.environment = additions.environment;
    made.cluster.command = additions.command;
    made.cluster.share_images = additions.share_images;
    additions.documents.into_iter().for_each(|documents| made.add_documents(documents));
    let session = context.session(&SshArgs::default(), &args.registry)?;
    let images = session.images(&args.images, name, None, Needed::Layers)?;
    check_together(&images)?;
    let cluster = session.cluster_context(&made, images)?;
    preview::check_variables(&cluster, &made.cluster.environment, &session)?;
    let documents = default_documents(&cluster, &session)?;
    let mut defaults = Clusterfile { documents, ..Clusterfile::default() };
    let given = std::mem::take(&mut made.documents);
    defaults.add_documents(Clusterfile { documents: given, ..Clusterfile::default() });
    made.documents = defaults.documents;
    let text = clusterfile::escape(&made.write()?);
    match &args.output {
        None => context.ui.content(&text),
        // The value that sealos documents.
        Some(path) if path == Path::new("stdout") || path == Path::new("-") => {
            context.ui.content(&text)
        }
        Some(path) => output::write(path, text.as_bytes(), 0o600, Durability::Durable)
            .context(|| "cannot write the Clusterfile".to_owned()),
    }
}

/// Show the files that templates render to on a host
#[derive(Args, Debug)]
#[command(
    after_help = "Changes nothing and queries no host, so the host's own name (HOST_NAME) is not known.
Without -o, prints the files one after another.

Examples:
  imgctl render --host 10.0.0.2 --cluster default
  imgctl render --host 10.0.0.2 etcd-cluster:v1 --path etc/etcd.conf
  imgctl render --host 10.0.0.2 -f Clusterfile -o preview"
)]
pub(crate) struct RenderArgs {
    /// Images to render as if they were run [default: the cluster's images]
    #[arg(value_name = "IMAGE", conflicts_with_all = ["cluster", "file"])]
    images: Vec<String>,

    /// Host to render for
    #[arg(long, value_name = "HOST")]
    host: String,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Path of the Clusterfile; `-` is stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "cluster")]
    file: Option<PathBuf>,

    /// Render only this file, given as etc/x or etc/x.tmpl
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Directory to write the files into, readable only by its owner
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Fail on templates that use an undefined variable
    #[arg(long)]
    strict_templates: bool,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn render(args: &RenderArgs, context: &Context) -> Result<()> {
    let cluster = args.cluster.name(context)?;
    let request = RenderRequest {
        origin: match &args.file {
            Some(file) => Origin::Clusterfile(Box::new(args.values.clusterfile(file, context)?)),
            None if args.images.is_empty() => Origin::Cluster(cluster),
            None => Origin::Images { cluster, images: args.images.clone() },
        },
        host: args.host.clone(),
        additions: args.desired.additions(context)?,
        path: args.path.clone(),
        strict: args.strict_templates,
    };
    let session = context.session(&SshArgs::default(), &args.registry)?;
    let files = preview::render(&request, &session)?;
    if let Some(directory) = &args.output {
        for (path, text) in &files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).path("make", parent)?;
            }
            output::write(&path, text.as_bytes(), 0o600, Durability::Atomic)?;
        }
        context.ui.say(&format!("{} files in {}", files.len(), directory.display()));
        return Ok(());
    }
    if context.ui.is_json() {
        let object = |(path, text): (&String, &String)| json!({"path": path, "content": text});
        return context.ui.json(&files.iter().map(object).collect::<Vec<_>>());
    }
    if args.path.is_some() {
        return files.values().try_for_each(|text| context.ui.content(text));
    }
    for (path, text) in &files {
        context.ui.line(&format!("==> {path} <=="))?;
        context.ui.content(text)?;
        if !text.ends_with('\n') {
            context.ui.line("")?;
        }
    }
    Ok(())
}
