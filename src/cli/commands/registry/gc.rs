//! `imgctl registry gc`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::duration;
use crate::ui::size::human;
use imgctl_base::error::Result;
use imgctl_registry::layout::Layout;
use imgctl_registry::layout::gc::GcOptions;

/// Remove content that no manifest needs from a registry on disk
#[derive(Args, Debug)]
#[command(
    after_help = "The registry must not be served meanwhile: imgctl detects its own server, but not that of another
program.

Examples:
  imgctl registry gc /var/lib/registry --dry-run
  imgctl registry gc /var/lib/registry --untagged"
)]
pub(crate) struct GcArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Show what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,

    /// Also remove untagged manifests, unless a remaining index or subject needs them
    #[arg(long, visible_alias = "delete-untagged")]
    untagged: bool,

    /// Keep younger content: it may belong to a push in progress
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    grace: String,
}

/// Collects garbage and reports what was removed.
pub(crate) fn run(args: &GcArgs, context: &Context) -> Result<()> {
    let layout = Layout::open(&args.directory, context.settings.sync)?;
    let options = GcOptions {
        dry_run: args.dry_run,
        untagged: args.untagged,
        grace: duration::parse(&args.grace)?,
    };
    let report = layout.gc(&options, context.ui.reporter())?;
    if context.ui.is_json() {
        let manifests: Vec<Value> = report
            .manifests
            .iter()
            .map(|(repository, digest)| json!({"repository": repository, "digest": digest}))
            .collect();
        return context.ui.json(&json!({
            "dryRun": args.dry_run,
            "manifests": manifests,
            "links": report.links,
            "uploads": report.uploads,
            "blobs": report.blobs,
            "bytes": report.bytes,
            "keptBlobs": report.kept,
        }));
    }
    for (repository, digest) in &report.manifests {
        context.ui.line(&format!("{repository}@{digest}"))?;
    }
    let verb = if args.dry_run { "would free" } else { "freed" };
    context.ui.line(&format!(
        "{verb} {}: {} manifests, {} blobs; {} blobs stay",
        human(report.bytes),
        report.manifests.len(),
        report.blobs,
        report.kept
    ))
}
