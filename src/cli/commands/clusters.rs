//! `imgctl clusters`: the clusters of this machine.

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::Result;
use imgctl_base::image::time::parse_rfc3339;
use imgctl_frontend::cluster_options::controller;
use imgctl_frontend::context::Context;
use imgctl_frontend::format::{Listing, Row};
use imgctl_ops::clusters::{self, KnownCluster};
use imgctl_ui::table::{ago, now};

/// List the clusters of this machine
#[derive(Args, Debug)]
#[command(
    after_help = "Shows what this machine has recorded, and asks no host: `imgctl status` does.
States: created; incomplete; a command and how it ended or that it is running, as in `upgrade failed`;
  unreadable (the state is damaged, or encrypted to somebody else).
Fields of --format: .Name .Version .Hosts .State .LastRun .LastRunID .LastRunAt

Examples:
  imgctl clusters
  imgctl clusters --format '{{.Name}} {{.State}}'"
)]
pub(crate) struct ClustersArgs {
    /// Show only names
    #[arg(short, long)]
    quiet: bool,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Do not print the table heading
    #[arg(short, long)]
    noheading: bool,
}

pub(crate) fn run(args: &ClustersArgs, context: &Context) -> Result<()> {
    let found = clusters::list(&controller(context)?)?;
    for cluster in &found {
        if let Some(problem) = &cluster.problem {
            context.ui.note(&format!("{}: {problem}", cluster.name));
        }
    }
    if found.is_empty() {
        context.ui.note("no clusters; `imgctl run IMAGE --masters HOSTS` makes one");
    }
    if args.quiet && !context.ui.is_json() {
        return context.ui.print(&found.iter().map(|cluster| &cluster.name).collect());
    }
    let listing = Listing {
        headings: vec!["NAME", "VERSION", "HOSTS", "STATE", "LAST RUN"],
        right: vec![2],
        rows: found.iter().map(row).collect(),
        json: found.iter().map(object).collect::<Vec<Value>>().into(),
    };
    listing.show(args.format.as_deref(), !args.noheading, context)
}

fn row(cluster: &KnownCluster) -> Row {
    let run = cluster.last_run.as_ref();
    let at = run.and_then(|run| run.last.as_deref().or(run.started.as_deref()));
    let age = at.and_then(|at| parse_rfc3339(at).ok()).map(|(then, _)| ago(then, now()));
    let last = match (run, age) {
        (Some(run), Some(age)) => format!("{} {}, {age}", run.verb, run.state),
        (Some(run), None) => format!("{} {}", run.verb, run.state),
        (None, _) => String::new(),
    };
    let version = cluster.version.clone().unwrap_or_default();
    Row {
        fields: json!({
            "Name": cluster.name,
            "Version": version,
            "Hosts": cluster.addresses.len(),
            "State": cluster.state,
            "LastRun": last,
            "LastRunID": run.map(|run| &run.id),
            "LastRunAt": at,
        }),
        cells: vec![
            cluster.name.clone(),
            version,
            cluster.addresses.len().to_string(),
            cluster.state.clone(),
            last,
        ],
    }
}

fn object(cluster: &KnownCluster) -> Value {
    json!({
        "name": cluster.name,
        "version": cluster.version,
        "hosts": cluster.addresses,
        "state": cluster.state,
        "lastRun": cluster.last_run,
        "problem": cluster.problem,
    })
}
