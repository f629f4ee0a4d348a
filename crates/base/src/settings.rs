//! The settings of an image: its variables with their types, defaults and descriptions, as a JSON Schema in
//! a label. Must not know where variables come from.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::schema::{self, Unusable};

/// Label with the schema. A build writes it from the file.
pub const SETTINGS: &str = "io.imgctl.settings";
/// File of a build context with the schema.
pub const SETTINGS_FILE: &str = "settings.schema.json";
/// Maximum size of the schema, in bytes: it is part of the image's configuration.
pub const MAX_SETTINGS: u64 = 256 << 10;
/// Maximum number of violations in an error.
const MOST_SHOWN: usize = 10;

/// The settings of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    schema: Value,
    /// The properties of the schema.
    properties: Map<String, Value>,
}

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    /// As in the schema: `string`, `integer`, …; several joined with `|`.
    pub kind: String,
    pub description: String,
    pub default: Option<String>,
    pub is_required: bool,
    /// No message, question or log shows the value.
    pub is_secret: bool,
}

impl Settings {
    /// Parses a schema: an object whose properties are the variables.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::bad_content(format!("the schema of the settings {why}"));
        if text.len() as u64 > MAX_SETTINGS {
            return Err(wrong(&format!("has more than {MAX_SETTINGS} bytes")));
        }
        let schema: Value =
            serde_json::from_str(text).map_err(|error| wrong("is not JSON").caused_by(error))?;
        let properties = match (&schema, &schema["properties"]) {
            (Value::Object(_), Value::Object(properties)) => properties.clone(),
            _ => {
                return Err(wrong("has no properties")
                    .hint("it is an object with \"properties\": {\"NAME\": {\"type\": …}, …}"));
            }
        };
        if let Some(name) = properties.keys().find(|name| !is_variable(name)) {
            let shown: String = name.chars().take(64).collect();
            return Err(wrong(&format!(
                "has `{}`, which is no name of a variable",
                shown.escape_debug()
            )));
        }
        match schema::violations(schema.clone(), &Value::Object(Map::new())) {
            Ok(_) => Ok(Self { schema, properties }),
            Err(Unusable::Elsewhere(url)) => {
                Err(wrong(&format!("refers to {url}; it must be complete in itself")))
            }
            Err(Unusable::Wrong(why)) => Err(wrong(&format!("cannot be used: {why}"))),
        }
    }

    /// Returns the settings that the labels of an image have.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Result<Option<Self>> {
        labels
            .get(SETTINGS)
            .filter(|text| !text.is_empty())
            .map(|text| Self::parse(text))
            .transpose()
    }

    /// Returns the schema on one line, for the label.
    pub fn to_label(&self) -> String {
        self.schema.to_string()
    }

    pub fn has(&self, name: &str) -> bool {
        self.properties.contains_key(name)
    }

    /// Returns all settings.
    pub fn list(&self) -> Vec<Setting> {
        let required = self.schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let setting = |(name, property): (&String, &Value)| Setting {
            name: name.clone(),
            kind: kinds(property).join("|"),
            description: property["description"].as_str().unwrap_or_default().to_owned(),
            default: property.get("default").map(text),
            is_required: required.iter().any(|one| one.as_str() == Some(name)),
            is_secret: is_secret(property),
        };
        self.properties.iter().map(setting).collect()
    }

    /// Returns the required settings that have no value. An empty value is none.
    pub fn missing(&self, variables: &BTreeMap<String, String>) -> Vec<Setting> {
        let has_value = |name: &str| variables.get(name).is_some_and(|value| !value.is_empty());
        let mut settings = self.list();
        settings.retain(|setting| setting.is_required && !has_value(&setting.name));
        settings
    }

    /// Returns why `variables` cannot be the values of these settings: each begins with the name of a setting.
    pub fn refusals(&self, variables: &BTreeMap<String, String>) -> Vec<String> {
        let missing = self.missing(variables);
        let mut rest = self.clone();
        if let Some(Value::Array(required)) = rest.schema.get_mut("required") {
            required.retain(|name| missing.iter().all(|one| name.as_str() != Some(&one.name)));
        }
        let told = |setting: &Setting| format!("{}: it is required and has no value", setting.name);
        let mut refusals: Vec<String> = missing.iter().map(told).collect();
        refusals.extend(rest.check(variables).err().into_iter().flatten());
        refusals
    }

    /// Fails if `variables` do not fit. Only the variables that the schema has are considered.
    pub fn check(&self, variables: &BTreeMap<String, String>) -> Result<(), Vec<String>> {
        let given = self.properties.iter().filter_map(|(name, property)| {
            let value = variables.get(name).filter(|value| !value.is_empty())?;
            Some((name.clone(), typed(value, property)))
        });
        let values = Value::Object(given.collect());
        let found = match schema::violations(self.schema.clone(), &values) {
            Ok(found) if found.is_empty() => return Ok(()),
            Ok(found) => found,
            Err(Unusable::Elsewhere(what) | Unusable::Wrong(what)) => return Err(vec![what]),
        };
        let told = |violation: &schema::Violation| {
            let name =
                violation.place.trim_start_matches('/').split('/').next().unwrap_or_default();
            let secret = self.properties.get(name).is_some_and(is_secret);
            match (name, secret) {
                ("", _) => violation.text.clone(),
                (name, true) => format!("{name}: the value does not fit its schema"),
                (name, false) => format!("{name}: {}", violation.text),
            }
        };
        let mut shown: Vec<String> = found.iter().map(told).collect();
        shown.dedup();
        let more = shown.len().saturating_sub(MOST_SHOWN);
        shown.truncate(MOST_SHOWN);
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        Err(shown)
    }
}

/// Whether a shell can have a variable of this name.
fn is_variable(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(is_part)
}

/// `writeOnly` is JSON Schema's word for what is never shown, `password` the format of OpenAPI.
fn is_secret(property: &Value) -> bool {
    property["writeOnly"] == true || property["format"] == "password"
}

fn kinds(property: &Value) -> Vec<&str> {
    match &property["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Converts the text of a variable to the type of its property. A text that cannot be converted stays a string, which then
/// violates the schema.
fn typed(text: &str, property: &Value) -> Value {
    let kinds = kinds(property);
    let parsed: Option<Value> = serde_json::from_str(text.trim()).ok();
    let fits = |value: &Value| match value {
        Value::Number(_) => kinds.contains(&"integer") || kinds.contains(&"number"),
        Value::Bool(_) => kinds.contains(&"boolean"),
        Value::Array(_) => kinds.contains(&"array"),
        Value::Object(_) => kinds.contains(&"object"),
        Value::Null | Value::String(_) => false,
    };
    parsed.filter(fits).unwrap_or_else(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::damaged;

    const SCHEMA: &str = r#"{
        "type": "object", "required": ["password", "port"],
        "properties": {
            "port": {"type": "integer", "minimum": 1, "default": 80, "description": "Port of the page"},
            "tls": {"type": "boolean"},
            "names": {"type": ["array", "string"]},
            "level": {"enum": ["low", "high"]},
            "password": {"type": "string", "minLength": 8, "writeOnly": true}
        },
        "additionalProperties": false
    }"#;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn settings_are_listed_with_what_the_schema_says() {
        let settings = Settings::parse(SCHEMA).unwrap();
        let list = settings.list();
        let named = |name: &str| list.iter().find(|setting| setting.name == name).unwrap();
        assert_eq!(list.len(), 5);
        let port = Setting {
            name: "port".to_owned(),
            kind: "integer".to_owned(),
            description: "Port of the page".to_owned(),
            default: Some("80".to_owned()),
            is_required: true,
            is_secret: false,
        };
        assert_eq!(*named("port"), port);
        assert!(named("password").is_secret && named("names").kind == "array|string");
        assert_eq!(Settings::parse(&settings.to_label()).unwrap(), settings);
    }

    #[test]
    fn variables_are_checked_as_their_types() {
        let settings = Settings::parse(SCHEMA).unwrap();
        let base = [("password", "long enough"), ("port", "81"), ("HOST_IP", "10.0.0.1")];
        for more in [
            &[][..],
            &[("tls", "true"), ("names", "[1]")],
            &[("names", "a,b"), ("level", "low"), ("tls", "")],
        ] {
            assert_eq!(settings.check(&variables(&[&base, more].concat())), Ok(()), "{more:?}");
        }
        for (more, place) in [
            (&[("port", "0")][..], "port: "),
            (&[("port", "http")], "port: "),
            (&[("port", "1.5")], "port: "),
            (&[("tls", "yes")], "tls: "),
            (&[("level", "middle")], "level: "),
        ] {
            let wrong = settings.check(&variables(&[&base, more].concat())).unwrap_err();
            assert!(wrong[0].starts_with(place), "{wrong:?}");
        }
        let wrong = settings.check(&variables(&[("password", "hush"), ("port", "1")])).unwrap_err();
        assert!(!format!("{wrong:?}").contains("hush"), "{wrong:?}");
        let missing = settings.missing(&variables(&[("password", ""), ("port", "1")]));
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].name, "password");
        let told = settings.refusals(&variables(&[("port", "x"), ("tls", "true")]));
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0], "password: it is required and has no value");
        assert!(told[1].starts_with("port: "), "{told:?}");
        assert_eq!(settings.refusals(&variables(&base)), [""; 0]);
    }

    #[test]
    fn what_is_no_schema_of_settings_is_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"properties": []}"#,
            r#"{"properties": {"a-b": {}}}"#,
            r#"{"properties": {"1a": {}}}"#,
            r#"{"properties": {"a": {"type": "text"}}}"#,
            r#"{"properties": {"a": {"$ref": "https://example.com/a.json"}}}"#,
            r##"{"properties": {"a": {"$ref": "#/nowhere"}}}"##,
        ] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
        assert!(Settings::parse(&format!("{SCHEMA}{}", " ".repeat(1 << 20))).is_err());
    }

    #[test]
    fn any_label_is_read_or_refused() {
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(SCHEMA.as_bytes(), input)] {
                let text = String::from_utf8_lossy(&text).into_owned();
                if let Ok(settings) = Settings::parse(&text) {
                    let values = variables(&[("port", &text), ("password", "x"), ("tls", "true")]);
                    let _ = settings.check(&values);
                    assert_eq!(Settings::parse(&settings.to_label()).unwrap(), settings);
                }
            }
        });
    }
}
