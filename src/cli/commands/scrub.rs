//! `imgctl scrub`.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::ui::size::human;
use crate::ui::table::one_line;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_store::store::scrub::{Problem, ScrubOptions};

/// Verify every blob, image and unpacked layer in the store
#[derive(Args, Debug)]
#[command(after_help = "The exit code is 10 if a problem is found and not repaired.

Examples:
  imgctl scrub
  imgctl scrub --deep --repair")]
pub(crate) struct ScrubArgs {
    /// Decompress every layer, and read every file of every unpacked layer
    #[arg(long)]
    deep: bool,

    /// Move damaged content away, so that it can be built or loaded again
    #[arg(long)]
    repair: bool,
}

/// Verifies the store.
pub(crate) fn run(args: &ScrubArgs, context: &Context) -> Result<()> {
    let options = ScrubOptions { diff_ids: args.deep, deep: args.deep, repair: args.repair };
    let report = context.store()?.scrub(&options, context.ui.reporter())?;
    let left = report.problems.iter().filter(|problem| !problem.repaired).count();
    if context.ui.is_json() {
        context.ui.json(&json!({
            "blobs": report.blobs,
            "bytes": report.bytes,
            "images": report.images,
            "snapshots": report.snapshots,
            "unchecked": report.unchecked,
            "problems": report.problems.iter().map(object).collect::<Vec<_>>(),
        }))?;
    } else {
        for problem in &report.problems {
            let repaired = if problem.repaired { " (moved away)" } else { "" };
            let line = format!("{}: {}{repaired}", problem.subject, problem.detail);
            context.ui.line(&one_line(&line))?;
        }
        context.ui.line(&format!(
            "{} blobs ({}), {} images, {} unpacked layers: {}",
            report.blobs,
            human(report.bytes),
            report.images,
            report.snapshots,
            match report.problems.len() {
                0 => "all good".to_owned(),
                1 => "1 problem".to_owned(),
                count => format!("{count} problems"),
            }
        ))?;
    }
    if left == 0 {
        return Ok(());
    }
    let failed = Error::new(Kind::CheckFailed, format!("{left} of the problems found remain"));
    Err(if args.repair {
        failed.hint("build or load the images named above again")
    } else {
        failed.hint("run `imgctl scrub --repair` to move damaged content away")
    })
}

fn object(problem: &Problem) -> Value {
    json!({"subject": problem.subject, "detail": problem.detail, "repaired": problem.repaired})
}
