//! Displays the progress of an upgrade, and past upgrades.

use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::event::Outcome;
use imgctl_cluster::pipeline::journal::Past;
use imgctl_cluster::upgrade::document::{Document, few};
use imgctl_cluster::upgrade::report::Report;
use imgctl_cluster::upgrade::upgrade_store::{Ended, word};
use imgctl_ops::upgrade::Progress;

/// Prints the progress of the open upgrade, and past upgrades.
pub(crate) fn show(cluster: &str, progress: &Progress, context: &Context) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.json(&as_json(cluster, progress));
    }
    if let Some(copy) = &progress.copy {
        ui.note(&format!(
            "this is a copy as of {}; {} runs the upgrade",
            copy.says.time, copy.says.controller
        ));
    }
    match &progress.open {
        None => ui.line(&format!("cluster {cluster}: no upgrade is open"))?,
        Some(open) => {
            ui.line(&format!(
                "cluster {cluster}: {} {} from {} to {}: {}",
                open.direction.verb(),
                open.id,
                open.from.version,
                open.target().version,
                progress.status.map_or("planned", word)
            ))?;
            if let Some(past) = &progress.past {
                steps(open, past, context)?;
            }
        }
    }
    if progress.history.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["TIME", "NAME", "KIND", "FROM", "TO", "HOSTS", "END"]);
    for ended in &progress.history {
        table.row(vec![
            ended.time.clone(),
            ended.id.clone(),
            ended.direction.verb().to_owned(),
            ended.from.version.clone(),
            ended.to.version.clone(),
            scope(ended),
            word(ended.end).to_owned(),
        ]);
    }
    ui.line("")?;
    ui.print(&table.render(true))
}

fn as_json(cluster: &str, progress: &Progress) -> Value {
    let past = progress.past.as_ref();
    let outcome =
        |step: &String| past.and_then(|past| past.steps.get(step)).and_then(|step| step.outcome);
    let steps: Vec<Value> = past
        .iter()
        .flat_map(|past| &past.order)
        .map(|step| json!({ "step": step, "outcome": outcome(step) }))
        .collect();
    json!({
        "cluster": cluster,
        "open": progress.open.as_ref().map(|open| json!({
            "id": open.id,
            "direction": open.direction,
            "from": open.from,
            "to": open.target(),
            "state": progress.status,
            "journal": past.map(|past| &past.id),
            "steps": steps,
        })),
        "history": progress.history,
        "copy": progress.copy.as_ref().map(|copy| json!({
            "time": copy.says.time,
            "controller": copy.says.controller,
            "directory": copy.directory,
        })),
    })
}

/// Summarizes the hosts of an upgrade; empty if they were not recorded.
fn scope(ended: &Ended) -> String {
    match (&ended.hosts[..], &ended.left_out[..]) {
        ([], []) => String::new(),
        (_, []) => "all".to_owned(),
        (hosts, left) if hosts.len() > left.len() => format!("all but {}", few(left)),
        (hosts, _) => few(hosts),
    }
}

/// Shows the result of an upgrade: deviations from the plan, and whether restarts were predicted
/// correctly.
pub(crate) fn came(report: &Report, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        // One object per line, like all events.
        let event = json!({
            "time": jiff::Timestamp::now().to_string(), "event": "report", "report": report,
        });
        return context.ui.line(&event.to_string());
    }
    let (mut agreed, mut wrong) = (0, 0);
    for host in &report.hosts {
        for problem in &host.problems {
            context.ui.note(&format!("{}: {problem}", host.host));
        }
        let Some(restarts) = &host.restarts else {
            continue;
        };
        agreed += restarts.agreed;
        wrong += restarts.mismatches.len();
        for mismatch in &restarts.mismatches {
            context.ui.note(&format!("{}: {mismatch}", host.host));
        }
    }
    for workload in &report.workloads {
        context.ui.note(workload);
    }
    if agreed + wrong > 0 {
        context.ui.line(&format!("containers: {agreed} as predicted, {wrong} not"))?;
    }
    Ok(())
}

/// Prints one line for each host, with its last step.
fn steps(open: &Document, past: &Past, context: &Context) -> Result<()> {
    let mut table = Table::new(&["HOST", "DONE", "LAST STEP", "OUTCOME"]);
    for host in open.hosts.keys() {
        let own: Vec<&String> =
            past.order.iter().filter(|step| step.split('/').nth(1) == Some(host)).collect();
        let outcome = |step: &String| past.steps.get(step).and_then(|step| step.outcome);
        let done = own
            .iter()
            .filter(|step| matches!(outcome(step), Some(Outcome::Done | Outcome::Assumed)));
        let last = own.last();
        table.row(vec![
            host.clone(),
            done.count().to_string(),
            last.map_or_else(String::new, |step| (*step).clone()),
            last.map_or("", |step| outcome(step).map_or("under way", Outcome::word)).to_owned(),
        ]);
    }
    context.ui.print(&table.render(true))?;
    for (step, known) in &past.steps {
        if let (Some(Outcome::Failed), Some(message)) = (known.outcome, &known.message) {
            context.ui.line(&format!("{step}: {message}"))?;
        }
    }
    Ok(())
}
