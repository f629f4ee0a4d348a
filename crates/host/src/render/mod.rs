//! Renders an image's files into one host's files: applies Config documents, then templates.
//!
//! Works on a directory and plain values. Must not depend on clusters, agents or the store.

mod configs;
mod files;
mod json;
mod mentions;
mod merge;
mod separate;
mod templates;
mod yaml_edit;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use imgctl_base::error::Result;

pub use mentions::Mentions;
pub use separate::entry;
pub(crate) use templates::is_template;

/// Everything that rendering depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Images whose layers make up the tree, in order.
    pub images: Vec<ImageInputs>,
    /// Variables that override every image's own (cluster, host, flags; already merged).
    pub environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`: see docs/cluster-image.md.
    pub facts: serde_json::Map<String, serde_json::Value>,
    /// Config documents in order, applied before templates.
    pub configs: Vec<ConfigEdit>,
    /// Whether a missing key in a `.tmpl` is an error.
    pub strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageInputs {
    /// Name as in the Clusterfile's `spec.image`.
    pub name: String,
    /// The image's `ENV`, without `PATH`.
    pub environment: BTreeMap<String, String>,
}

/// One Config document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigEdit {
    pub name: String,
    /// Path of the file, relative to the image's root.
    pub path: String,
    /// Applies only to the image with this name.
    pub image: Option<String>,
    pub strategy: Strategy,
    pub data: String,
}

/// How a Config document changes its file, as in sealos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    #[default]
    Override,
    /// Inserts the data before the existing content.
    Insert,
    /// Appends the data to the existing content.
    Append,
    /// Merges YAML into YAML; preserves comments and key order.
    Merge,
}

impl Strategy {
    /// Parses the name in a Config document; none means `override`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Override),
            name => serde_json::from_value(name.into()).ok(),
        }
    }
}

/// File in an image's root that contains the image's own Config documents.
pub const BUILT_IN: &str = "config.yml";

/// Config documents of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltIn {
    /// Index of the image in [`Inputs::images`].
    pub image: usize,
    /// Content of the image's [`BUILT_IN`] file.
    pub text: String,
}

/// Returns the index in [`Inputs::images`] of the image that the file at a path (relative, as
/// bytes) came from.
pub type Origin<'a> = dyn Fn(&[u8]) -> Option<usize> + 'a;

/// Changes made to a tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// Files changed by Config documents or rendered from templates, relative to the tree.
    pub files: Vec<String>,
    pub notes: Vec<String>,
    /// What the templates can see of the inputs.
    pub mentions: Mentions,
}

/// Applies all Config documents to the tree at `root`, the images' first, then renders its
/// templates. Never reads or writes outside `root`, even if the tree contains links. Reports all
/// template errors at once; the tree is then partially rendered.
pub fn tree(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, text: &str, inputs: &Inputs, image: Option<usize>) -> Result<String> {
        templates::one(name, text, &templates::Data::of(inputs, image))
    }

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
            ("x.tmpl", "{{.a}} {{.only}} {{.Host.name}}", Some(0), "1 first h"),
            ("x.tmpl", "{{.a}} {{.only}} {{.Env.a}}", Some(1), "2 first 2"),
            ("x.tmpl", "{{.b}}", Some(0), "\" $ \\ \n,="),
            ("x.tmpl", "{{.Arch}} {{.none}} {{env \"PATH\"}}", None, "mine <no value> "),
            ("x.tmpl", "{{ expandenv \"$a-${only}\" }}", Some(0), "1-first"),
            ("x.tera", "{{ b }}|{{ Host.name }}|{{ Env.a }}", Some(0), "\" $ \\ \n,=|h|1"),
            ("x.tera", "{% if a == \"1\" %}<{{ only }}>{% endif %}", Some(0), "<first>"),
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

    /// Templates of both languages as an image brings them.
    #[test]
    fn any_template_renders_or_fails() {
        const PIECES: [&str; 48] = [
            "{{",
            "}}",
            "{%",
            "%}",
            "{#",
            "#}",
            " ",
            "\n",
            "(",
            ")",
            "[",
            "]",
            "|",
            ".",
            ":",
            "=",
            "==",
            "~",
            "+",
            "*",
            "%",
            "if ",
            "else",
            "elif ",
            "endif",
            "for x in ",
            "endfor",
            "set y = ",
            "macro m(a) ",
            "endmacro",
            "self::m(a=1)",
            "filter upper",
            "endfilter",
            "raw",
            "endraw",
            "include \"x\"",
            "extends \"x\"",
            "block b",
            "endblock",
            "a",
            "Env",
            "Host.name",
            "\"text\"",
            "7",
            "default(value=1)",
            "range(end=9)",
            "replace(from=\"e\", to=\"ee\")",
            "json_encode()",
        ];
        let inputs = inputs(false);
        bolero::check!().for_each(|input: &[u8]| {
            let text: String =
                input.iter().take(400).map(|&b| PIECES[usize::from(b) % PIECES.len()]).collect();
            let raw = String::from_utf8_lossy(input);
            for (name, text) in [("x.tera", &*text), ("x.tera", &*raw), ("x.tmpl", &*raw)] {
                if let Ok(rendered) = one(name, text, &inputs, Some(0)) {
                    assert!(rendered.len() < 64 << 20);
                }
            }
        });
    }
}
