//! `imgctl bundle verify`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_frontend::context::Context;
use imgctl_transfer::edit::check::{self, Checked};
use imgctl_transfer::transfer::Archive;
use imgctl_ui::table::human;

/// Check every digest of an archive without loading it
#[derive(Args, Debug)]
#[command(
    after_help = "Bundles and archives of `imgctl save`, whole or in parts: parts, blobs, and whether all that the
image needs is there or assumed. Exit code 10 if something is wrong. Only loading a layer shows
whether its content is that of the config.

Examples:
  imgctl bundle verify update.tar
  imgctl bundle verify /media/disk1 /media/disk2"
)]
pub(crate) struct VerifyArgs {
    /// Archives, parts or directories
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn verify(args: &VerifyArgs, context: &Context) -> Result<()> {
    let limits = context.settings.limits;
    let mut all = Vec::new();
    for archive in Archive::find(&args.files)? {
        all.push(check::check(&archive, limits, context.ui.reporter())?);
    }
    if context.ui.is_json() {
        context.ui.json(&all.iter().map(checked).collect::<Vec<_>>())?;
    } else {
        for found in &all {
            for problem in &found.problems {
                let line = format!("{}: {}: {}", found.archive, problem.subject, problem.detail);
                context.ui.line(&line)?;
            }
            let parts =
                if found.parts > 1 { format!("{} parts, ", found.parts) } else { String::new() };
            let verdict = match found.problems.len() {
                0 => "all good".to_owned(),
                1 => "1 problem".to_owned(),
                count => format!("{count} problems"),
            };
            context.ui.line(&format!(
                "{}: {parts}{} ({}): {verdict}",
                found.archive,
                blobs(found.blobs),
                human(found.bytes),
            ))?;
        }
    }
    match all.iter().map(|found| found.problems.len()).sum::<usize>() {
        0 => Ok(()),
        count => Err(Error::check_failed(match count {
            1 => "1 problem was found".to_owned(),
            count => format!("{count} problems were found"),
        })
        .hint("copy the archive or the parts named above again")),
    }
}

fn checked(found: &Checked) -> Value {
    let problems = found.problems.iter();
    json!({
        "archive": found.archive,
        "parts": found.parts,
        "blobs": found.blobs,
        "bytes": found.bytes,
        "unchecked": found.unchecked,
        "images": found.images,
        "problems": problems
            .map(|problem| json!({"subject": problem.subject, "detail": problem.detail}))
            .collect::<Vec<_>>(),
    })
}

fn blobs(count: u64) -> String {
    format!("{count} {}", if count == 1 { "blob" } else { "blobs" })
}
