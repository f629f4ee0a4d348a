//! `imgctl render`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::cluster_options::{DesiredArgs, ValuesArgs};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_cluster::cluster::name;
use imgctl_ops::preview::{Origin, RenderRequest, render};

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

    /// Name of an existing cluster [default: default]
    #[arg(short, long, value_name = "NAME", conflicts_with = "file")]
    cluster: Option<String>,

    /// Path of the Clusterfile; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
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

/// Prints or writes the files.
pub(crate) fn run(args: &RenderArgs, context: &Context) -> Result<()> {
    let cluster = args.cluster.as_deref().unwrap_or(name::DEFAULT).to_owned();
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
    let files = render(&request, &session)?;
    if let Some(directory) = &args.output {
        for (path, text) in &files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).path("make", parent)?;
            }
            atomic::write(&path, text.as_bytes(), 0o600, Durability::Atomic)?;
        }
        context.ui.say(&format!("{} files in {}", files.len(), directory.display()));
        return Ok(());
    }
    if context.ui.is_json() {
        let object = |(path, text): (&String, &String)| json!({"path": path, "content": text});
        return context.ui.json(&files.iter().map(object).collect::<Vec<_>>());
    }
    if args.path.is_some() {
        return files.values().try_for_each(|text| context.ui.print(text));
    }
    for (path, text) in &files {
        context.ui.line(&format!("==> {path} <=="))?;
        context.ui.print(text)?;
        if !text.ends_with('\n') {
            context.ui.line("")?;
        }
    }
    Ok(())
}
