//! `imgctl registry scrub`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::ui::size::human;
use crate::ui::table::one_line;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_registry::layout::Layout;

/// Verify every blob, link and manifest of a registry on disk
#[derive(Args, Debug)]
#[command(
    after_help = "Changes nothing; the registry may be served meanwhile. The exit code is 10 if a problem is found.

Examples:
  imgctl registry scrub /var/lib/registry"
)]
pub(crate) struct ScrubArgs {
    /// Directory of the registry
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Verifies the tree.
pub(crate) fn run(args: &ScrubArgs, context: &Context) -> Result<()> {
    let layout = Layout::open(&args.directory, false)?;
    let report = layout.scrub(context.ui.reporter())?;
    let problems = report.problems.len();
    if context.ui.is_json() {
        let list: Vec<Value> = report
            .problems
            .iter()
            .map(|problem| json!({"subject": problem.subject, "detail": problem.detail}))
            .collect();
        context.ui.json(&json!({
            "blobs": report.blobs,
            "bytes": report.bytes,
            "repositories": report.repositories,
            "manifests": report.manifests,
            "tags": report.tags,
            "absentChildren": report.absent_children,
            "problems": list,
        }))?;
    } else {
        for problem in &report.problems {
            let line = format!("{}: {}", problem.subject, problem.detail);
            context.ui.line(&one_line(&line))?;
        }
        context.ui.line(&format!(
            "{} blobs ({}), {} repositories, {} manifests, {} tags: {}",
            report.blobs,
            human(report.bytes),
            report.repositories,
            report.manifests,
            report.tags,
            match problems {
                0 => "all good".to_owned(),
                1 => "1 problem".to_owned(),
                count => format!("{count} problems"),
            }
        ))?;
    }
    match problems {
        0 => Ok(()),
        count => Err(Error::new(
            Kind::CheckFailed,
            format!("{} has {count} problems", args.directory.display()),
        )
        .hint("delete what is damaged and push or copy the images named above again")),
    }
}
