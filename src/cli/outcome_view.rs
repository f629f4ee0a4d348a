//! Display of what an operation would change on a cluster, and of its outcome.

use crate::cli::{context::Context, upgrade_view};
use crate::ui::{hosts_view::JsonEvents, table::human};
use imgctl_base::error::Result;
use imgctl_cluster::cluster::context::Host;
use imgctl_cluster::pipeline::event::{Event, Listener as _, Outcome as StepOutcome};
use imgctl_cluster::pipeline::{change::Planned, executor::Summary, step::PlanView};
use imgctl_cluster::upgrade::document::{Direction, HostBefore};
use imgctl_cluster::upgrade::plan::CANNOT_BE_REACHED;
use imgctl_ops::front_end::{Outcome, Upgraded};
use imgctl_ops::upgrade::check_blockers;

/// Prints all steps, as text or as one JSON object.
fn show_steps(view: &PlanView, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(view);
    }
    context.ui.notes(&view.notes);
    if view.phases.is_empty() {
        return context
            .ui
            .line(&format!("cluster {}: nothing to do, every host is up to date", view.cluster));
    }
    let mut text = String::new();
    for phase in &view.phases {
        text.push_str(&format!("{}\n", phase.phase));
        for host in &phase.hosts {
            text.push_str(&format!("  {}\n", host.host));
            for step in &host.steps {
                let mut marks = String::new();
                if step.done_before {
                    marks.push_str("  (done before)");
                }
                if step.bytes > 0 {
                    marks.push_str(&format!("  [{}]", human(step.bytes)));
                }
                let mut says = step.says.iter();
                let first = says.next().map_or("", String::as_str);
                text.push_str(&format!("    - {first}{marks}\n"));
                for line in says {
                    text.push_str(&format!("      {line}\n"));
                }
            }
        }
    }
    context.ui.print(&text)
}

/// Shows what is about to happen, before a prompt.
pub(crate) fn summary(planned: &Planned, context: &Context) -> Result<()> {
    context.ui.notes(&planned.plan.notes);
    let leaving: Vec<String> = planned.context.leaving.iter().map(Host::id).collect();
    let what = match (planned.plan.verb.as_str(), leaving.is_empty()) {
        ("reset", _) => format!(
            "cluster {} is torn down: everything that belongs to it is removed from {} hosts",
            planned.plan.cluster,
            planned.plan.hosts()
        ),
        (_, false) => format!(
            "{} leaves cluster {}: everything that belongs to the cluster is removed there",
            leaving.join(", "),
            planned.plan.cluster
        ),
        (verb, true) => format!("{verb} on cluster {}", planned.plan.cluster),
    };
    context.ui.say(&what);
    Ok(())
}

/// Shows an outcome. Fails if it is a plan that cannot be carried out.
pub(crate) fn show(outcome: &Outcome, context: &Context) -> Result<()> {
    let ui = &context.ui;
    match outcome {
        Outcome::Steps { steps, upgrade } => {
            show_steps(steps, context)?;
            upgrade.as_deref().map_or(Ok(()), check_blockers)
        }
        Outcome::Changed { cluster, summary } => changed(summary, cluster, context),
        Outcome::TornDown { .. } if ui.is_json() => Ok(()),
        Outcome::TornDown { cluster } => ui.line(&format!("cluster {cluster} is gone")),
        Outcome::UpgradePlan(document) => {
            upgrade_view::show(document, context)?;
            check_blockers(document)
        }
        Outcome::UpgradeInProgress(document) => {
            ui.note(&format!("the upgrade {} is already in progress", document.id));
            upgrade_view::show(document, context)
        }
        Outcome::UpToDate { cluster, image, findings } => {
            upgrade_view::show_findings(findings, context)?;
            ui.say(&format!("cluster {cluster}: nothing to do, it is already {image}"));
            Ok(())
        }
        Outcome::Paused(document) => {
            let (verb, id) = (document.direction.verb(), &document.id);
            ui.say(&format!("{verb} {id} is paused: run `imgctl upgrade resume` to continue"));
            Ok(())
        }
        Outcome::Upgraded(upgraded) => show_upgraded(upgraded, context),
        Outcome::NothingToRollBack => {
            ui.say("nothing to do: every host is at the former version");
            Ok(())
        }
    }
}

/// Shows the summary of a run; JSON events have already shown it, unless there was nothing to do.
fn changed(summary: &Summary, cluster: &str, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        if summary.journal.is_empty() {
            JsonEvents::default().event(&Event::End {
                outcome: StepOutcome::Done,
                done: 0,
                skipped: 0,
                failed: 0,
                duration_ms: 0,
                journal: String::new(),
            });
        }
        return Ok(());
    }
    if summary.done == 0 {
        return context
            .ui
            .line(&format!("cluster {cluster}: nothing to do, every host is up to date"));
    }
    let before = match summary.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} done before"),
    };
    context.ui.line(&format!("cluster {cluster}: {} steps done{before}", summary.done))
}

fn show_upgraded(upgraded: &Upgraded, context: &Context) -> Result<()> {
    let (ui, document) = (&context.ui, &upgraded.document);
    changed(&upgraded.summary, &document.cluster, context)?;
    upgrade_view::show_report(&upgraded.report, context)?;
    let (gone, left): (Vec<_>, Vec<_>) =
        document.hosts.iter().partition(|(_, host)| host.skipped.is_none());
    let version = &document.target().version;
    for (id, host) in &left {
        let why = host.skipped.as_deref().unwrap_or_default();
        ui.say(&format!("host {id} was skipped: {why}"));
    }
    let is_back = document.direction == Direction::Back;
    if !is_back && left.iter().any(|(_, host)| is_away(host)) {
        ui.say(&format!(
            "when skipped hosts are reachable again, run `imgctl upgrade {}` to upgrade them",
            document.target().image
        ));
    }
    // A rollback with a scope changes the version of its hosts, not of the cluster.
    if is_back && !left.is_empty() {
        for (id, _) in gone {
            ui.say(&format!("host {id} is now {version}"));
        }
    } else {
        ui.say(&format!("cluster {} is now {version}", document.cluster));
    }
    upgraded.notes.iter().for_each(|note| ui.say(note));
    Ok(())
}

fn is_away(host: &HostBefore) -> bool {
    host.skipped.as_deref().unwrap_or_default().starts_with(CANNOT_BE_REACHED)
}
