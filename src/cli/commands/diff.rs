//! `imgctl diff`.

use std::path::Path;

use clap::Args;
use serde::{Serialize, Serializer};

use crate::cli::archive_output::outer_compression;
use crate::cli::commands::bundle::create_bundle;
use crate::cli::image_options::{GateArg, PlatformArg};
use crate::cli::release_note::{Form, release_note};
use crate::cli::{context::Context, names::printable};
use imgctl_base::error::{Error, Result};
use imgctl_base::text::Lines;
use imgctl_describe as describe;
use imgctl_report::model::comparison::Comparison;
use imgctl_store::layer::tree::{Change, compare};
use imgctl_store::layer::{LayerPath, Tree};
use imgctl_store::store::images::{tree_of, whole_tree};
use imgctl_transfer::edit::bundle::CreateOptions;

/// Show what a new version of an image changes
#[derive(Args, Debug)]
#[command(
    after_help = "With two images, shows what a reviewer of the new one asks: settings, container images of the embedded
registry with the packages inside, charts with their values, Kubernetes objects, packages, files.
With one image, or with --files, lists files: what the last layer changes in those below. A is
added, C changed (content, type, mode, owner or attributes, not times), D deleted.

Examples:
  imgctl diff web:v1 web:v2
  imgctl diff web:v1 web:v2 -o markdown >>\"$GITHUB_STEP_SUMMARY\"
  imgctl diff --files web:v1 web:v2
  imgctl diff --json web:v1 web:v2
  imgctl diff --patch etcd:v1 etcd:v2 -o update.tar   (same as bundle create)"
)]
pub(crate) struct DiffArgs {
    /// Older image, or the only one
    #[arg(value_name = "A")]
    old: String,

    /// Newer image
    #[arg(value_name = "B")]
    new: Option<String>,

    /// List the files that differ, and nothing else
    #[arg(long, conflicts_with = "patch")]
    files: bool,

    /// Write what B adds to A to an archive for `imgctl bundle apply`
    #[arg(long, requires = "new", requires = "output")]
    patch: bool,

    /// With --patch, write changed files as patches against those of A
    #[arg(long, requires = "patch")]
    delta: bool,

    /// `table`, `markdown` or `json`; with --patch, the file to write
    #[arg(short, long, value_name = "FORMAT|FILE")]
    output: Option<String>,

    #[command(flatten)]
    gate: GateArg,

    #[command(flatten)]
    platform: PlatformArg,
}

pub(crate) fn run(args: &DiffArgs, context: &Context) -> Result<()> {
    if let (true, Some(new), Some(file)) = (args.patch, &args.new, &args.output) {
        let file = Path::new(file);
        let options = CreateOptions {
            compression: outer_compression(None, Some(file)),
            platform: args.platform.wanted()?,
            delta: args.delta,
            ..CreateOptions::default()
        };
        let arbiter = args.gate.arbiter(context)?;
        return create_bundle(&args.old, new, Some(file), &options, &arbiter, context);
    }
    let format = match args.output.as_deref() {
        None if context.ui.is_json() => Format::Json,
        None | Some("table") => Format::Text(Form::Terminal),
        Some("markdown" | "md") => Format::Text(Form::Markdown),
        Some("json") => Format::Json,
        Some(other) => {
            return Err(Error::usage(format!("unknown output format `{other}`"))
                .hint("use table, markdown or json; to write a file, add --patch"));
        }
    };
    let store = context.store()?;
    let first = args.platform.image(&args.old, context)?;
    let second = match &args.new {
        Some(name) => Some(args.platform.image(name, context)?),
        None => None,
    };
    let compared = match &second {
        Some(second) if !args.files => Some(describe::compare(store, &first, second)?),
        _ => None,
    };
    if let (Format::Text(form), Some(compared), Some(second)) = (format, &compared, &second) {
        let name = second.reference.as_ref().map(ToString::to_string);
        let name = name.unwrap_or_else(|| second.descriptor.digest.to_string());
        return context.ui.print(&release_note(&name, compared, form));
    }
    let (old, new) = match &second {
        Some(second) => (whole_tree(store, &first)?, whole_tree(store, second)?),
        None => {
            let below = first.manifest.layers.len().saturating_sub(1);
            (tree_of(store, &first, below)?, whole_tree(store, &first)?)
        }
    };
    if format == Format::Json {
        let (old, new) = (&old, &new);
        return context.ui.json(&Changes {
            added: Paths { old, new, change: Change::Added },
            modified: Paths { old, new, change: Change::Modified },
            deleted: Paths { old, new, change: Change::Deleted },
            comparison: compared.as_ref(),
        });
    }
    let mut changes = compare(&old, &new).peekable();
    while changes.peek().is_some() {
        let line = |(change, path): (Change, LayerPath)| {
            let letter = match change {
                Change::Added => 'A',
                Change::Modified => 'C',
                Change::Deleted => 'D',
            };
            format!("{letter} /{}", printable(path.as_bytes()))
        };
        // There may be millions.
        let text: Lines = changes.by_ref().take(AT_ONCE).map(line).collect();
        context.ui.print(&text)?;
    }
    Ok(())
}

/// Number of lines that are written at once.
const AT_ONCE: usize = 1000;

#[derive(Serialize)]
struct Changes<'a> {
    added: Paths<'a>,
    modified: Paths<'a>,
    deleted: Paths<'a>,
    /// Of two images.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
}

/// How the result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text(Form),
    Json,
}

/// The paths of one type of change, which are found while they are written.
struct Paths<'a> {
    old: &'a Tree,
    new: &'a Tree,
    change: Change,
}

impl Serialize for Paths<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let all = compare(self.old, self.new).filter(|(change, _)| *change == self.change);
        serializer.collect_seq(all.map(|(_, path)| path.to_string()))
    }
}
