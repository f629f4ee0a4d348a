//! `imgctl cert`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::context::Context;
use crate::cli::ssh_options::SshArgs;
use crate::cli::work_report::report;
use crate::ui::table::Table;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_cluster::cluster::image::ClusterImage;
use imgctl_cluster::pipeline::renew;
use imgctl_cluster::runtime::certificates::inspect::{self, Certificate};
use imgctl_cluster::runtime::certificates::kubeconfig;
use imgctl_cluster::runtime::certificates::validity;
use imgctl_cluster::runtime::kubeadm::Kubeadm;
use imgctl_cluster::runtime::kubeadm::renew::Wanted;

/// Show or renew certificates, or add names to the API server's certificate
#[derive(Args, Debug)]
#[command(
    after_help = "Without --renew and --alt-names, lists the controller's certificates and when they expire.

Examples:
  imgctl cert
  imgctl cert --cluster production --json
  imgctl cert --alt-names api.example.com,192.0.2.7
  imgctl cert --renew all --certificate-validity 8760h
  imgctl cert --renew admin.conf"
)]
pub(crate) struct CertArgs {
    /// Name of the cluster
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    cluster: String,

    /// DNS names and addresses to add to the API server's certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    alt_names: Vec<String>,

    /// Certificates to renew: all, admin.conf, controller-manager.conf, apiserver, etcd/server and
    /// others
    #[arg(long, value_name = "WHAT")]
    renew: Vec<String>,

    /// Show the groups that certificates name
    #[arg(long)]
    groups: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,
}

/// Shows or renews certificates.
pub(crate) fn run(args: &CertArgs, context: &Context) -> Result<()> {
    for wanted in &args.renew {
        Wanted::parse(wanted)?;
    }
    if !args.renew.is_empty() || !args.alt_names.is_empty() {
        return change(args, context);
    }
    show(args, context)
}

/// Renews certificates on the control planes, one after the other.
fn change(args: &CertArgs, context: &Context) -> Result<()> {
    let work = Work::begin("cert", &args.cluster, &args.work, context)?;
    let prepared = work.recorded(work.existing()?.clone())?;
    let distribution = prepared.scene.rootfs().map(ClusterImage::distribution);
    if !matches!(distribution, Some("" | "kubernetes" | "kubeadm")) {
        return Err(Error::usage(format!(
            "cluster {} was not made with kubeadm: imgctl does not manage its certificates",
            args.cluster
        )));
    }
    let files = work.files()?;
    let kubeadm = Kubeadm::new(&files, work.validity()?);
    let summary = work.carry_out(&prepared, &args.ssh, false, |means, scene| {
        renew::plan(means, scene, &kubeadm, &args.alt_names, &args.renew)
    })?;
    match summary {
        Some(summary) => report(&summary, &args.cluster, context),
        None => Ok(()),
    }
}

fn show(args: &CertArgs, context: &Context) -> Result<()> {
    let state = state(context, &args.cluster)?;
    let mut found = Vec::new();
    for file in ["pki/ca.crt", "pki/etcd/ca.crt", "pki/front-proxy-ca.crt", "etc/admin.conf"] {
        if let Some(certificate) = read(&state.join(file))? {
            found.push((file, certificate));
        }
    }
    if found.is_empty() {
        return Err(Error::not_found(format!("{} contains no certificates", state.display()))
            .hint(
                "only clusters that imgctl or sealos made with kubeadm keep certificates with \
                 their controller",
            ));
    }
    if context.ui.is_json() {
        let rows: Vec<Value> = found.iter().map(|(file, one)| row(file, one)).collect();
        return context.ui.json(&json!({"cluster": args.cluster, "certificates": rows}));
    }
    let mut head = vec!["FILE", "NAME", "EXPIRES", "LEFT"];
    if args.groups {
        head.push("GROUP");
    }
    let mut table = Table::new(&head);
    for (file, one) in &found {
        let left = one.not_after - i64::try_from(validity::now()).unwrap_or(i64::MAX);
        let mut cells = vec![
            (*file).to_owned(),
            one.common_name.clone(),
            date(one.not_after),
            match left {
                ..=0 => "expired".to_owned(),
                left => format!("{} days", left / 86_400),
            },
        ];
        if args.groups {
            cells.push(one.organization.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    context.ui.print(&table.render(true))
}

fn row(file: &str, one: &Certificate) -> Value {
    json!({
        "file": file,
        "commonName": one.common_name,
        "organization": one.organization,
        "issuer": one.issuer,
        "names": one.names,
        "authority": one.is_authority,
        "notBefore": date(one.not_before),
        "notAfter": date(one.not_after),
    })
}

fn date(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}

fn read(path: &Path) -> Result<Option<Certificate>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).path("read", path),
    };
    let text = if path.extension().is_some_and(|end| end == "conf") {
        kubeconfig::read(&text)?.certificate
    } else {
        Some(text)
    };
    text.map(|text| inspect::read(&text)).transpose()
}

/// Returns the controller's directory for the cluster.
fn state(context: &Context, cluster: &str) -> Result<PathBuf> {
    let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if cluster.is_empty() || cluster.starts_with(['.', '-']) || !cluster.chars().all(sound) {
        return Err(Error::usage(format!("`{cluster}` is not a cluster name"))
            .hint("use lower-case letters, digits, - and ."));
    }
    let environment = &context.environment;
    let root = environment
        .path("SEALOS_RUNTIME_ROOT")
        .or_else(|| environment.path("HOME").map(|home| home.join(".sealos")))
        .ok_or_else(|| {
            Error::usage("neither SEALOS_RUNTIME_ROOT nor HOME is set")
                .hint("set SEALOS_RUNTIME_ROOT to the directory of the clusters' state")
        })?;
    Ok(root.join(cluster))
}
