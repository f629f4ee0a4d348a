//! What `inspect` shows of an image: buildah's members, under their JSON names and under the names
//! of Go's fields, which templates use (`.OCIv1.Config.Labels`).

use serde_json::{Map, Value, json};

use crate::cli::commands::history;
use imgctl_base::image::{ImageConfig, LayerKind};
use imgctl_store::store::Image;

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
    let mut fields = outer.clone();
    outer["OCIv1"] = oci(&image.config);
    outer["Docker"] = docker(image);
    fields["OCIv1"] = go_names(&outer["OCIv1"]);
    fields["Docker"] = go_names(&outer["Docker"]);
    View { json: outer, fields }
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
    let steps = history::steps(image);
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
