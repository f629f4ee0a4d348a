//! Display of an upgrade plan: the order of the hosts, the containers that restart, and findings.

use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_cluster::upgrade::document::{
    Direction, Document, Finding, HostBefore, Release, Severity,
};

/// Maximum number of containers listed for one host.
const NAMED: usize = 20;

/// Prints the whole plan, as text or as one JSON object: the document with its `digest`.
pub(crate) fn show(document: &Document, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&as_json(document)?);
    }
    context.ui.print(&text(document)?)
}

/// Prints only findings, for example when there is nothing to do.
pub(crate) fn show_findings(findings: &[Finding], context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&json!({ "findings": findings }));
    }
    context.ui.print(&findings_text(findings))
}

fn as_json(document: &Document) -> Result<Value> {
    let mut value = json!(document);
    value["digest"] = json!(document.digest()?);
    Ok(value)
}

fn text(document: &Document) -> Result<String> {
    let target = document.target();
    let verb = document.direction.verb();
    let mut text = format!(
        "{verb} {} of cluster {} ({}): {} → {}\n",
        document.id,
        document.cluster,
        document.runtime,
        release(&document.from),
        release(target)
    );
    text.push_str(&format!("plan {}\n", document.digest()?));
    if document.hops.len() > 1 {
        text.push_str("\nhops\n");
        for hop in &document.hops {
            let who = match hop.workers {
                true => "control planes and workers",
                false => "control planes",
            };
            text.push_str(&format!("  {}: {who}\n", release(hop)));
        }
    }
    text.push('\n');
    text.push_str(&order(document));
    text.push_str(&restarts(document));
    if !document.findings.is_empty() {
        text.push('\n');
        text.push_str(&findings_text(&document.findings));
    }
    if !document.notes.is_empty() {
        text.push_str("\nnotes\n");
        for note in &document.notes {
            text.push_str(&format!("  - {note}\n"));
        }
    }
    let blockers = document.blockers().count();
    if blockers > 0 {
        let what = if blockers == 1 { "error blocks" } else { "errors block" };
        text.push_str(&format!("\n{blockers} {what} the start\n"));
    }
    Ok(text)
}

fn release(release: &Release) -> String {
    format!("{} ({})", release.version, release.image)
}

/// Returns the hosts in upgrade order; a rollback begins with the workers.
fn order(document: &Document) -> String {
    let planes = document.control_planes.iter().map(|id| ("control plane".to_owned(), id));
    let canary = document.canary.iter().map(|id| ("canary".to_owned(), id));
    let batches =
        document.batches.iter().zip(1..).flat_map(|(batch, number)| {
            batch.iter().map(move |id| (format!("batch {number}"), id))
        });
    let workers = canary.chain(batches);
    let rows: Vec<(String, &String)> = match document.direction {
        Direction::Forward => planes.chain(workers).collect(),
        Direction::Back => workers.chain(planes).collect(),
    };
    let mut table = Table::new(&["ORDER", "HOST", "NODE", "ARCH", "VERSION", "CONTAINERS"]);
    for (when, id) in rows {
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

/// Returns the prediction for a host, recorded with or without that of its rollback.
fn prediction<'a>(document: &'a Document, id: &str) -> Option<&'a Value> {
    let value = document.restarts.get(id)?;
    Some(value.get("forward").unwrap_or(value))
}

fn counts(document: &Document, id: &str) -> String {
    let Some(counts) = prediction(document, id).and_then(|one| one.get("counts")) else {
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
fn restarts(document: &Document) -> String {
    let mut text = String::new();
    for id in document.restarts.keys() {
        let containers = prediction(document, id)
            .and_then(|one| one.get("containers")?.as_array())
            .into_iter()
            .flatten();
        let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let disturbed: Vec<String> = containers
            .filter(|one| !matches!(word(one, "verdict").to_lowercase().as_str(), "keep" | "ended"))
            .map(|one| {
                format!(
                    "    {} {}/{} {}: {}\n",
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
        text.push_str(&format!("  {id}\n"));
        text.extend(disturbed.iter().take(NAMED).map(String::as_str));
        if disturbed.len() > NAMED {
            text.push_str(&format!("    and {} more\n", disturbed.len() - NAMED));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\ncontainers that are affected\n{text}"),
    }
}

fn findings_text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
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
        text.push_str("\nwhat to do\n");
        for (check, hint) in hints {
            text.push_str(&format!("  {check}: {hint}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_cluster::upgrade::document::HopMode;
    use imgctl_cluster::upgrade::testing::{document, kubernetes, request};

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
            assert!(told.contains(expected), "{expected}\n{told}");
        }
        assert!(!told.contains("a/d"));
        let told = as_json(&plan).unwrap();
        assert_eq!(told["digest"], json!(plan.digest().unwrap()));
        assert_eq!(told["controlPlanes"], json!(["10.0.0.1"]));
    }
}
