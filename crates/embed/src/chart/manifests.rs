//! What Helm refuses of a rendered template: documents that are not YAML, or no manifest.
//!
//! Must not know images.

use serde_json::Value;

use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

/// Checks the documents of a rendered template, which Helm splits at every `---`.
pub(super) fn check(path: &str, text: &str) -> Result<()> {
    for document in text.trim_start().split("\n---") {
        let document = document.trim_start_matches("---").trim_start();
        let wrong = |error: Error| error.context(format!("{path} renders to what is no manifest"));
        let parsed = yaml::parse_first(document).map_err(wrong)?;
        head(&parsed).map_err(|what| wrong(Error::usage(what)))?;
    }
    Ok(())
}

/// Checks the fields that Helm reads.
fn head(document: &Value) -> Result<(), String> {
    let fields = ["apiVersion", "kind", "metadata"].map(|name| document.get(name));
    let [version, kind, metadata] = fields;
    table(Some(document), "the document")?;
    scalar(version, "apiVersion")?;
    scalar(kind, "kind")?;
    let Some(metadata) = metadata else { return Ok(()) };
    table(Some(metadata), "metadata")?;
    scalar(metadata.get("name"), "metadata.name")?;
    let annotations = metadata.get("annotations");
    table(annotations, "metadata.annotations")?;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        scalar(Some(value), &format!("metadata.annotations.{key}"))?;
    }
    Ok(())
}

fn table(value: Option<&Value>, what: &str) -> Result<(), String> {
    match value {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err(format!("{what} is not a table")),
    }
}

fn scalar(value: Option<&Value>, what: &str) -> Result<(), String> {
    match value {
        Some(Value::Array(_) | Value::Object(_)) => Err(format!("{what} is not text")),
        _ => Ok(()),
    }
}
