//! `imgctl diff`.

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::image_tree::{tree_of, whole_tree};
use crate::cli::names::printable;
use crate::cli::platform::PlatformArg;
use crate::error::Result;
use crate::layer::compare::{Change, compare};

/// Show which files two images differ in
#[derive(Args, Debug)]
#[command(after_help = "With one image: what its last layer does to those below.
A is added, C changed (content, type, mode, owner or attributes, not times), D deleted.

Examples:
  imgctl diff etcd:v1 etcd:v2
  imgctl diff --json etcd:v2")]
pub(crate) struct DiffArgs {
    /// The older image, or the only one
    #[arg(value_name = "A")]
    old: String,

    /// The newer image
    #[arg(value_name = "B")]
    new: Option<String>,

    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,

    #[command(flatten)]
    platform: PlatformArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Compares the images' files.
pub(crate) fn run(args: &DiffArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let first = args.platform.image(&args.old, context)?;
    let (old, new) = match &args.new {
        Some(name) => {
            let second = args.platform.image(name, context)?;
            (whole_tree(store, &first)?, whole_tree(store, &second)?)
        }
        None => {
            let below = first.manifest.layers.len().saturating_sub(1);
            (tree_of(store, &first, below)?, whole_tree(store, &first)?)
        }
    };
    let changes = compare(&old, &new);
    if args.output == Some(Output::Json) || (args.output.is_none() && context.ui.is_json()) {
        let of = |wanted: Change| -> Vec<String> {
            let chosen = changes.iter().filter(|(change, _)| *change == wanted);
            chosen.map(|(_, path)| path.to_string()).collect()
        };
        return context.ui.json(&json!({
            "added": of(Change::Added),
            "modified": of(Change::Modified),
            "deleted": of(Change::Deleted),
        }));
    }
    let mut text = String::new();
    for (change, path) in &changes {
        let letter = match change {
            Change::Added => 'A',
            Change::Modified => 'C',
            Change::Deleted => 'D',
        };
        text.push_str(&format!("{letter} /{}\n", printable(path.as_bytes())));
    }
    context.ui.print(&text)
}
