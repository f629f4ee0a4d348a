//! YAML, JSON, TOML, base64, digests and semantic versions.
//!
//! `fromYaml` and `fromJson` report an error in the member `Error`, as in Helm.

use std::rc::Rc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Answer, Group, text};
use crate::embed::chart::engine::objects::Object;
use crate::embed::chart::engine::print::{MAX_NESTING, to_text};
use crate::embed::chart::engine::value::Value;
use crate::embed::chart::engine::yaml;
use crate::embed::chart::yaml_in;
use imgctl_template::semver::{self, Version};
use imgctl_template::toml;

pub(super) const GROUP: Group = &[
    // Helm ignores values that cannot be encoded.
    ("toYaml", "*", |a| Ok(Value::text(yaml::to_yaml(&a[0]).unwrap_or_default()))),
    ("toYamlPretty", "*", |a| Ok(Value::text(yaml::to_yaml(&a[0]).unwrap_or_default()))),
    ("toJson", "*", |a| yaml::to_json(&a[0], true, false).map(Value::text)),
    ("toRawJson", "*", |a| yaml::to_json(&a[0], false, false).map(Value::text)),
    ("toPrettyJson", "*", |a| yaml::to_json(&a[0], true, true).map(Value::text)),
    ("toToml", "*", |a| {
        let json = yaml::json_of(&a[0], MAX_NESTING)?;
        // As in Helm, an error message becomes the result.
        Ok(Value::text(toml::write(&json).unwrap_or_else(|error| error)))
    }),
    ("fromYaml", "s", |a| Ok(mapping(from_yaml(&text(a, 0))))),
    ("fromYamlArray", "s", |a| Ok(sequence(from_yaml(&text(a, 0))))),
    ("fromJson", "s", |a| Ok(mapping(from_json(&text(a, 0))))),
    ("fromJsonArray", "s", |a| Ok(sequence(from_json(&text(a, 0))))),
    ("mustFromJson", "s", |a| from_json(&text(a, 0))),
    ("fromToml", "s", |a| {
        let parsed: Result<serde_json::Value, _> = ::toml::from_str(&text(a, 0));
        let parsed = parsed.map(|json| Value::from_json(&json));
        Ok(mapping(parsed.map_err(|error| error.to_string())))
    }),
    ("b64enc", "s", |a| Ok(Value::text(STANDARD.encode(text(a, 0).as_bytes())))),
    ("b64dec", "s", |a| {
        // Invalid input returns the error message, as in sprig.
        Ok(match STANDARD.decode(text(a, 0).as_bytes()) {
            Ok(bytes) => Value::text(String::from_utf8_lossy(&bytes)),
            Err(error) => Value::text(error.to_string()),
        })
    }),
    ("b32enc", "s", |a| Ok(Value::text(base32(text(a, 0).as_bytes())))),
    ("sha1sum", "s", |a| Ok(digest_of(&digest::SHA1_FOR_LEGACY_USE_ONLY, a))),
    ("sha256sum", "s", |a| Ok(digest_of(&digest::SHA256, a))),
    ("sha512sum", "s", |a| Ok(digest_of(&digest::SHA512, a))),
    ("adler32sum", "s", |a| {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in text(a, 0).bytes() {
            low = (low + u32::from(byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        Ok(Value::text(((high << 16) | low).to_string()))
    }),
    ("semver", "s", |a| {
        let original = text(a, 0);
        let version = Version::parse(&original).ok_or("Invalid Semantic Version")?;
        let object = Object::Version(version, original.as_ref().to_owned());
        Ok(Value::Object(Rc::new(object)))
    }),
    ("semverCompare", "ss", |a| {
        let (constraint, version) = (text(a, 0), text(a, 1));
        let version = Version::parse(&version)
            .ok_or_else(|| format!("Invalid Semantic Version {:?}", version.as_ref()))?;
        semver::satisfies(&constraint, &version)
            .map(Value::Bool)
            .ok_or_else(|| format!("improper constraint: {constraint}"))
    }),
];

fn from_yaml(text: &str) -> Answer {
    let parsed = yaml_in::parse(text);
    parsed.map(|yaml| Value::from_json(&yaml)).map_err(|error| error.to_string())
}

fn from_json(text: &str) -> Answer {
    let parsed: Result<serde_json::Value, _> = serde_json::from_str(text);
    parsed.map(|json| Value::from_json(&json)).map_err(|error| error.to_string())
}

fn mapping(parsed: Answer) -> Value {
    match parsed {
        Ok(value @ Value::Map(_)) => value,
        Ok(Value::Nil) => Value::map::<&str>([]),
        Ok(other) => Value::map([(
            "Error",
            Value::text(format!("cannot unmarshal {} into a map", other.kind())),
        )]),
        Err(error) => Value::map([("Error", Value::text(error))]),
    }
}

fn sequence(parsed: Answer) -> Value {
    match parsed {
        Ok(value @ Value::List(_)) => value,
        Ok(Value::Nil) => Value::list([]),
        Ok(other) => {
            Value::list([Value::text(format!("cannot unmarshal {} into a list", other.kind()))])
        }
        Err(error) => Value::list([Value::text(error)]),
    }
}

fn digest_of(algorithm: &'static digest::Algorithm, a: &[Value]) -> Value {
    let content = a.first().map(to_text).unwrap_or_default();
    let digest = digest::digest(algorithm, content.as_bytes());
    let hex: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    Value::text(hex)
}

fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut out = String::new();
    for chunk in bytes.chunks(5) {
        let mut bits = 0_u64;
        for index in 0..5 {
            bits = (bits << 8) | u64::from(chunk.get(index).copied().unwrap_or(0));
        }
        let used = (chunk.len() * 8).div_ceil(5);
        for index in 0..8 {
            if index < used {
                let letter = usize::try_from((bits >> (35 - 5 * index)) & 31).unwrap_or(0);
                out.push(char::from(LETTERS[letter]));
            } else {
                out.push('=');
            }
        }
    }
    out
}
