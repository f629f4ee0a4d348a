//! What an image is made of: `imgctl history` and `imgctl tree`, and what `inspect` shows: buildah's
//! members, under their JSON names and under the names of Go's fields, which templates use
//! (`.OCIv1.Config.Labels`).

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Map, Value, json};

use imgctl_base::error::Result;
use imgctl_base::image::{
    Descriptor, Digest, History, ImageConfig, LayerKind, time::parse_rfc3339,
};
use imgctl_base::settings::{Setting, Settings};
use imgctl_base::text::Lines;
use imgctl_frontend::format::{Listing, Row};
use imgctl_frontend::{context::Context, image_options::PlatformArg};
use imgctl_store::store::Image;
use imgctl_ui::table::{Table, ago, cut, human, now};

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
    let sharing = context.store()?.sharing(&image)?;
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
    let mut text = Lines::default();
    text.line(format_args!("{name} {} {}", image.config.platform(), human(total)));
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
            // The name of an embedded image ends with what tells versions apart.
            if args.no_trunc || layer.layer_kind() == Some(LayerKind::Registry) {
                by.clone()
            } else {
                cut(by, 60)
            },
            if shared.is_empty() { shared } else { format!("also in {shared}") },
            String::new(),
        ]);
    }
    context.ui.print(text.append(&table.render(false)))
}

fn kind(layer: &Descriptor) -> &'static str {
    layer.layer_kind().map_or("-", LayerKind::as_str)
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

/// One object as JSON, and as templates see it.
pub(crate) struct View {
    pub(crate) json: Value,
    pub(crate) fields: Value,
}

/// Returns the view of an image. `manifest` and `config` are the blobs as stored.
pub(crate) fn image(image: &Image, manifest: &[u8], config: &[u8]) -> View {
    let name = image.reference.as_ref().map(ToString::to_string).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut outer = json!({
        "Type": concat!("imgctl ", env!("CARGO_PKG_VERSION")),
        "Name": name,
        "FromImage": name,
        "FromImageID": image.id().hex(),
        "FromImageDigest": image.descriptor.digest,
        "Config": text(config),
        "Manifest": text(manifest),
        "Container": "",
        "ContainerID": "",
        "MountPoint": "",
        "ProcessLabel": "",
        "MountLabel": "",
        "ImageAnnotations": image.manifest.annotations,
        "ImageCreatedBy": "",
    });
    // A foreign image may have anything there.
    if let Ok(Some(settings)) = Settings::of_labels(&image.config.config.labels) {
        let settings: Vec<Value> = settings.list().iter().map(setting).collect();
        outer["Settings"] = settings.into();
    }
    let mut fields = outer.clone();
    outer["OCIv1"] = oci(&image.config);
    outer["Docker"] = docker(image);
    fields["OCIv1"] = go_names(&outer["OCIv1"]);
    fields["Docker"] = go_names(&outer["Docker"]);
    View { json: outer, fields }
}

fn setting(setting: &Setting) -> Value {
    json!({
        "Name": setting.name,
        "Type": setting.kind,
        "Description": setting.description,
        "Default": setting.default,
        "Required": setting.is_required,
        "Secret": setting.is_secret,
    })
}

/// Returns the members of `v1.Image`.
fn oci(config: &ImageConfig) -> Value {
    serde_json::to_value(config).unwrap_or(Value::Null)
}

/// Returns the members of buildah's `docker.V2Image`.
fn docker(image: &Image) -> Value {
    let mut docker = oci(&image.config);
    docker["id"] = image.id().to_string().into();
    docker["parent"] = "".into();
    docker["comment"] = "".into();
    docker["docker_version"] = "".into();
    docker["container_config"] = docker["config"].clone();
    docker["Size"] = image.manifest.layers.iter().map(|layer| layer.size).sum::<u64>().into();
    docker
}

/// Replaces the JSON names of image configs with Go's field names. Members of `config` have the
/// same name in both; unknown members keep their names.
fn go_names(document: &Value) -> Value {
    let Value::Object(members) = document else {
        return document.clone();
    };
    let mut renamed = Map::new();
    for (name, value) in members {
        let field = match name.as_str() {
            "created" => "Created",
            "author" => "Author",
            "architecture" => "Architecture",
            "variant" => "Variant",
            "os" => "OS",
            "os.version" => "OSVersion",
            "os.features" => "OSFeatures",
            "config" => "Config",
            "rootfs" => "RootFS",
            "history" => "History",
            "id" => "ID",
            "parent" => "Parent",
            "comment" => "Comment",
            "docker_version" => "DockerVersion",
            "container_config" => "ContainerConfig",
            other => other,
        };
        let value = match field {
            "Config" | "ContainerConfig" => all_fields(value),
            "RootFS" => json!({"Type": value["type"], "DiffIDs": value["diff_ids"]}),
            "History" => match value.as_array() {
                Some(steps) => steps.iter().map(go_history).collect(),
                None => Value::Null,
            },
            _ => value.clone(),
        };
        renamed.insert(field.to_owned(), value);
    }
    for absent in ["Created", "Author", "Variant"] {
        renamed.entry(absent).or_insert_with(|| "".into());
    }
    Value::Object(renamed)
}

/// Adds the fields that JSON omits: a Go struct has them with their zero value, `[]`, `map[]` or
/// nothing.
fn all_fields(config: &Value) -> Value {
    let mut config = config.clone();
    let zeros = [
        ("User", json!("")),
        ("ExposedPorts", json!({})),
        ("Env", json!([])),
        ("Entrypoint", json!([])),
        ("Cmd", json!([])),
        ("Volumes", json!({})),
        ("WorkingDir", json!("")),
        ("Labels", json!({})),
        ("StopSignal", json!("")),
    ];
    if let Value::Object(members) = &mut config {
        for (name, zero) in zeros {
            members.entry(name).or_insert(zero);
        }
    }
    config
}

fn go_history(step: &Value) -> Value {
    let text = |name: &str| step.get(name).cloned().unwrap_or_else(|| "".into());
    json!({
        "Created": text("created"),
        "CreatedBy": text("created_by"),
        "Author": text("author"),
        "Comment": text("comment"),
        "EmptyLayer": step["empty_layer"].as_bool().unwrap_or(false),
    })
}

/// Returns the layers, lowest first.
pub(crate) fn layers(image: &Image) -> Value {
    let steps = steps(image);
    image
        .layers()
        .map(|(layer, diff_id)| {
            let by = steps
                .iter()
                .find(|(_, made)| made.is_some_and(|made| std::ptr::eq(made, layer)))
                .and_then(|(step, _)| step.created_by.as_deref());
            json!({
                "digest": layer.digest,
                "diffID": diff_id,
                "mediaType": layer.media_type,
                "size": layer.size,
                "kind": layer.layer_kind().map(LayerKind::as_str),
                "annotations": layer.annotations,
                "createdBy": by,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_see_gos_field_names() {
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": {"version": "v1"}, "Env": ["A=b"]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:1"]},
            "history": [{"created_by": "COPY . .", "empty_layer": true}],
        });
        let fields = go_names(&config);
        assert_eq!(fields["Config"]["Labels"]["version"], "v1");
        assert_eq!(fields["Config"]["Cmd"], json!([]));
        assert_eq!(fields["RootFS"]["DiffIDs"][0], "sha256:1");
        assert_eq!(fields["History"][0]["CreatedBy"], "COPY . .");
        assert_eq!((&fields["OS"], &fields["Author"]), (&json!("linux"), &json!("")));
    }
}
