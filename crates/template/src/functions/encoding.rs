//! JSON, YAML, TOML, base64, hashes, semantic versions.
//!
//! `fromYaml` and `fromJson` put an error into the member `Error`, as in Helm and sealos.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gotmpl::Value;

use super::arguments::{Arguments, Members, list, string};
use super::{Answer, Group};
use crate::semver::{self, Version};
use crate::value::{from_json, to_json};
use crate::{toml, yaml};
use imgctl_base::image::Digest;

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("toJson", |a| Ok(string(go_json(a.value(0)?)))),
    ("mustToJson", |a| Ok(string(go_json(a.value(0)?)))),
    ("toRawJson", |a| Ok(string(to_json(a.value(0)?).to_string()))),
    ("toPrettyJson", |a| {
        let pretty = serde_json::to_string_pretty(&to_json(a.value(0)?));
        pretty.map(string).map_err(|error| a.refuse(error))
    }),
    ("fromJson", |a| Ok(parsed(json(a)?))),
    ("mustFromJson", |a| json(a)?.map_err(|error| a.refuse(error))),
    ("fromJsonArray", |a| Ok(parsed_list(json(a)?))),
    ("toYaml", |a| {
        let text = yaml::write(&to_json(a.value(0)?));
        text.map(string).map_err(|error| a.refuse(error))
    }),
    ("fromYaml", |a| Ok(parsed(from_yaml(a)?))),
    ("fromYamlArray", |a| Ok(parsed_list(from_yaml(a)?))),
    ("toToml", |a| {
        let text = toml::write(&to_json(a.value(0)?));
        text.map(string).map_err(super::refuse)
    }),
    ("b64enc", |a| Ok(string(STANDARD.encode(a.text(0)?)))),
    ("b64dec", |a| {
        let bytes = STANDARD.decode(a.text(0)?).map_err(|error| a.refuse(error))?;
        String::from_utf8(bytes).map(string).map_err(|_| a.refuse("the decoded text is not UTF-8"))
    }),
    ("sha256sum", |a| Ok(string(Digest::of(a.text(0)?.as_bytes()).hex()))),
    ("semver", version),
    ("semverCompare", |a| {
        let (constraint, version) = (a.text(0)?, a.text(1)?);
        // A malformed constraint is an error in the template, even if the version is empty.
        let malformed = || a.refuse(format!("{constraint:?} is not a constraint"));
        // As in sealos, an invalid version satisfies no constraint.
        let Some(version) = Version::parse(&version) else {
            let zero =
                Version { numbers: [0; 3], prerelease: String::new(), metadata: String::new() };
            semver::satisfies(&constraint, &zero).ok_or_else(malformed)?;
            return Ok(Value::Bool(false));
        };
        semver::satisfies(&constraint, &version).map(Value::Bool).ok_or_else(malformed)
    }),
];

type Parsed = Result<Value, String>;

fn json(a: &Arguments<'_>) -> Result<Parsed, gotmpl::TemplateError> {
    let json: Result<serde_json::Value, _> = serde_json::from_str(&a.text(0)?);
    Ok(json.map(|json| from_json(&json)).map_err(|error| error.to_string()))
}

fn from_yaml(a: &Arguments<'_>) -> Result<Parsed, gotmpl::TemplateError> {
    let yaml = yaml::parse(&a.text(0)?);
    Ok(yaml.map(|yaml| from_json(&yaml)).map_err(|error| error.to_string()))
}

fn parsed(outcome: Parsed) -> Value {
    outcome.unwrap_or_else(|error| Value::from(Members::from([("Error".into(), string(error))])))
}

fn parsed_list(outcome: Parsed) -> Value {
    match outcome {
        Ok(value @ Value::List(_)) => value,
        Ok(_) => list([string("error: this is not a list")]),
        Err(error) => list([string(error)]),
    }
}

/// Encodes JSON like Go, which escapes HTML characters.
pub(super) fn go_json(value: &Value) -> String {
    to_json(value)
        .to_string()
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// Implements `semver`, as in `(semver "1.2.3").Major`.
fn version(a: &Arguments<'_>) -> Answer {
    let text = a.text(0)?;
    let version =
        Version::parse(&text).ok_or_else(|| a.refuse(format!("{text:?} is not a version")))?;
    let [major, minor, patch] = version.numbers;
    let member = |name: &str, value: Value| (name.into(), value);
    Ok(Value::from(Members::from([
        member("Major", Value::Uint(major)),
        member("Minor", Value::Uint(minor)),
        member("Patch", Value::Uint(patch)),
        member("Prerelease", string(&version.prerelease)),
        member("Metadata", string(&version.metadata)),
        member("Original", string(&text)),
    ])))
}
