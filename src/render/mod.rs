//! Makes an image's files into one host's files: Config documents, then templates.
//!
//! Works on a directory and plain values; must not know clusters, agents or the store.

mod configs;
mod data;
mod documents;
mod files;
mod json;
mod merge;
mod templates;
mod yaml_edit;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Result;

pub(crate) use templates::is_template;

use serde::{Deserialize, Serialize};

/// All that rendering depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The images whose layers made the tree, in order.
    pub(crate) images: Vec<ImageInputs>,
    /// What beats every image's own variables (cluster, host, flags; already merged).
    pub(crate) environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`: docs/cluster-image.md.
    pub(crate) facts: serde_json::Map<String, serde_json::Value>,
    /// In order; applied before templates.
    pub(crate) configs: Vec<ConfigEdit>,
    /// A missing key in a `.tmpl` is an error.
    pub(crate) strict: bool,
}

/// What one image brings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageInputs {
    /// As in the Clusterfile's `spec.image`.
    pub(crate) name: String,
    /// Its `ENV`, without `PATH`.
    pub(crate) environment: BTreeMap<String, String>,
}

/// One Config document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConfigEdit {
    pub(crate) name: String,
    /// Relative to the image's root.
    pub(crate) path: String,
    /// Only for the image of this name.
    pub(crate) image: Option<String>,
    pub(crate) strategy: Strategy,
    pub(crate) data: String,
}

/// How a Config changes its file (sealos.md 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Strategy {
    #[default]
    Override,
    /// Data before what is there.
    Insert,
    /// Data after what is there.
    Append,
    /// YAML merged into YAML; comments and order of keys stay.
    Merge,
}

/// The file in an image's root that holds Config documents of its own.
pub(crate) const BUILT_IN: &str = "config.yml";

/// The Config documents that one image brings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BuiltIn {
    /// Which of [`Inputs::images`].
    pub(crate) image: usize,
    /// Its [`BUILT_IN`] file.
    pub(crate) text: String,
}

/// Tells which of [`Inputs::images`] the file at a path (relative, as bytes) came from.
pub(crate) type Origin<'a> = dyn Fn(&[u8]) -> Option<usize> + 'a;

/// What was done to a tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rendered {
    /// Files that Config documents changed and templates gave, relative to the tree.
    pub(crate) files: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Applies all Config documents to the tree at `root`, those of the images first, and then renders
/// its templates. Nothing outside `root` is read or written, whatever links the tree has. All that
/// is wrong with the templates is told at once; the tree is half rendered then.
pub(crate) fn tree(
    root: &Path,
    inputs: &Inputs,
    built_in: &[BuiltIn],
    origin: &Origin<'_>,
) -> Result<Rendered> {
    let files = files::Files::open(root)?;
    let mut rendered = Rendered::default();
    let created = configs::apply_all(&files, inputs, built_in, origin, &mut rendered)?;
    let origin = |path: &[u8]| origin(path).or_else(|| created.get(path).copied());
    templates::render_all(&files, inputs, &origin, &mut rendered)?;
    rendered.files.sort();
    rendered.files.dedup();
    Ok(rendered)
}

/// What the template `text` of `image` (of [`Inputs::images`]) gives; `name` is its path and says in
/// which language it is. Touches no file: for previews.
#[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
pub(crate) fn one(name: &str, text: &str, inputs: &Inputs, image: Option<usize>) -> Result<String> {
    templates::one(name, text, &data::Data::of(inputs, image))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(strict: bool) -> Inputs {
        let image = |name: &str, variables: &[(&str, &str)]| ImageInputs {
            name: name.to_owned(),
            environment: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        };
        let facts = serde_json::json!({"Host": {"name": "h"}, "Arch": "amd64"});
        Inputs {
            images: vec![
                image("first", &[("a", "1"), ("b", "1"), ("only", "first")]),
                image("second", &[("a", "2"), ("b", "2"), ("Arch", "mine")]),
            ],
            environment: BTreeMap::from([("b".to_owned(), "\" $ \\ \n,=".to_owned())]),
            facts: facts.as_object().cloned().unwrap_or_default(),
            configs: Vec::new(),
            strict,
        }
    }

    #[test]
    fn own_variables_beat_other_images_and_cluster_and_flags_beat_all() {
        let inputs = inputs(false);
        for (name, text, image, expected) in [
            (
                "x.tmpl",
                "{{.a}} {{.only}} {{.Host.name}}",
                Some(0),
                "1 first h",
            ),
            (
                "x.tmpl",
                "{{.a}} {{.only}} {{.Env.a}}",
                Some(1),
                "2 first 2",
            ),
            ("x.tmpl", "{{.b}}", Some(0), "\" $ \\ \n,="),
            (
                "x.tmpl",
                "{{.Arch}} {{.none}} {{env \"PATH\"}}",
                None,
                "mine <no value> ",
            ),
            (
                "x.tmpl",
                "{{ expandenv \"$a-${only}\" }}",
                Some(0),
                "1-first",
            ),
            (
                "x.tera",
                "{{ b }}|{{ Host.name }}|{{ Env.a }}",
                Some(0),
                "\" $ \\ \n,=|h|1",
            ),
            (
                "x.tera",
                "{% if a == \"1\" %}<{{ only }}>{% endif %}",
                Some(0),
                "<first>",
            ),
        ] {
            assert_eq!(one(name, text, &inputs, image).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn errors_say_where_and_what_to_do() {
        let inputs = inputs(true);
        for (name, text, says) in [
            ("etc/x.tmpl", "a\n{{ .nokey }}", "etc/x.tmpl:2"),
            ("etc/x.tmpl", "a\n{{ .nokey }}", "nokey"),
            ("etc/x.tmpl", "a\n\n{{ if }}", ":3:"),
            ("etc/x.tmpl", "{{ nofunction 1 }}", "nofunction"),
            ("etc/x.tera", "a\n{{ nokey }}", "nokey"),
            ("etc/x.tera", "a\n{{ nokey }}", "2"),
            ("etc/x.tera", "{% if %}", "etc/x.tera"),
        ] {
            let error = one(name, text, &inputs, None).unwrap_err();
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
    }
}
