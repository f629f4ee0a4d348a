//! Config documents: changes to files, made by users and images before templates are rendered.

use std::collections::HashMap;

use serde_json::Value;

use crate::render::files::Files;
use crate::render::merge::{self, Part};
use crate::render::templates::text_of;
use crate::render::{BuiltIn, ConfigEdit, Inputs, Origin, Rendered, Strategy};
use imgctl_base::error::{Context, Error, Result};
use imgctl_layer::LayerPath;
use imgctl_template::yaml;

/// Applies all Config documents: the images' in order, then those of the inputs. Returns the files
/// that the documents of images created, with the image of each.
pub(super) fn apply_all(
    files: &Files,
    inputs: &Inputs,
    built_in: &[BuiltIn],
    origin: &Origin<'_>,
    rendered: &mut Rendered,
) -> Result<HashMap<Vec<u8>, usize>> {
    let mut created = HashMap::new();
    let mut images: Vec<&BuiltIn> = built_in.iter().collect();
    images.sort_by_key(|built_in| built_in.image);
    let mut edits = Vec::new();
    for built_in in images {
        let name = inputs.images.get(built_in.image).map_or("", |image| &image.name);
        match read_list(&built_in.text) {
            Ok(configs) => edits.extend(configs.into_iter().map(|c| (Some(built_in.image), c))),
            Err(error) => rendered.notes.push(format!(
                "ignoring config.yml of {name}, which is not a list of Config documents: {error}"
            )),
        }
    }
    for config in &inputs.configs {
        let image = match &config.image {
            None => None,
            // The Config is for an image of another tree.
            Some(name) => match inputs.images.iter().position(|image| image.name == *name) {
                None => continue,
                image => image,
            },
        };
        edits.push((image, config.clone()));
    }
    for (image, config) in &edits {
        let path = LayerPath::parse(config.path.as_bytes())
            .context(|| format!("cannot apply the Config {}", config.name))?;
        let from = origin(path.as_bytes());
        let is_later = matches!((image, from), (Some(image), Some(from)) if from > *image);
        let is_foreign = image.is_some() && from.is_some() && from != *image;
        if is_later || is_foreign && config.strategy != Strategy::Override {
            rendered.notes.push(format!(
                "the Config {} was skipped: {} belongs to another image than the one it is for",
                config.name, config.path
            ));
            continue;
        }
        let note = apply(files, &path, config)
            .context(|| format!("cannot apply the Config {}", config.name))?;
        rendered.notes.extend(note);
        rendered.files.push(text_of(&path));
        if let (Some(image), None) = (image, from) {
            created.insert(path.as_bytes().to_vec(), *image);
        }
    }
    Ok(created)
}

fn apply(files: &Files, path: &LayerPath, config: &ConfigEdit) -> Result<Option<String>> {
    let found = files.read(path)?;
    let data = config.data.as_bytes();
    let (old, mode) = match &found {
        Some(found) => (Some(found.bytes.as_slice()), found.mode),
        None if data.starts_with(b"#!") => (None, 0o755),
        None => (None, 0o644),
    };
    let mut note = None;
    let new = match (config.strategy, old) {
        (Strategy::Override, _) | (_, None) => data.to_vec(),
        (Strategy::Insert, Some(old)) => joined(data, old),
        (Strategy::Append, Some(old)) => joined(old, data),
        (Strategy::Merge, Some(old)) => {
            let old = std::str::from_utf8(old)
                .map_err(|_| Error::usage(format!("cannot merge into {path}: it is not UTF-8")))?;
            let merged = merge::merge(&text_of(path), old, &config.data)?;
            note = merged.note;
            merged.text.into_bytes()
        }
    };
    files.write(path, &new, mode)?;
    Ok(note)
}

/// Joins two texts with one newline between them.
fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    let end = first.iter().rposition(|byte| *byte != b'\n').map_or(0, |at| at + 1);
    let mut all = first.get(..end).unwrap_or_default().to_vec();
    if !all.is_empty() {
        all.push(b'\n');
    }
    all.extend_from_slice(second);
    all
}

/// Reads the Config documents from an image's `config.yml`. Skips other documents.
fn read_list(text: &str) -> Result<Vec<ConfigEdit>> {
    let mut configs = Vec::new();
    for part in merge::split(text).iter().filter(|part| Part::has_content(part)) {
        let value = yaml::parse(&part.text)?;
        if value.get("kind").and_then(Value::as_str) != Some("Config") {
            continue;
        }
        let text = |pointer: &str| {
            let found = value.pointer(pointer).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let name = text("/metadata/name");
        let strategy = text("/spec/strategy");
        let strategy = Strategy::parse(&strategy).ok_or_else(|| {
            Error::usage(format!(
                "the Config {name} has the unknown strategy `{strategy}`: use override, insert, \
                 append or merge"
            ))
        })?;
        configs.push(ConfigEdit {
            path: text("/spec/path"),
            image: None,
            data: text("/spec/data"),
            strategy,
            name,
        });
    }
    Ok(configs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::ImageInputs;

    fn config(path: &str, strategy: Strategy, data: &str) -> ConfigEdit {
        ConfigEdit {
            name: format!("{strategy:?}"),
            path: path.to_owned(),
            image: None,
            strategy,
            data: data.to_owned(),
        }
    }

    fn image(name: &str) -> ImageInputs {
        ImageInputs { name: name.to_owned(), ..ImageInputs::default() }
    }

    #[test]
    fn strategies_modes_and_images() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        std::fs::create_dir(file("etc")).unwrap();
        for name in ["etc/a", "etc/b", "etc/of-second"] {
            std::fs::write(file(name), "old\n\n").unwrap();
        }
        std::fs::set_permissions(file("etc/a"), PermissionsExt::from_mode(0o600)).unwrap();
        let mut foreign = config("etc/of-second", Strategy::Append, "x");
        foreign.image = Some("first".to_owned());
        let mut elsewhere = config("etc/elsewhere", Strategy::Append, "x");
        elsewhere.image = Some("third".to_owned());
        let inputs = Inputs {
            images: vec![image("first"), image("second")],
            configs: vec![
                config("/etc/a", Strategy::Insert, "new\n"),
                config("etc/b", Strategy::Append, "new"),
                config("etc/made/c", Strategy::Merge, "a: 1\n"),
                config("etc/made/d.sh", Strategy::Append, "#!/bin/sh\n"),
                config("etc/made/c", Strategy::Merge, "b: 2\n"),
                foreign,
                elsewhere,
            ],
            ..Inputs::default()
        };
        let built_in = BuiltIn {
            image: 1,
            text: "kind: Config\nmetadata: {name: own}\nspec:\n  path: etc/b\n  strategy: insert\n  data: |\n    built in\n---\nkind: Other\n".to_owned(),
        };
        let origin = |path: &[u8]| (path == b"etc/of-second").then_some(1);
        let rendered =
            crate::render::tree(directory.path(), &inputs, &[built_in], &origin).unwrap();
        let content = |name: &str| std::fs::read_to_string(file(name)).unwrap();
        let mode = |name: &str| std::fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(content("etc/a"), "new\nold\n\n");
        assert_eq!(mode("etc/a"), 0o600);
        assert_eq!(content("etc/b"), "built in\nold\nnew");
        assert_eq!(content("etc/made/c"), "a: 1\nb: 2\n");
        assert_eq!(mode("etc/made/d.sh"), 0o755);
        assert_eq!(content("etc/of-second"), "old\n\n");
        assert!(!file("etc/elsewhere").exists());
        assert_eq!(rendered.notes.len(), 1, "{:?}", rendered.notes);
        assert_eq!(rendered.files, ["etc/a", "etc/b", "etc/made/c", "etc/made/d.sh"]);
    }

    #[test]
    fn paths_do_not_lead_out() {
        let directory = tempfile::tempdir().unwrap();
        let inputs =
            Inputs { configs: vec![config("../x", Strategy::Override, "x")], ..Inputs::default() };
        let error = crate::render::tree(directory.path(), &inputs, &[], &|_| None).unwrap_err();
        assert!(error.to_string().contains("leads outside"), "{error}");
    }
}
