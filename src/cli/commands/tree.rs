//! `imgctl tree`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::history;
use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use crate::ui::size::human;
use crate::ui::table::{Table, cut, one_line};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, LayerKind};
use imgctl_store::store::{Image, Store};

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

/// Shows the layers, lowest first.
pub(crate) fn run(args: &TreeArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let sharing = sharing(context.store()?, &image)?;
    let layers: Vec<(String, &Descriptor)> = history::steps(&image)
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
