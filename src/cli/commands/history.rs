//! What an image is made of: `imgctl history` and `imgctl tree`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::format::{Listing, Row};
use crate::cli::{context::Context, image_options::PlatformArg};
use crate::ui::table::{Table, ago, cut, human, now, one_line};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, History, LayerKind, time::parse_rfc3339};
use imgctl_store::store::{Image, Store};

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

pub(crate) fn history(args: &HistoryArgs, context: &Context) -> Result<()> {
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
        json: steps.iter().rev().map(|(step, layer)| step_json(step, *layer)).collect(),
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
    Row { cells: vec![id(layer, args.no_trunc), age(step), shown, size, comment], fields }
}

fn step_json(step: &History, layer: Option<&Descriptor>) -> Value {
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

/// Show the layers of an image: kind, size, instruction, and which images share them
#[derive(Args, Debug)]
pub(crate) struct TreeArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Do not truncate output
    #[arg(long)]
    no_trunc: bool,

    #[command(flatten)]
    platform: PlatformArg,
}

pub(crate) fn tree(args: &TreeArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let sharing = sharing(context.store()?, &image)?;
    let layers: Vec<(String, &Descriptor)> = steps(&image)
        .into_iter()
        .filter_map(|(step, layer)| Some((step.created_by.unwrap_or_default(), layer?)))
        .collect();
    if context.ui.is_json() {
        return context.ui.json(&object(&image, &layers, &sharing));
    }
    let name = image
        .reference
        .as_ref()
        .map_or_else(|| image.descriptor.digest.to_string(), ToString::to_string);
    let total: u64 = layers.iter().map(|(_, layer)| layer.size).sum();
    let heading = format!("{} {} {}\n", one_line(&name), image.config.platform(), human(total));
    let mut table = Table::new(&["", "", "", "", "", ""]).right(2);
    for (index, (by, layer)) in layers.iter().enumerate() {
        let last = index + 1 == layers.len();
        let digest =
            if args.no_trunc { layer.digest.to_string() } else { layer.digest.short().to_owned() };
        let shared = sharing.get(&layer.digest).map(|names| names.join(", ")).unwrap_or_default();
        table.row(vec![
            format!("{} {digest}", if last { "└──" } else { "├──" }),
            kind(layer).to_owned(),
            human(layer.size),
            if args.no_trunc { by.clone() } else { cut(by, 60) },
            if shared.is_empty() { shared } else { format!("also in {shared}") },
            String::new(),
        ]);
    }
    context.ui.print(&(heading + &table.render(false)))
}

fn kind(layer: &Descriptor) -> &'static str {
    layer.layer_kind().map_or("-", LayerKind::as_str)
}

/// Returns, for each layer of `image`, the names of other images that have it. Images that cannot
/// be read are ignored.
fn sharing(store: &Store, image: &Image) -> Result<BTreeMap<Digest, Vec<String>>> {
    let mut sharing: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    for named in store.names()? {
        if named.reference == image.reference && named.reference.is_some() {
            continue;
        }
        let name = match named.descriptor.ref_name() {
            Some(name) => name.to_owned(),
            None => format!("<none> ({})", named.descriptor.digest.short()),
        };
        for other in store.platform_images(&named.descriptor).unwrap_or_default() {
            if other.descriptor.digest == image.descriptor.digest && named.reference.is_none() {
                continue;
            }
            for layer in &other.manifest.layers {
                let mine = image.manifest.layers.iter().any(|mine| mine.digest == layer.digest);
                let names = sharing.entry(layer.digest.clone()).or_default();
                if mine && !names.contains(&name) {
                    names.push(name.clone());
                }
            }
        }
    }
    Ok(sharing)
}

fn object(
    image: &Image,
    layers: &[(String, &Descriptor)],
    sharing: &BTreeMap<Digest, Vec<String>>,
) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|(by, layer)| {
            json!({
                "digest": layer.digest,
                "kind": layer.layer_kind().map(LayerKind::as_str),
                "size": layer.size,
                "createdBy": by,
                "sharedWith": sharing.get(&layer.digest).cloned().unwrap_or_default(),
            })
        })
        .collect();
    json!({
        "name": image.reference.as_ref().map(ToString::to_string),
        "digest": image.descriptor.digest,
        "platform": image.config.platform().to_string(),
        "layers": layers,
    })
}
