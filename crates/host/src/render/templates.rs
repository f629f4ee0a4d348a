//! Renders `*.tmpl` (Go's language) and `*.tera` (Tera) files to the names without the extension.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::render::files::Files;
use crate::render::{Inputs, Origin, Rendered, separate};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_layer::LayerPath;
use imgctl_template::{Missing, Template};

/// Directories whose templates are rendered recursively.
const DIRECTORIES: [&[u8]; 3] = [b"etc", b"scripts", b"manifests"];
const GO: &[u8] = b".tmpl";
const TERA: &[u8] = b".tera";
/// Maximum number of errors to report; more would bury the first.
const TOLD: usize = 20;

/// Reports whether the file at `path` (relative to an image's root) is a template.
pub(crate) fn is_template(path: &[u8]) -> bool {
    let mut parts = path.splitn(2, |byte| *byte == b'/');
    let is_inside = parts.next().is_some_and(|top| DIRECTORIES.contains(&top));
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    is_inside
        && parts.next().is_some()
        && [GO, TERA].iter().any(|end| name.len() > end.len() && name.ends_with(end))
}

/// Renders one template. The extension of `name` selects the language; errors refer to the template
/// by `name`.
pub(super) fn one(name: &str, text: &str, data: &Data) -> Result<String> {
    if name.as_bytes().ends_with(TERA) {
        return separate::tera(name, text, data.object());
    }
    let missing = if data.strict { Missing::Error } else { Missing::NoValue };
    let template = Template::parse_in(name, text, missing, &data.environment)?;
    template.render(&data.object())
}

/// Renders all templates of a tree. Reports all failures together.
pub(super) fn render_all(
    files: &Files,
    inputs: &Inputs,
    origin: &Origin<'_>,
    rendered: &mut Rendered,
) -> Result<()> {
    let mut paths = Vec::new();
    for directory in DIRECTORIES {
        paths.extend(files.find(&LayerPath::parse(directory)?, &is_template)?);
    }
    let mut errors = Vec::new();
    let mut outputs = BTreeMap::new();
    for path in &paths {
        let output = output_path(path)?;
        if let Some(other) = outputs.insert(output.clone(), path) {
            errors.push(Error::usage(format!(
                "{other} and {path} both produce {output}: remove one of them"
            )));
            continue;
        }
        let data = Data::of(inputs, origin(path.as_bytes()));
        match file(files, path, &output, &data) {
            Ok(template) => {
                rendered.mentions.add(&template);
                rendered.files.push(text_of(&output));
            }
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        count => Err(several(&errors, count, paths.len())),
    }
}

/// Renders one file; returns the text of the template.
fn file(files: &Files, path: &LayerPath, output: &LayerPath, data: &Data) -> Result<String> {
    let Some(template) = files.read(path)? else {
        return Err(Error::not_found(format!(
            "the template {path} is a symlink to something that is not in the image"
        )));
    };
    let text = String::from_utf8(template.bytes)
        .map_err(|_| Error::usage(format!("the template {path} is not UTF-8")))?;
    let result = one(&text_of(path), &text, data)?;
    // Scripts are made executable, whatever the mode of the template.
    let executable = if result.starts_with("#!") { 0o111 } else { 0 };
    files.write(output, result.as_bytes(), template.mode | executable)?;
    Ok(text)
}

/// Returns the path without the template extension.
fn output_path(path: &LayerPath) -> Result<LayerPath> {
    let bytes = path.as_bytes();
    let ending = [GO, TERA].into_iter().find(|end| bytes.ends_with(end));
    let length = bytes.len() - ending.map_or(0, <[u8]>::len);
    LayerPath::parse(bytes.get(..length).unwrap_or_default())
}

fn several(errors: &[Error], count: usize, of: usize) -> Error {
    let message = format!("{count} of {of} templates cannot be rendered:");
    let mut lines: Vec<String> =
        errors.iter().take(TOLD).map(|error| format!("    {error}")).collect();
    if count > TOLD {
        lines.push(format!("    and {} more", count - TOLD));
    }
    let kind = errors.first().map_or(Kind::Usage, Error::kind);
    let mut all = Error::new(kind, message).lines(lines);
    let mut told = std::collections::BTreeSet::new();
    for hint in errors.iter().flat_map(Error::hints) {
        if told.len() < TOLD && told.insert(hint) {
            all = all.hint(hint);
        }
    }
    all
}

/// Returns the path without the leading slash that messages use.
pub(super) fn text_of(path: &LayerPath) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

/// Data for the templates of one image on one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Data {
    /// Variables, also available as `.Env`.
    pub environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`. A variable overrides a fact of the same name,
    /// because older images were written before facts existed.
    pub facts: Map<String, Value>,
    pub strict: bool,
}

impl Data {
    /// Builds the data for the templates of `image`: the variables of all images in order, then the
    /// image's own, then those of cluster, host and flags.
    pub(super) fn of(inputs: &Inputs, image: Option<usize>) -> Self {
        let mut environment = BTreeMap::new();
        let own = image.and_then(|image| inputs.images.get(image));
        for image in inputs.images.iter().chain(own) {
            environment.extend(image.environment.clone());
        }
        environment.extend(inputs.environment.clone());
        Self { environment, facts: inputs.facts.clone(), strict: inputs.strict }
    }

    pub(super) fn object(&self) -> Value {
        let variables = || {
            self.environment.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        };
        let mut object = self.facts.clone();
        object.insert("Env".to_owned(), variables().collect());
        object.extend(variables());
        Value::Object(object)
    }
}
