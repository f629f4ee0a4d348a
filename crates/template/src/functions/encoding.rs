//! YAML, JSON, TOML, base64 and digests.
//!
//! `fromYaml` and `fromJson` report an error in the member `Error`, as in Helm.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest as _;

use super::call::{Answer, Call, Group, text};
use super::growth::Growth::{Flat, Fresh};
use super::growth::{document, full, indented};
use crate::encode::Layout;
use crate::print::MAX_NESTING;
use crate::value::Value;
use crate::{encode, toml, yaml};
use imgctl_base::text::hex;

pub(super) const GROUP: Group = &[
    // Helm ignores values that cannot be encoded.
    ("toYaml", "*", Fresh(indented::<96, 16>), |a| {
        Ok(Value::text(encode::yaml(&a[0], Layout::Kubernetes).unwrap_or_default()))
    }),
    ("toYamlPretty", "*", Fresh(indented::<96, 16>), |a| {
        Ok(Value::text(encode::yaml(&a[0], Layout::Pretty).unwrap_or_default()))
    }),
    ("toJson", "*", Fresh(full::<256, 20>), |a| {
        encode::to_json(&a[0], true, false).map(Value::text)
    }),
    ("toRawJson", "*", Fresh(full::<256, 20>), |a| {
        encode::to_json(&a[0], false, false).map(Value::text)
    }),
    ("toPrettyJson", "*", Fresh(indented::<256, 20>), |a| {
        encode::to_json(&a[0], true, true).map(Value::text)
    }),
    ("toToml", "*", Fresh(full::<256, 20>), |a| {
        let json = encode::json_of(&a[0], MAX_NESTING)?;
        // In Helm, an error message becomes the result.
        or_message(a, toml::write(&json))
    }),
    ("fromYaml", "s", Fresh(document), |a| Ok(mapping(a, from_yaml(a)))),
    ("fromYamlArray", "s", Fresh(document), |a| Ok(sequence(from_yaml(a)))),
    ("fromJson", "s", Fresh(document), |a| Ok(mapping(a, from_json(a)))),
    ("fromJsonArray", "s", Fresh(document), |a| Ok(sequence(from_json(a)))),
    ("mustFromJson", "s", Fresh(document), from_json),
    ("fromToml", "s", Fresh(document), |a| {
        Ok(mapping(a, decoded(a, ::toml::from_str(&text(a, 0)))))
    }),
    ("b64enc", "s", Fresh(full::<48, 3>), |a| {
        Ok(Value::text(STANDARD.encode(text(a, 0).as_bytes())))
    }),
    ("b64dec", "s", Fresh(full::<48, 8>), decode_base64),
    ("b32enc", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(base32(text(a, 0).as_bytes())))),
    ("b32dec", "s", Fresh(full::<48, 8>), |a| or_message(a, from_base32(&text(a, 0)))),
    ("sha1sum", "s", Flat, |a| Ok(Value::text(hex(&sha1::Sha1::digest(text(a, 0).as_bytes()))))),
    ("sha256sum", "s", Flat, |a| Ok(Value::text(sha256(&text(a, 0))))),
    ("sha512sum", "s", Flat, |a| {
        Ok(Value::text(hex(&sha2::Sha512::digest(text(a, 0).as_bytes()))))
    }),
    ("adler32sum", "s", Flat, |a| {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in text(a, 0).bytes() {
            low = (low + u32::from(byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        Ok(Value::text(((high << 16) | low).to_string()))
    }),
];

/// `b64dec`.
pub(super) fn decode_base64(a: &Call<'_>) -> Answer {
    let bytes = STANDARD.decode(text(a, 0).as_bytes()).map_err(|error| error.to_string());
    or_message(a, bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// In Helm, the message of an error becomes the result.
fn or_message(a: &Call<'_>, outcome: Result<String, String>) -> Answer {
    match outcome {
        Err(message) if a.dialect.is_typed() => Ok(Value::text(message)),
        outcome => outcome.map(Value::text),
    }
}

fn from_yaml(a: &Call<'_>) -> Answer {
    decoded(a, yaml::parse_first(&text(a, 0)))
}

fn from_json(a: &Call<'_>) -> Answer {
    decoded(a, serde_json::from_str(&text(a, 0)))
}

fn decoded<E: ToString>(a: &Call<'_>, parsed: Result<serde_json::Value, E>) -> Answer {
    let value = parsed.map(|json| Value::from_json(&json, a.dialect.numbers()));
    value.map_err(|error| error.to_string())
}

/// Go decodes into a map; where values are converted anyway, other data is taken as it is.
fn mapping(a: &Call<'_>, parsed: Answer) -> Value {
    match parsed {
        Ok(value) if !a.dialect.is_typed() => value,
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

/// Returns the digest of a string in hexadecimal.
pub(super) fn sha256(text: &str) -> String {
    hex(&sha2::Sha256::digest(text.as_bytes()))
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

/// Decodes base 32 with padding.
fn from_base32(text: &str) -> Result<String, String> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for (at, letter) in text.trim_end_matches('=').bytes().enumerate() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'2'..=b'7' => letter - b'2' + 26,
            _ => return Err(format!("illegal base32 data at input byte {at}")),
        };
        bits = (bits << 5) | u32::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.extend(u8::try_from(bits >> count));
            bits &= (1 << count) - 1;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
