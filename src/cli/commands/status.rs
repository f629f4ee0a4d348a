//! `imgctl status`.

use clap::Args;
use serde::Serialize;

use crate::cli::{
    cluster_options::ClusterArg, context::Context, registry_options::RegistryArgs,
    ssh_options::SshArgs,
};
use crate::ui::table::{Table, human};
use imgctl_base::error::Result;
use imgctl_cluster::inplace::drift::Report;
use imgctl_cluster::pipeline::nodes::NodeStatus;
use imgctl_cluster::pipeline::status::{HostFacts, Status};
use imgctl_ops::status;

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

pub(crate) fn run(args: &StatusArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let found = status::status(&args.cluster.cluster, &session)?;
    let status = &found.status;
    if context.ui.is_json() {
        context.ui.json(&Shown { status, in_place: found.in_place.as_ref() })?;
    } else {
        if let Some(phase) = found.phase {
            context.ui.line(&format!("cluster {}: {}", status.cluster, phase.as_str()))?;
        }
        show(status, context)?;
        if let Some(report) = &found.in_place {
            show_drift(report, context)?;
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
