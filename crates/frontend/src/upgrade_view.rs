//! Display of upgrades: the plan (the order of the hosts, the containers that restart, findings), the
//! progress, and past upgrades.

use serde_json::{Value, json};

use crate::context::Context;
use imgctl_base::error::Result;
use imgctl_base::text::Lines;
use imgctl_journal::{Past, event::Outcome};
use imgctl_ops::upgrade::Progress;
use imgctl_ui::table::Table;
use imgctl_upgrade::document::{Document, Finding, HostBefore, Release, Severity, few};
use imgctl_upgrade::report::Report;
use imgctl_upgrade::upgrade_store::{Ended, word};
use imgctl_upgrade::window::{WindowState, Windows};
use imgctl_workflow::pipeline::step::PlanView;

/// Maximum number of containers listed for one host.
const NAMED: usize = 20;

/// Prints the whole plan, as text or as one JSON object: the document with its `digest`.
pub fn show(document: &Document, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&plan_json(document)?);
    }
    context.ui.print(&text(document)?)
}

/// Prints the plan of a change of settings; with `--json`, the steps with the plan as the member
/// `change`.
pub(crate) fn show_settings(
    document: &Document,
    steps: &PlanView,
    context: &Context,
) -> Result<()> {
    if context.ui.is_json() {
        let mut value = json!(steps);
        value["change"] = plan_json(document)?;
        return context.ui.json(&value);
    }
    context.ui.print(text(document)?.line(""))
}

/// Prints only findings, for example when there is nothing to do.
pub(crate) fn show_findings(findings: &[Finding], context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&json!({ "findings": findings }));
    }
    context.ui.print(&findings_text(findings))
}

fn plan_json(document: &Document) -> Result<Value> {
    let mut value = json!(document);
    value["digest"] = json!(document.digest()?);
    if let Some(state) = window_now(document) {
        value["window"] = window_json(&state);
    }
    Ok(value)
}

fn text(document: &Document) -> Result<Lines> {
    let target = document.target();
    let verb = document.direction.verb();
    let mut text = Lines::default();
    if document.is_reconfiguration() {
        text.line(format_args!(
            "{} {} of cluster {} ({}, {})",
            document.kind(),
            document.id,
            document.cluster,
            document.runtime,
            release(target)
        ));
    } else {
        text.line(format_args!(
            "{verb} {} of cluster {} ({}): {} → {}",
            document.id,
            document.cluster,
            document.runtime,
            release(&document.from),
            release(target)
        ));
    }
    text.line(format_args!("plan {}", document.digest()?));
    if document.hops.len() > 1 {
        text.line("").line("hops");
        for hop in &document.hops {
            let who = if hop.workers { "control planes and workers" } else { "control planes" };
            text.line(format_args!("  {}: {who}", release(hop)));
        }
    }
    if document.is_reconfiguration() {
        text.line("").append(&settings(document));
    }
    if !document.choices.windows.is_empty() {
        let next = next(document);
        text.line("").line(format_args!("windows (hosts begin to change only then; {next})"));
        for window in &document.choices.windows {
            text.line(format_args!("  {window}"));
        }
    }
    text.line("").append(&order(document)).append(&restarts(document));
    if !document.findings.is_empty() {
        text.line("").append(&findings_text(&document.findings));
    }
    if !document.notes.is_empty() {
        text.line("").line("notes");
        for note in &document.notes {
            text.line(format_args!("  - {note}"));
        }
    }
    let blockers = document.blockers().count();
    if blockers > 0 {
        let what = if blockers == 1 { "error blocks" } else { "errors block" };
        text.line("").line(format_args!("{blockers} {what} the start"));
    }
    Ok(text)
}

/// Returns whether a window of `document` is open; `None` if it has none.
fn window_now(document: &Document) -> Option<WindowState> {
    let windows = Windows::of(&document.choices.windows).ok()??;
    Some(windows.at(jiff::Timestamp::now()))
}

/// Returns when the next window opens or the present one closes, in words.
fn next(document: &Document) -> String {
    match window_now(document) {
        Some(WindowState::Closed { opens }) => format!("the next opens {opens}"),
        Some(WindowState::Open { closes }) => format!("open until {closes}"),
        _ => "always open".to_owned(),
    }
}

/// Returns the form of a window's state in JSON.
pub(crate) fn window_json(state: &WindowState) -> Value {
    match state {
        WindowState::Closed { opens } => json!({ "open": false, "opens": opens.rfc3339() }),
        WindowState::Open { closes } => json!({ "open": true, "closes": closes.rfc3339() }),
        WindowState::Always => json!({ "open": true }),
    }
}

/// Returns each setting with its old and new value, and what restarts where.
fn settings(document: &Document) -> Lines {
    let value = |value: &Option<Value>| match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let mut table = Table::new(&["DOCUMENT", "SETTING", "OLD", "NEW", "RESTARTS", "HOSTS"]);
    for one in &document.settings {
        table.row(vec![
            one.document.clone(),
            one.name.clone(),
            value(&one.old),
            value(&one.new),
            one.component.name().to_owned(),
            if one.hosts.len() == document.hosts.len() {
                "all".to_owned()
            } else {
                few(&one.hosts)
            },
        ]);
    }
    table.render(true)
}

fn release(release: &Release) -> String {
    format!("{} ({})", release.version, release.image)
}

/// Returns the hosts in upgrade order; a rollback begins with the workers.
fn order(document: &Document) -> Lines {
    let mut table = Table::new(&["ORDER", "HOST", "NODE", "ARCH", "VERSION", "CONTAINERS"]);
    for (when, id) in document.order() {
        let host = document.hosts.get(id).cloned().unwrap_or_default();
        table.row(row(when, id, &host, counts(document, id)));
    }
    for (id, host) in &document.hosts {
        if let Some(why) = &host.skipped {
            table.row(row("skipped".to_owned(), id, host, why.clone()));
        }
    }
    table.render(true)
}

fn row(when: String, id: &str, host: &HostBefore, last: String) -> Vec<String> {
    vec![
        when,
        id.to_owned(),
        host.node.clone().unwrap_or_default(),
        host.architecture.clone(),
        host.version.clone().unwrap_or_default(),
        last,
    ]
}

fn counts(document: &Document, id: &str) -> String {
    let Some(counts) = document.prediction(id).and_then(|one| one.get("counts")) else {
        // Nothing is predicted for a host that did not report what runs on it.
        let is_untold = document
            .findings
            .iter()
            .any(|one| one.check == "restarts" && one.host.as_deref() == Some(id));
        return if is_untold { "unknown" } else { "" }.to_owned();
    };
    let words: Vec<String> = ["keep", "restart", "recreate", "unknown"]
        .into_iter()
        .filter_map(|word| {
            let count = counts.get(word)?.as_u64().filter(|count| *count > 0)?;
            Some(format!("{count} {word}"))
        })
        .collect();
    words.join(", ")
}

/// Returns the containers that change, by host.
fn restarts(document: &Document) -> Lines {
    let mut text = Lines::default();
    for id in document.restarts.keys() {
        let containers = document
            .prediction(id)
            .and_then(|one| one.get("containers")?.as_array())
            .into_iter()
            .flatten();
        let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let disturbed: Vec<String> = containers
            .filter(|one| !matches!(word(one, "verdict").to_lowercase().as_str(), "keep" | "ended"))
            .map(|one| {
                format!(
                    "    {} {}/{} {}: {}",
                    word(one, "verdict").to_lowercase(),
                    word(one, "namespace"),
                    word(one, "pod"),
                    word(one, "container"),
                    word(one, "reason")
                )
            })
            .collect();
        if disturbed.is_empty() {
            continue;
        }
        if text.is_empty() {
            text.line("").line("containers that are affected");
        }
        text.line(format_args!("  {id}"));
        for one in disturbed.iter().take(NAMED) {
            text.line(one);
        }
        if disturbed.len() > NAMED {
            text.line(format_args!("    and {} more", disturbed.len() - NAMED));
        }
    }
    text
}

pub(crate) fn findings_text(findings: &[Finding]) -> Lines {
    if findings.is_empty() {
        return Lines::default();
    }
    let mut table = Table::new(&["SEVERITY", "CHECK", "HOST", "FOUND"]);
    for finding in findings {
        let severity = match (finding.severity, finding.skipped) {
            (_, true) => "skipped",
            (Severity::Error, _) => "error",
            (Severity::Warning, _) => "warning",
            (Severity::Note, _) => "note",
        };
        table.row(vec![
            severity.to_owned(),
            finding.check.clone(),
            finding.host.clone().unwrap_or_default(),
            finding.what.clone(),
        ]);
    }
    let mut text = table.render(true);
    let mut hints: Vec<(&str, &str)> = Vec::new();
    for finding in findings.iter().filter(|one| one.severity != Severity::Note) {
        if let Some(hint) = finding.hint.as_deref()
            && !hints.iter().any(|(_, told)| *told == hint)
        {
            hints.push((&finding.check, hint));
        }
    }
    if !hints.is_empty() {
        text.line("").line("what to do");
        for (check, hint) in hints {
            text.line(format_args!("  {check}: {hint}"));
        }
    }
    text
}

/// Prints the progress of the open upgrade, and past upgrades.
pub fn show_progress(cluster: &str, progress: &Progress, context: &Context) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.json(&progress_json(cluster, progress));
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
            let way = if open.is_reconfiguration() {
                String::new()
            } else {
                format!(" from {} to {}", open.from.version, open.target().version)
            };
            ui.line(&format!(
                "cluster {cluster}: {} {}{way}: {}",
                open.kind(),
                open.id,
                progress.status.map_or("planned", word)
            ))?;
            if !open.choices.windows.is_empty() {
                ui.line(&format!("windows {}: {}", open.choices.windows.join("; "), next(open)))?;
            }
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

fn progress_json(cluster: &str, progress: &Progress) -> Value {
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
            "settings": open.settings,
            "from": open.from,
            "to": open.target(),
            "state": progress.status,
            "windows": open.choices.windows,
            "window": window_now(open).as_ref().map(window_json),
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
pub(crate) fn show_report(report: &Report, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        // One object per line, like all events.
        let event = json!({
            "time": jiff::Timestamp::now().to_string(), "event": "report", "report": report,
        });
        return context.ui.json_line(&event);
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
    context.ui.notes(&report.workloads);
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

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_upgrade::document::HopMode;
    use imgctl_upgrade::testing::{document, kubernetes, request};

    #[test]
    fn a_plan_is_told() {
        let mut cluster = kubernetes(1, 3, "v1.32.4");
        cluster.hosts[3].unreachable = Some("no route".into());
        cluster.api.as_mut().unwrap().lease_holder = Some("somebody".into());
        let mut request = request("v1.32.4", &["v1.33.2", "v1.34.1"]);
        request.choices.hop = HopMode::Auto;
        let mut plan = document(&cluster, &request);
        plan.restarts.insert(
            "10.1.0.1".into(),
            json!({"counts": {"keep": 4, "restart": 1, "recreate": 0}, "containers": [
                {"namespace": "a", "pod": "b", "container": "c", "verdict": "Restart", "reason": "because"},
                {"namespace": "a", "pod": "d", "container": "c", "verdict": "Keep", "reason": "same"},
            ]}),
        );
        let told = text(&plan).unwrap();
        for expected in [
            "v1.32.4 (kubernetes:v1.32.4) → v1.34.1 (kubernetes:v1.34.1)",
            "v1.33.2 (kubernetes:v1.33.2): control planes\n",
            "control plane   10.0.0.1",
            "canary          10.1.0.1   node-10-1-0-1   amd64   v1.32.4   4 keep, 1 restart",
            "batch 1         10.1.0.2",
            "skipped         10.1.0.3",
            "    restart a/b c: because\n",
            "error      lock",
            "lock: wait",
            "1 error blocks the start",
            "notes\n",
        ] {
            assert!(told.as_str().contains(expected), "{expected}\n{told}");
        }
        assert!(!told.as_str().contains("a/d"));
        let told = plan_json(&plan).unwrap();
        assert_eq!(told["digest"], json!(plan.digest().unwrap()));
        assert_eq!(told["controlPlanes"], json!(["10.0.0.1"]));
    }
}
