//! `imgctl status`.

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::context::Context;
use crate::cli::host_pool::Agents;
use crate::cli::ssh_options::SshArgs;
use crate::ui::size::human;
use crate::ui::table::Table;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::inplace::drift::{self, Report};
use imgctl_cluster::pipeline::nodes::{NETWORK_HINT, NodeStatus};
use imgctl_cluster::pipeline::status::{self, Status};
use imgctl_cluster::runtime::certificates::validity::Validity;
use imgctl_cluster::runtime::{HostPool, choice};
use imgctl_kube::client;

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

/// Queries the hosts and shows the status.
pub(crate) fn run(args: &StatusArgs, context: &Context) -> Result<()> {
    let looking = WorkArgs::look();
    let work = Work::begin("status", &args.cluster.cluster, &looking, context)?;
    let desired = work.existing()?.clone();
    let phase = desired.cluster.status.phase;
    let prepared = work.recorded(desired)?;
    let files = work.files()?;
    let runtime = choice::of(&prepared.scene, &files, Validity::default())?;
    let (_, settings) = args.ssh.resolve(context)?;
    let crew: Arc<dyn HostPool + Send> = Arc::new(Agents::new(settings, context)?);
    let key = format!("status-{}", Timestamp::now().as_millisecond());
    let status = status::ask(&prepared.scene, &*runtime, &crew, 32, &key);
    // A cluster without an API has no drift, and an API that does not answer is visible already.
    let changed = if status.nodes.is_empty() { None } else { in_place(&prepared.scene, &*crew) };
    if context.ui.is_json() {
        context.ui.json(&Shown { status: &status, in_place: changed.as_ref() })?;
    } else {
        if let Some(phase) = phase {
            context.ui.line(&format!("cluster {}: {}", status.cluster, phase.as_str()))?;
        }
        show(&status, context)?;
        if let Some(report) = &changed {
            show_drift(report, context)?;
        }
    }
    if status.is_well() { Ok(()) } else { Err(not_well(&status)) }
}

/// Names the unhealthy hosts and Nodes; the reasons are shown above.
fn not_well(status: &Status) -> Error {
    let mut ill = Vec::new();
    for host in status.hosts.iter().filter(|host| !host.healthy) {
        ill.push(host.host.clone());
    }
    for node in status.nodes.iter().filter(|node| !node.ready) {
        if !node.host.as_ref().is_some_and(|host| ill.contains(host)) {
            ill.push(format!("Node {}", node.name));
        }
    }
    let what = format!("cluster {} is not healthy: {}", status.cluster, ill.join(", "));
    let error = Error::new(Kind::CheckFailed, what);
    if status.nodes.iter().any(|node| node.lacks_network) {
        error.hint(NETWORK_HINT)
    } else {
        error
    }
}

/// The status, and in-place changes.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(rename = "inplace", skip_serializing_if = "Option::is_none")]
    in_place: Option<&'a Report>,
}

/// Returns where Pods run other images than their templates specify; `None` if the API cannot be
/// queried.
fn in_place(scene: &ClusterContext, crew: &dyn HostPool) -> Option<Report> {
    let agent = crew.agent(scene.first()?);
    let asked = agent.and_then(client::connect).and_then(|api| drift::report(&*api, None));
    asked.inspect_err(|error| tracing::info!("images of Pods: {error}")).ok()
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
    context.ui.line(&format!("{}, images: {}\n", status.runtime, status.images.join(", ")))?;
    let mut table =
        Table::new(&["HOST", "ROLES", "STATE", "NAME", "ARCH", "SYSTEM", "FREE", "TREE"]);
    for host in &status.hosts {
        let facts = host.facts.as_ref();
        let of = |get: &dyn Fn(&status::HostFacts) -> String| facts.map_or_else(String::new, get);
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
