//! Output of `imgctl inplace`.

use serde_json::json;

use crate::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_inplace::plan::{ContainerPlan, Plan};
use imgctl_inplace::{drift::Report, journal::Event};
use imgctl_ops::front_end::InPlace;
use imgctl_ui::table::Table;

/// Shows the plan: a table of Pods, messages about their workloads, problems and notes.
pub fn plan(plan: &Plan, context: &Context) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.json(plan);
    }
    let mut table =
        Table::new(&["BATCH", "POD", "NODE", "READY", "CONTAINER", "VERDICT", "FROM", "TO"]);
    for pod in &plan.pods {
        let batch = plan.batches.iter().position(|one| one.contains(&pod.uid));
        let batch = batch.map_or_else(|| "-".to_owned(), |number| (number + 1).to_string());
        let row = |one: Option<&ContainerPlan>, verdict: &str| {
            let cell = |of: fn(&ContainerPlan) -> &String| one.map(|one| of(one).clone());
            vec![
                batch.clone(),
                pod.full_name(),
                pod.node.clone(),
                if pod.ready { "yes" } else { "no" }.to_owned(),
                cell(|one| &one.name).unwrap_or_else(|| "-".to_owned()),
                verdict.to_owned(),
                cell(|one| &one.from).unwrap_or_default(),
                one.map_or_else(String::new, to),
            ]
        };
        if pod.containers.is_empty() {
            table.row(row(None, pod.verdict.as_str()));
        }
        for one in &pod.containers {
            let verdict = match &pod.reason {
                Some(_) => pod.verdict,
                None => one.verdict,
            };
            let resized = one.resize.is_some() && one.from == one.to;
            table.row(row(Some(one), if resized { "RESIZE" } else { verdict.as_str() }));
        }
    }
    ui.print(&table.render(true))?;
    for group in plan.groups.values() {
        ui.line("")?;
        ui.line(&format!(
            "{}: {} of {} Pods ready, {} may be out of service at once",
            group.full_name(),
            group.ready,
            group.desired,
            group.max_unavailable
        ))?;
        for budget in &group.budgets {
            ui.line(&format!(
                "  PodDisruptionBudget {}: {} disruptions allowed, {} healthy, {} needed",
                budget.name,
                budget.disruptions_allowed,
                budget.current_healthy,
                budget.desired_healthy
            ))?;
        }
        if !group.consequence.is_empty() {
            ui.line(&format!("  {}", group.consequence))?;
        }
    }
    let slowest = plan.work().map(|pod| pod.stop_seconds + pod.start_seconds.unwrap_or(0)).max();
    if let Some(slowest) = slowest {
        ui.line("")?;
        ui.line(&format!("out of service: at most about {slowest} s for each Pod"))?;
    }
    for note in &plan.notes {
        ui.line(&format!("note: {note}"))?;
    }
    for problem in &plan.problems {
        ui.line(&format!("problem: {}: {}", problem.subject, problem.reason))?;
        if let Some(hint) = &problem.hint {
            ui.line(&format!("  hint: {hint}"))?;
        }
    }
    ui.line(&format!("plan {}", plan.digest))
}

fn to(one: &ContainerPlan) -> String {
    let Some(resize) = &one.resize else {
        return one.to.clone();
    };
    let mut parts = Vec::new();
    if one.from != one.to {
        parts.push(one.to.clone());
    }
    let lists = [
        ("requests", &resize.from.requests, &resize.to.requests),
        ("limits", &resize.from.limits, &resize.to.limits),
    ];
    for (what, from, to) in lists {
        for (name, amount) in to {
            if from.get(name) != Some(amount) {
                parts.push(format!("{what}.{name}={amount}"));
            }
        }
    }
    parts.join(" ")
}

/// Shows the progress of a run.
pub fn progress(progress: &InPlace<'_>, context: &Context) -> Result<()> {
    let ui = &context.ui;
    let value = match progress {
        InPlace::Begun { plan, journal, .. } => {
            let (id, pods, batches) = (journal.id(), plan.work().count(), plan.batches.len());
            if !ui.is_json() {
                return ui.line(&format!("run {id}: {pods} Pods in {batches} batches"));
            }
            json!({
                "event": "start", "id": id, "plan": plan.digest, "pods": pods,
                "batches": batches, "journal": journal.path(),
            })
        }
        InPlace::Event(event) if !ui.is_json() => return ui.line(&text(event)),
        InPlace::Event(event) => serde_json::to_value(event)
            .map_err(|error| Error::failed("cannot write an event").caused_by(error))?,
        InPlace::Ended { summary, journal } => {
            let id = journal.id();
            if !ui.is_json() {
                return ui.line(&format!(
                    "run {id}: {} Pods changed, {} already up to date, {} replaced, {} templates \
                     updated",
                    summary.changed, summary.skipped, summary.gone, summary.synced
                ));
            }
            json!({
                "event": "end", "id": id, "changed": summary.changed, "skipped": summary.skipped,
                "gone": summary.gone, "templates": summary.synced,
                "journal": journal.path(),
            })
        }
    };
    // One object per line.
    ui.json_line(&value)
}

fn text(event: &Event) -> String {
    match event {
        Event::Pulled { images } => format!("{images} images pulled on their Nodes"),
        Event::Batch { number, of, pods } => format!("batch {number} of {of}: {pods} Pods"),
        Event::Pod { pod, phase, message, .. } => {
            let phase = serde_json::to_value(phase).unwrap_or_default();
            let phase = phase.as_str().unwrap_or_default();
            match message {
                Some(message) => format!("  {pod}: {phase}: {message}"),
                None => format!("  {pod}: {phase}"),
            }
        }
        Event::Template { workload, message } => format!("{workload}: {message}"),
        Event::Note { message } => format!("note: {message}"),
    }
}

/// Shows drift and unfinished runs.
pub fn status(report: &Report, runs: &[String], context: &Context) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.json(&json!({
            "workloads": report.workloads, "pods": report.pods, "runs": runs,
        }));
    }
    if report.workloads.is_empty() && report.pods.is_empty() {
        return ui.line("every workload's Pods have the images of its template");
    }
    let mut table = Table::new(&["WORKLOAD", "CONTAINER", "TEMPLATE", "PODS", "RUN"]);
    for one in &report.workloads {
        let name = format!("{} {}/{}", one.kind, one.namespace, one.name);
        let run = match (&one.unfinished, &one.kept) {
            (Some(id), _) => format!("{id} (not finished)"),
            (None, Some(id)) => format!("{id} (kept)"),
            (None, None) => "-".to_owned(),
        };
        if one.containers.is_empty() {
            let none = || "-".to_owned();
            table.row(vec![name.clone(), none(), none(), none(), run.clone()]);
        }
        for container in &one.containers {
            let pods: Vec<String> =
                container.pods.iter().map(|(image, count)| format!("{count}× {image}")).collect();
            table.row(vec![
                name.clone(),
                container.name.clone(),
                container.template.clone(),
                pods.join(", "),
                run.clone(),
            ]);
        }
    }
    for pod in &report.pods {
        for (container, (before, now)) in &pod.images {
            table.row(vec![
                format!("Pod {}/{}", pod.namespace, pod.name),
                container.clone(),
                format!("(was {before})"),
                now.clone(),
                pod.id.clone(),
            ]);
        }
    }
    ui.print(&table.render(true))
}
