//! Displays the progress of an upgrade, and past upgrades.

use crate::cli::context::Context;
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::event::Outcome;
use imgctl_cluster::pipeline::journal::Past;
use imgctl_cluster::upgrade::document::few;
use imgctl_cluster::upgrade::document::{Direction, Document};
use imgctl_cluster::upgrade::report::Report;
use imgctl_cluster::upgrade::upgrade_store::{Ended, UpgradeStatus, word};

/// Prints the status.
pub(crate) fn show(
    cluster: &str,
    open: Option<&Document>,
    stand: Option<UpgradeStatus>,
    past: Option<&Past>,
    history: &[Ended],
    context: &Context,
) -> Result<()> {
    match open {
        None => context.ui.line(&format!("cluster {cluster}: no upgrade is open"))?,
        Some(open) => {
            context.ui.line(&format!(
                "cluster {cluster}: {} {} from {} to {}: {}",
                verb(open.direction),
                open.id,
                open.from.version,
                open.target().version,
                stand.map_or("planned", word)
            ))?;
            if let Some(past) = past {
                steps(open, past, context)?;
            }
        }
    }
    if history.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["TIME", "NAME", "KIND", "FROM", "TO", "HOSTS", "END"]);
    for ended in history {
        table.row(vec![
            ended.time.clone(),
            ended.id.clone(),
            verb(ended.direction).to_owned(),
            ended.from.version.clone(),
            ended.to.version.clone(),
            scope(ended),
            word(ended.end).to_owned(),
        ]);
    }
    context.ui.line("")?;
    context.ui.print(&table.render(true))
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
        let event = serde_json::json!({
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

fn verb(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "upgrade",
        Direction::Back => "rollback",
    }
}
