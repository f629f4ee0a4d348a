//! How the status of a cluster is shown: as text, as JSON, and as rows for a screen.

use jiff::Timestamp;
use serde::Serialize;

use crate::context::Context;
use imgctl_base::error::Result;
use imgctl_base::text::{Lines, of_host};
use imgctl_inplace::drift::Report;
use imgctl_ops::maintain::{ClusterStatus, LastBackup};
use imgctl_ops::standing::Unfinished;
use imgctl_runtime::certificates::validity;
use imgctl_runtime::renewal::inventory::{Found, OfHost};
use imgctl_ui::status_screen::{Health, Shown as OnScreen, ShownHost};
use imgctl_ui::table::{Table, human};
use imgctl_workflow::pipeline::nodes::NodeStatus;
use imgctl_workflow::pipeline::status::{HostFacts, HostStatus, Status};

/// Prints a status as text.
pub fn text(found: &ClusterStatus, context: &Context) -> Result<()> {
    if let Some(unfinished) = &found.standing.unfinished {
        context.ui.line(&format!("unfinished: {}", unfinished.what))?;
        for command in &unfinished.next {
            context.ui.line(&format!("  {command}"))?;
        }
        context.ui.line("")?;
    }
    context.ui.line(&format!("cluster {}: {}", found.status.cluster, stands(found)))?;
    show(&found.status, context)?;
    if let Some(report) = &found.in_place {
        show_drift(report, context)?;
    }
    if let Some(failure) = &found.last_failure {
        context.ui.line("")?;
        context.ui.line(&failed(failure))?;
    }
    found.last_backup.as_ref().map_or(Ok(()), |last| show_backup(last, context))
}

fn failed(failure: &str) -> String {
    format!("the last change failed, {failure}")
}

/// Says how the cluster stands, with the phase in its Clusterfile, which sealos reads.
fn stands(found: &ClusterStatus) -> String {
    let phase = found.phase.map(|phase| format!(" ({})", phase.as_str())).unwrap_or_default();
    format!("{}{phase}", found.standing.word)
}

/// Returns a status as JSON.
pub fn json(found: &ClusterStatus) -> impl Serialize + '_ {
    shown(found, None)
}

/// Returns one of several statuses for one line of JSON.
pub fn at(found: &ClusterStatus, now: Timestamp) -> impl Serialize {
    shown(found, Some(now.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()))
}

fn shown(found: &ClusterStatus, time: Option<String>) -> Shown<'_> {
    Shown {
        time,
        state: &found.standing.word,
        unfinished: found.standing.unfinished.as_ref(),
        status: &found.status,
        in_place: found.in_place.as_ref(),
        last_backup: found.last_backup.as_ref(),
        last_failure: found.last_failure.as_deref(),
    }
}

/// Returns a status for a screen.
pub fn on_screen(found: &ClusterStatus, now: Timestamp) -> OnScreen {
    let status = &found.status;
    let images = match &status.images[..] {
        [] => String::new(),
        images => format!(", {}", images.join(", ")),
    };
    let drift = found.in_place.iter().flat_map(|report| &report.workloads);
    let unfinished =
        found.standing.unfinished.iter().map(|one| format!("unfinished: {}", one.what));
    let mut remarks: Vec<String> = unfinished.chain(drift.map(ToString::to_string)).collect();
    remarks.extend(found.last_failure.as_deref().map(failed));
    if let Some(last) = &found.last_backup {
        remarks.push(format!("last backup: {} ago, {}", last.age(now), last.place));
    }
    OnScreen {
        title: format!("cluster {}: {}, {}{images}", status.cluster, stands(found), status.runtime),
        time: now.strftime("%H:%M:%SZ").to_string(),
        hosts: status.hosts.iter().map(host_on_screen).collect(),
        nodes: (status.nodes.iter().filter(|node| node.ready).count(), status.nodes.len()),
        problems: other_problems(status),
        remarks,
    }
}

fn host_on_screen(host: &HostStatus) -> ShownHost {
    let mut facts = vec![host.roles.join(",")];
    if let Some(known) = &host.facts {
        facts.push(known.hostname.clone());
        facts.push(known.system.clone());
        facts.push(format!("{} free", human(known.free_bytes)));
    }
    if let Some(soonest) = host.certificates.as_ref().and_then(OfHost::soonest) {
        facts.push(format!("certificates {}", left(soonest)));
    }
    if let Some(serves) = host.registry {
        facts.push(if serves { "registry" } else { "registry does not serve" }.to_owned());
    }
    if host.peers == Some(true) {
        facts.push("peers".to_owned());
    }
    let health = match (host.reachable, host.healthy, host.warnings.is_empty()) {
        (false, ..) => Health::Unreachable,
        (true, false, _) => Health::Ill,
        (true, true, false) => Health::Warned,
        (true, true, true) => Health::Well,
    };
    ShownHost {
        name: host.host.clone(),
        health,
        facts: facts.join("  "),
        problems: host.problems.iter().chain(&host.warnings).cloned().collect(),
    }
}

/// The status, and in-place changes.
#[derive(Serialize)]
struct Shown<'a> {
    /// Time of the query, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished: Option<&'a Unfinished>,
    #[serde(flatten)]
    status: &'a Status,
    #[serde(rename = "inplace", skip_serializing_if = "Option::is_none")]
    in_place: Option<&'a Report>,
    #[serde(rename = "lastBackup", skip_serializing_if = "Option::is_none")]
    last_backup: Option<&'a LastBackup>,
    #[serde(rename = "lastFailure", skip_serializing_if = "Option::is_none")]
    last_failure: Option<&'a str>,
}

/// Shows when the last backup was made, and where it is.
fn show_backup(last: &LastBackup, context: &Context) -> Result<()> {
    let age = last.age(Timestamp::now());
    context.ui.line("")?;
    context.ui.line(&format!("last backup: {age} ago, {} ({})", last.place, human(last.bytes)))
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
    context.ui.line(&format!("{}, images: {images}", status.runtime))?;
    context.ui.line("")?;
    let mut table = Table::new(&[
        "HOST", "ROLES", "STATE", "VERSION", "NAME", "ARCH", "SYSTEM", "FREE", "CERTS",
    ]);
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
            // Without the image, the tree tells hosts apart.
            host.version.clone().unwrap_or_else(|| tree(host)),
            of(&|facts| facts.hostname.clone()),
            of(&|facts| facts.architecture.clone()),
            of(&|facts| facts.system.clone()),
            of(&|facts| human(facts.free_bytes)),
            host.certificates.as_ref().and_then(OfHost::soonest).map(left).unwrap_or_default(),
        ]);
    }
    context.ui.print(&table.render(true))?;
    for host in &status.hosts {
        for problem in host.problems.iter().chain(&host.warnings) {
            // Output of a script has several lines.
            let told = of_host(&host.host, problem);
            context.ui.print(&told.lines().collect::<Lines>())?;
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
    for problem in other_problems(status) {
        context.ui.line(&problem)?;
    }
    Ok(())
}

/// Returns the beginning of the ID of the host's tree.
fn tree(host: &HostStatus) -> String {
    host.trees.get("rootfs").map(|id| id.chars().take(12).collect()).unwrap_or_default()
}

/// Returns the problems that are not shown with their hosts.
fn other_problems(status: &Status) -> Vec<String> {
    let told = |problem: &str| {
        let mut problems = status.hosts.iter().flat_map(|host| &host.problems);
        problems.any(|told| told == problem)
    };
    let problems = status.nodes.iter().filter_map(NodeStatus::problem);
    let problems = problems.chain(status.problems_of_pods());
    problems.filter(|problem| !told(problem)).collect()
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
    context.ui.line("")?;
    context.ui.line(&format!("registry: {}", hosts.join(", ")))
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
