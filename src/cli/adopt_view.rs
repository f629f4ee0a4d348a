//! What `imgctl adopt` shows: the cluster as it was read, and what was found.

use serde_json::json;

use crate::cli::{context::Context, upgrade_view::findings_text};
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_cluster::adopt::reading::{AdoptedHost, Adoption};
use imgctl_cluster::pipeline::step::PlanView;

/// Prints the cluster and the findings.
pub(crate) fn show(adoption: &Adoption, context: &Context) -> Result<()> {
    let mut text =
        format!("cluster {}: {} {}\n", adoption.cluster, adoption.runtime, adoption.version);
    if let Some(endpoint) = &adoption.endpoint {
        text.push_str(&format!("API endpoint: {endpoint}\n"));
    }
    if let Some(etcd) = adoption.etcd {
        text.push_str(&format!("etcd: {etcd}\n"));
    }
    if let Some(record) = &adoption.record {
        text.push_str(&format!("record: {record}\n"));
    }
    if !adoption.images.is_empty() {
        text.push_str(&format!("images: {}\n", adoption.images.join(", ")));
    }
    text.push('\n');
    let mut table = Table::new(&["HOST", "ROLES", "NODE", "VERSION", "RUNTIME", "CERTIFICATES"]);
    for host in &adoption.hosts {
        table.row(row(host));
    }
    text.push_str(&table.render(true));
    if !adoption.findings.is_empty() {
        text.push('\n');
        text.push_str(&findings_text(&adoption.findings));
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
