//! `imgctl history`.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::context::Context;
use crate::cli::format::{Listing, Row};
use crate::cli::platform::PlatformArg;
use crate::ui::ago::{ago, now};
use crate::ui::size::human;
use crate::ui::table::cut;
use imgctl_base::error::Result;
use imgctl_base::image::time::parse_rfc3339;
use imgctl_base::image::{Descriptor, History, LayerKind};
use imgctl_store::store::Image;

/// Show the history of an image, newest step first
#[derive(Args, Debug)]
#[command(
    after_help = "Fields of --format: .ID .CreatedAt .CreatedSince .CreatedBy .Size .Comment"
)]
pub(crate) struct HistoryArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Do not truncate output
    #[arg(long)]
    no_trunc: bool,

    /// Show only layer IDs
    #[arg(short, long)]
    quiet: bool,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Shows the history.
pub(crate) fn run(args: &HistoryArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let steps = steps(&image);
    if args.quiet && !context.ui.is_json() {
        for (_, layer) in steps.iter().rev() {
            context.ui.line(&id(*layer, args.no_trunc))?;
        }
        return Ok(());
    }
    let listing = Listing {
        headings: vec!["LAYER", "CREATED", "CREATED BY", "SIZE", "COMMENT"],
        right: vec![3],
        rows: steps.iter().rev().map(|(step, layer)| row(args, step, *layer)).collect(),
        json: steps.iter().rev().map(|(step, layer)| object(step, *layer)).collect(),
    };
    listing.show(args.format.as_deref(), true, context)
}

/// Returns each history entry with the layer it created, oldest first. Layers beyond the history
/// (foreign images) become steps with an empty entry.
pub(crate) fn steps(image: &Image) -> Vec<(History, Option<&Descriptor>)> {
    let mut layers = image.manifest.layers.iter();
    let mut steps: Vec<(History, Option<&Descriptor>)> = image
        .config
        .history
        .iter()
        .map(|step| {
            let layer = if step.empty_layer { None } else { layers.next() };
            (step.clone(), layer)
        })
        .collect();
    steps.extend(layers.map(|layer| (History::default(), Some(layer))));
    steps
}

fn id(layer: Option<&Descriptor>, full: bool) -> String {
    match layer {
        Some(layer) if full => layer.digest.to_string(),
        Some(layer) => layer.digest.short().to_owned(),
        None => "<none>".to_owned(),
    }
}

fn age(step: &History) -> String {
    let created = step.created.as_deref().and_then(|created| parse_rfc3339(created).ok());
    created.map_or_else(|| "N/A".to_owned(), |(then, _)| ago(then, now()))
}

fn row(args: &HistoryArgs, step: &History, layer: Option<&Descriptor>) -> Row {
    let by = step.created_by.as_deref().unwrap_or_default();
    let shown = if args.no_trunc { by.to_owned() } else { cut(by, 60) };
    let size = human(layer.map_or(0, |layer| layer.size));
    let comment = step.comment.clone().unwrap_or_default();
    let fields = json!({
        "ID": id(layer, args.no_trunc),
        "CreatedAt": step.created,
        "CreatedSince": age(step),
        "CreatedBy": shown,
        "Size": size,
        "Comment": comment,
    });
    let fields = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    Row { cells: vec![id(layer, args.no_trunc), age(step), shown, size, comment], fields }
}

fn object(step: &History, layer: Option<&Descriptor>) -> Value {
    json!({
        "layer": layer.map(|layer| &layer.digest),
        "kind": layer.and_then(Descriptor::layer_kind).map(LayerKind::as_str),
        "size": layer.map_or(0, |layer| layer.size),
        "created": step.created,
        "createdBy": step.created_by,
        "author": step.author,
        "comment": step.comment,
        "emptyLayer": step.empty_layer,
    })
}
