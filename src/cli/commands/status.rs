//! The state of a cluster: `imgctl status` and `imgctl cert`.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::cluster_options::{ClusterArg, WorkArgs};
use crate::cli::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use crate::ui::table::{Table, human};
use imgctl_base::error::{Error, Result};
use imgctl_cluster::inplace::drift::Report;
use imgctl_cluster::pipeline::nodes::NodeStatus;
use imgctl_cluster::pipeline::status::{HostFacts, Status};
use imgctl_cluster::runtime::certificates::{inspect::Certificate, validity};
use imgctl_ops::maintain::{self, LastBackup, Renewal, renew_certificates};

/// Show the status of a cluster
#[derive(Args, Debug)]
#[command(
    after_help = "Queries every host, from any machine with SSH access. The exit code says whether all are healthy.

Examples:
  imgctl status
  imgctl status --cluster prod --json"
)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    ssh: SshArgs,
}

pub(crate) fn status(args: &StatusArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let found = maintain::status(&args.cluster.cluster, &session)?;
    let status = &found.status;
    if context.ui.is_json() {
        let last_backup = found.last_backup.as_ref();
        context.ui.json(&Shown { status, in_place: found.in_place.as_ref(), last_backup })?;
    } else {
        if let Some(phase) = found.phase {
            context.ui.line(&format!("cluster {}: {}", status.cluster, phase.as_str()))?;
        }
        show(status, context)?;
        if let Some(report) = &found.in_place {
            show_drift(report, context)?;
        }
        if let Some(last) = &found.last_backup {
            show_backup(last, context)?;
        }
    }
    found.check()
}

/// The status, and in-place changes.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(rename = "inplace", skip_serializing_if = "Option::is_none")]
    in_place: Option<&'a Report>,
    #[serde(rename = "lastBackup", skip_serializing_if = "Option::is_none")]
    last_backup: Option<&'a LastBackup>,
}

/// Shows when the last backup was made, and where it is.
fn show_backup(last: &LastBackup, context: &Context) -> Result<()> {
    let age = last.age(Timestamp::now());
    context.ui.line(&format!("\nlast backup: {age} ago, {} ({})", last.place, human(last.bytes)))
}

fn show_drift(report: &Report, context: &Context) -> Result<()> {
    if !report.workloads.is_empty() {
        context.ui.line("")?;
    }
    for workload in &report.workloads {
        context.ui.line(&workload.to_string())?;
    }
    Ok(())
}

fn show(status: &Status, context: &Context) -> Result<()> {
    let images = match &status.images[..] {
        [] => "none".to_owned(),
        images => images.join(", "),
    };
    context.ui.line(&format!("{}, images: {images}\n", status.runtime))?;
    let mut table =
        Table::new(&["HOST", "ROLES", "STATE", "NAME", "ARCH", "SYSTEM", "FREE", "TREE"]);
    for host in &status.hosts {
        let facts = host.facts.as_ref();
        let of = |get: &dyn Fn(&HostFacts) -> String| facts.map_or_else(String::new, get);
        let state = match (host.reachable, host.healthy) {
            (false, _) => "unreachable",
            (true, true) => "well",
            (true, false) => "ill",
        };
        table.row(vec![
            host.host.clone(),
            host.roles.join(","),
            state.to_owned(),
            of(&|facts| facts.hostname.clone()),
            of(&|facts| facts.architecture.clone()),
            of(&|facts| facts.system.clone()),
            of(&|facts| human(facts.free_bytes)),
            host.trees.get("rootfs").map(|id| id.chars().take(12).collect()).unwrap_or_default(),
        ]);
    }
    context.ui.print(&table.render(true))?;
    for host in &status.hosts {
        for problem in &host.problems {
            context.ui.line(&format!("{}: {problem}", host.host))?;
        }
    }
    if !status.nodes.is_empty() {
        let mut table = Table::new(&["NODE", "READY", "VERSION"]);
        for node in &status.nodes {
            table.row(vec![node.name.clone(), node.ready.to_string(), node.version.clone()]);
        }
        context.ui.line("")?;
        context.ui.print(&table.render(true))?;
    }
    // Problems of hosts are already shown with their hosts.
    let told = |problem: &str| {
        let mut problems = status.hosts.iter().flat_map(|host| &host.problems);
        problems.any(|told| told == problem)
    };
    let problems = status.nodes.iter().filter_map(NodeStatus::problem);
    for problem in problems.filter(|problem| !told(problem)) {
        context.ui.line(&problem)?;
    }
    Ok(())
}

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
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    renew: Vec<String>,

    /// Show the groups that certificates name
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
        hide_possible_values = true
    )]
    groups: Option<String>,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,
}

pub(crate) fn cert(args: &CertArgs, context: &Context) -> Result<()> {
    if let Some(list) = args.groups.as_deref().filter(|text| !matches!(*text, "true" | "false")) {
        return Err(Error::usage(format!(
            "--groups {list} is not supported: the groups in certificates are those that Kubernetes \
             components need"
        ))
        .hint(
            "a kubeconfig for other groups: `kubeadm kubeconfig user --client-name NAME --org GROUP` on \
             a control plane",
        ));
    }
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    if args.renew.is_empty() && args.alt_names.is_empty() {
        return show_certificates(&maintain::certificates(&args.cluster, &session)?, args, context);
    }
    let request = Renewal {
        cluster: args.cluster.clone(),
        alt_names: args.alt_names.clone(),
        renew: args.renew.clone(),
        options: args.work.options(context)?,
    };
    renew_certificates(&request, &session)
}

fn show_certificates(
    found: &[(&str, Certificate)],
    args: &CertArgs,
    context: &Context,
) -> Result<()> {
    if context.ui.is_json() {
        let rows: Vec<Value> =
            found.iter().map(|(file, one)| certificate_json(file, one)).collect();
        return context.ui.json(&json!({"cluster": args.cluster, "certificates": rows}));
    }
    let has_groups = args.groups.as_deref() == Some("true");
    let mut head = vec!["FILE", "NAME", "EXPIRES", "LEFT"];
    if has_groups {
        head.push("GROUP");
    }
    let mut table = Table::new(&head);
    for (file, one) in found {
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
        if has_groups {
            cells.push(one.organization.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    context.ui.print(&table.render(true))
}

fn certificate_json(file: &str, one: &Certificate) -> Value {
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
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}
