//! `imgctl support-bundle`: what a report of a problem needs, in one archive.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use imgctl_base::error::Result;
use imgctl_frontend::cluster_options::ClusterArg;
use imgctl_frontend::{
    context::Context, duration, registry_options::RegistryArgs, ssh_options::SshArgs,
};
use imgctl_ops::front_end::Consent;
use imgctl_ops::support::{self, Collected, Item, Steps, SupportRequest};
use imgctl_ui::table::{Table, human};

/// Collect logs, records and facts of a cluster for a bug report
#[derive(Args, Debug)]
#[command(
    after_help = "Shows what the archive will contain, and asks. Contains journals and logs of the newest runs, the
Clusterfile, the status, and of each host facts, failed units and the ends of system logs.
Passwords, tokens and private keys are replaced by ***: look through the archive before you pass it
on.

Examples:
  imgctl support-bundle --dry-run
  imgctl support-bundle --cluster prod --since 2h -o prod.tar.gz"
)]
pub(crate) struct SupportBundleArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Archive to write [default: imgctl-support-CLUSTER-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Age of the oldest lines of the hosts' logs: 2h, 7d
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    since: String,

    /// Number of recorded runs, newest first
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: usize,

    /// Ask no hosts: only what this machine has
    #[arg(long)]
    no_hosts: bool,

    /// Show what the archive would contain
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    ssh: SshArgs,
}

pub(crate) fn support_bundle(args: &SupportBundleArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let request = SupportRequest {
        cluster: args.cluster.name(context)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        since: duration::parse(&args.since)?,
        runs: args.runs,
        hosts: !args.no_hosts,
    };
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| format!("imgctl-support-{}-{time}.tar.gz", request.cluster).into());
    let agree = |items: &[Item]| {
        if !context.ui.is_json() {
            show(items, context)?;
        } else if args.dry_run {
            context.ui.json(&json!({"event": "support-bundle-plan", "files": items}))?;
        }
        if args.dry_run || session.front.consent() != Consent::Asked {
            return Ok(!args.dry_run);
        }
        session.front.confirm(&format!("Collect this into {}?", path.display()))
    };
    let done = |file: &Collected| {
        if let Some(why) = &file.missing {
            context.ui.note(&format!("{}: {why}", file.path));
        }
    };
    let steps = Steps { agree: &agree, done: &done };
    let Some(files) = support::bundle(&request, &path, &session, &steps)? else {
        return Ok(());
    };
    let missing = files.iter().filter(|file| file.missing.is_some()).count();
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let mut line = format!("{}: {} files, {}", path.display(), files.len() - missing, human(size));
    if missing > 0 {
        line.push_str(&format!("; {missing} could not be read"));
    }
    let value = json!({
        "event": "support-bundle", "path": path, "bytes": size, "files": files,
    });
    context.ui.result(&value, &line)?;
    support::check(&files)
}

fn show(items: &[Item], context: &Context) -> Result<()> {
    let mut table = Table::new(&["FILE", "FROM"]);
    for item in items {
        table.row(vec![item.path.clone(), item.source.clone()]);
    }
    context.ui.print(&table.render(true))?;
    context.ui.line(
        "contents.json lists these files. Logins, passwords, tokens and private keys are left out.",
    )
}
