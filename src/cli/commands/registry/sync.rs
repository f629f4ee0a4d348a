//! `imgctl registry sync`.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::registry::selection::SelectionArgs;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::Result;
use imgctl_registry::Target;
use imgctl_transfer::transfer::mirror::{self, Action, IMAGES, MirrorOptions, Mirrored, Planned};
use imgctl_transfer::transfer::mirror_place::PlaceName;

/// Mirror all images of a registry, or of a tree on disk, to another
#[derive(Args, Debug)]
#[command(
    after_help = "SOURCE and DESTINATION: HOST[:PORT][/PREFIX] is a registry, a path is a directory such as
`registry serve` and docker-distribution keep (or an image's root with `registry/` in it).
Images that are identical at both ends are skipped; nothing is removed at the destination. Digests
are preserved, unless platforms are selected. An image that cannot be copied is an error, reported
after the others are copied.

Examples:
  imgctl registry sync ./registry localhost:5000
  imgctl registry sync --dry-run ./registry harbor.example.com/mirror
  imgctl registry sync --override-arch arm64 registry.example.com ./registry"
)]
pub(crate) struct SyncArgs {
    /// Registry or directory to read from
    source: OsString,

    /// Registry or directory to write to
    destination: OsString,

    /// Show what would be copied, without copying it
    #[arg(long)]
    dry_run: bool,

    /// Number of images to copy in parallel
    #[arg(long, visible_alias = "max-pull-procs", value_name = "N", default_value_t = IMAGES)]
    jobs: usize,

    #[command(flatten)]
    selection: SelectionArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Copies the differences and prints what was copied.
pub(crate) fn run(args: &SyncArgs, context: &Context) -> Result<()> {
    let client = args.registry.client(context)?;
    let options = MirrorOptions { selection: args.selection.of_all()?, images: args.jobs.max(1) };
    let from = PlaceName::parse(&args.source)?.source(&client)?;
    let to = PlaceName::parse(&args.destination)?;
    let to = if args.dry_run {
        to.look(&client)?
    } else {
        Some(to.sink(&client, context.settings.sync)?)
    };
    let planned = mirror::plan(&from, to.as_ref(), &options)?;
    if args.dry_run {
        return show_plan(&planned, context);
    }
    let Some(to) = to else { return Ok(()) };
    let done = mirror::sync(&from, &to, &planned, &options, context.ui.reporter())?;
    if !context.ui.is_json() {
        let rest = planned.len() - done.len();
        if rest > 0 {
            context.ui.say(&format!("{rest} of {} images are up to date", planned.len()));
        }
    }
    show(&done, context)
}

fn show_plan(planned: &[Planned], context: &Context) -> Result<()> {
    let word = |action| match action {
        Action::UpToDate => "up-to-date",
        Action::Add => "add",
        Action::Replace => "replace",
    };
    if context.ui.is_json() {
        let list: Vec<Value> = planned
            .iter()
            .map(|one| {
                json!({
                    "repository": one.repository,
                    "tag": match &one.target {
                        Target::Tag(tag) => Some(tag),
                        Target::Digest(_) => None,
                    },
                    "digest": one.digest,
                    "destinationDigest": one.there,
                    "action": word(one.action),
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for one in planned {
        context.ui.line(&format!("{:<10} {}", word(one.action), one.name()))?;
    }
    Ok(())
}

/// Shows the result for each image; also used by `registry save` and `registry copy`.
pub(super) fn show(done: &[Mirrored], context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let list: Vec<Value> = done
            .iter()
            .map(|one| {
                json!({
                    "name": one.name,
                    "digest": one.digest,
                    "blobs": {
                        "copied": one.moved.copied,
                        "mounted": one.moved.mounted,
                        "existed": one.moved.existed,
                    },
                    "bytesCopied": one.moved.bytes,
                    "bytesTotal": one.moved.total,
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for one in done {
        // The name of an image requested by digest already shows the digest.
        let line = if one.name.contains('@') {
            one.name.clone()
        } else {
            format!("{}@{}", one.name, one.digest)
        };
        context.ui.line(&line)?;
    }
    Ok(())
}
