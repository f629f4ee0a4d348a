//! `imgctl diff`.

use std::path::Path;

use clap::Args;

use crate::cli::commands::bundle::create_bundle;
use crate::cli::file_changes::Trees;
use imgctl_base::error::{Error, Result};
use imgctl_describe as describe;
use imgctl_frontend::archive_output::outer_compression;
use imgctl_frontend::context::Context;
use imgctl_frontend::image_options::{GateArg, PlatformArg};
use imgctl_report::release_note::{Form, release_note};
use imgctl_transfer::edit::bundle::CreateOptions;

/// Show what a new version of an image changes
#[derive(Args, Debug)]
#[command(
    after_help = "With two images, shows what a reviewer of the new one asks: settings, container images of the
embedded registry with the packages inside, charts with their values, Kubernetes objects, packages,
files. With one image, or with --files, lists files: what the last layer changes in those below. A
is added, C changed (content, type, mode, owner or attributes, not times), D deleted.

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
    let trees = Trees::of(store, &first, second.as_ref())?;
    if format == Format::Json {
        return context.ui.json(&trees.changes(compared.as_ref()));
    }
    trees.lines(&mut |lines| context.ui.print(lines))
}

/// How the result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text(Form),
    Json,
}
