//! What `imgctl adopt` shows: the cluster as it was read, and what was found.

use serde_json::json;

use crate::{context::Context, upgrade_view::findings_text};
use imgctl_base::error::Result;
use imgctl_base::text::Lines;
use imgctl_ui::table::Table;
use imgctl_upgrade::adopt::reading::{AdoptedHost, Adoption};
use imgctl_workflow::pipeline::step::PlanView;

/// Prints the cluster and the findings.
pub(crate) fn show(adoption: &Adoption, context: &Context) -> Result<()> {
    let mut text = Lines::default();
    text.line(format_args!(
        "cluster {}: {} {}",
        adoption.cluster, adoption.runtime, adoption.version
    ));
    if let Some(endpoint) = &adoption.endpoint {
        text.line(format_args!("API endpoint: {endpoint}"));
    }
    if let Some(etcd) = adoption.etcd {
        text.line(format_args!("etcd: {etcd}"));
    }
    if let Some(record) = &adoption.record {
        text.line(format_args!("record: {record}"));
    }
    if !adoption.images.is_empty() {
        text.line(format_args!("images: {}", adoption.images.join(", ")));
    }
    text.line("");
    let mut table = Table::new(&["HOST", "ROLES", "NODE", "VERSION", "RUNTIME", "CERTIFICATES"]);
    for host in &adoption.hosts {
        table.row(row(host));
    }
    text.append(&table.render(true));
    if !adoption.findings.is_empty() {
        text.line("").append(&findings_text(&adoption.findings));
    }
    context.ui.print(&text)?;
    if adoption.known {
        let name = &adoption.cluster;
        context.ui.say(&format!("cluster {name}: nothing to do, this machine manages it already"));
    }
    Ok(())
}

fn row(host: &AdoptedHost) -> Vec<String> {
    let days = host.certificate_days.map(|days| format!("{days} days left"));
    vec![
        host.host.clone(),
        host.roles.join(","),
        host.node.clone().unwrap_or_default(),
        host.version.clone().unwrap_or_default(),
        host.runtime.clone().unwrap_or_default(),
        days.unwrap_or_default(),
    ]
}

/// Prints the same as one JSON object.
pub(crate) fn json(adoption: &Adoption, steps: Option<&PlanView>, context: &Context) -> Result<()> {
    let mut value = json!(adoption);
    if let Some(steps) = steps {
        value["steps"] = json!(steps);
    }
    context.ui.json(&value)
}
