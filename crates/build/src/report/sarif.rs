//! Findings as SARIF 2.1.0, which code scanning services read (docs.oasis-open.org/sarif).

use imgctl_kubefile::check::rules::RULES;
use serde_json::{Value, json};

use crate::report::finding::{ERROR, Finding, severity_name};
use imgctl_base::error::{Error, Result};
use imgctl_base::text::escape;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
/// The name of the root of the repository, in GitHub's documents.
const ROOT: &str = "%SRCROOT%";

/// Writes the document.
pub fn sarif_document(findings: &[Finding]) -> Result<String> {
    let mut rules: Vec<Value> =
        RULES.iter().map(|rule| described(rule.name, rule.finds, rule.help, "warning")).collect();
    let help = "The Kubefile is wrong at this place, or a step that is written there failed.";
    rules.push(described(ERROR, "The Kubefile cannot be built", help, "error"));
    let document = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "imgctl",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    });
    let mut text = serde_json::to_string_pretty(&document)
        .map_err(|error| Error::failed("cannot write SARIF").caused_by(error))?;
    text.push('\n');
    Ok(text)
}

fn described(name: &str, finds: &str, help: &str, level: &str) -> Value {
    json!({
        "id": name,
        "name": name,
        "shortDescription": { "text": finds },
        "fullDescription": { "text": format!("{finds}. {help}") },
        "help": { "text": help, "markdown": help },
        "defaultConfiguration": { "level": level },
    })
}

fn result(finding: &Finding) -> Value {
    let place = &finding.place;
    let index = RULES.iter().position(|rule| rule.name == finding.rule).unwrap_or(RULES.len());
    let text = match &place.hint {
        Some(hint) => format!("{}: {hint}", place.message),
        None => place.message.clone(),
    };
    let text = without_links(&text);
    let path = finding.path();
    let mut artifact = json!({ "uri": uri(&path) });
    if !path.starts_with('/') {
        artifact["uriBaseId"] = ROOT.into();
    }
    // Numbers below 1 are not allowed.
    let region = json!({
        "startLine": place.line.max(1),
        "startColumn": place.column.max(1),
        "endLine": place.end_line.max(place.line).max(1),
        "endColumn": place.end_column.max(1),
    });
    json!({
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": severity_name(finding.severity),
        "message": { "text": text },
        "locations": [{ "physicalLocation": { "artifactLocation": artifact, "region": region } }],
        "partialFingerprints": { "imgctl/v1": finding.fingerprint },
    })
}

/// Returns a message as plain text: `[words](place)` is a link in SARIF (3.11.6), and what a Kubefile says
/// must lead nowhere.
fn without_links(text: &str) -> String {
    let text = escape(text);
    if !text.contains("](") {
        return text.into_owned();
    }
    text.replace('\\', r"\\").replace('[', r"\[").replace(']', r"\]")
}

/// Returns a path as a relative URI, or as `file:` if it is absolute.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri.push_str("file://");
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}
