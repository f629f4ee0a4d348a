//! `imgctl status`: the state of a cluster.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use crate::ui::table::{Table, human};
use imgctl_base::error::Result;
use imgctl_cluster::inplace::drift::Report;
use imgctl_cluster::pipeline::nodes::NodeStatus;
use imgctl_cluster::pipeline::status::{HostFacts, HostStatus, Status};
use imgctl_cluster::renewal::inventory::{Found, OfHost};
use imgctl_cluster::runtime::certificates::validity;
use imgctl_ops::maintain::{self, LastBackup};

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
        Table::new(&["HOST", "ROLES", "STATE", "NAME", "ARCH", "SYSTEM", "FREE", "TREE", "CERTS"]);
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
            host.certificates.as_ref().and_then(OfHost::soonest).map(left).unwrap_or_default(),
        ]);
    }
    context.ui.print(&table.render(true))?;
    for host in &status.hosts {
        for problem in host.problems.iter().chain(&host.warnings) {
            context.ui.line(&format!("{}: {problem}", host.host))?;
        }
    }
    show_registry(status, context)?;
    show_renewals(status, context)?;
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
    let problems = problems.chain(status.problems_of_pods());
    for problem in problems.filter(|problem| !told(problem)) {
        context.ui.line(&problem)?;
    }
    Ok(())
}

/// Shows the registry hosts, and which of them serve.
fn show_registry(status: &Status, context: &Context) -> Result<()> {
    let of_host = |host: &HostStatus| {
        let word = if host.registry? { "serves" } else { "does not serve" };
        Some(format!("{} {word}", host.host))
    };
    let hosts: Vec<String> = status.hosts.iter().filter_map(of_host).collect();
    if hosts.is_empty() {
        return Ok(());
    }
    context.ui.line(&format!("\nregistry: {}", hosts.join(", ")))
}

/// How long the certificate lasts.
fn left(one: &Found) -> String {
    let now = i64::try_from(validity::now()).unwrap_or(i64::MAX);
    validity::left(one.certificate.not_after - now)
}

/// Shows what the timers of hosts have renewed last.
fn show_renewals(status: &Status, context: &Context) -> Result<()> {
    let records = status.hosts.iter().filter_map(|host| {
        let record = host.certificates.as_ref()?.renewal.as_ref()?;
        Some((host, record, record.renewed.last()?))
    });
    for (number, (host, record, last)) in records.enumerate() {
        if number == 0 {
            context.ui.line("")?;
        }
        let at = |at: &str| record.renewed.iter().filter(|one| one.at == at).count();
        context.ui.line(&format!(
            "{}: renewed {} certificates at {}",
            host.host,
            at(&last.at),
            last.at
        ))?;
    }
    Ok(())
}
