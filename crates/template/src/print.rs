//! Prints values as Go does: `%v` and the other verbs of `printf`, numbers, quoted strings.

use std::fmt::Write as _;

use crate::limits::LONGEST_TEXT;
use crate::value::Value;

/// Maximum nesting depth of printed maps and lists, because a template can make a map contain
/// itself.
pub(crate) const MAX_NESTING: usize = 256;

/// `%v`.
pub(crate) fn show(value: &Value) -> String {
    let mut text = String::new();
    append(&mut text, value, MAX_NESTING);
    text
}

fn append(text: &mut String, value: &Value, depth: usize) {
    if depth == 0 || text.len() > LONGEST_TEXT {
        text.push_str("...");
        return;
    }
    match value {
        Value::Nil => text.push_str("<nil>"),
        Value::Bool(bool) => text.push_str(if *bool { "true" } else { "false" }),
        Value::Int(int) => {
            let _ = write!(text, "{int}");
        }
        Value::Float(value) => text.push_str(&float(*value)),
        Value::Text(value) => text.push_str(value),
        Value::Bytes(bytes) => {
            let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
            let _ = write!(text, "[{}]", numbers.join(" "));
        }
        Value::List(list) => {
            text.push('[');
            for (index, item) in list.items().iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                append(text, item, depth - 1);
            }
            text.push(']');
        }
        Value::Map(map) => {
            text.push_str("map[");
            for (index, (key, item)) in map.members().iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                text.push_str(key);
                text.push(':');
                append(text, item, depth - 1);
            }
            text.push(']');
        }
        Value::Object(object) => text.push_str(&object.show()),
    }
}

/// sprig's `strval`: the string that its text functions use for a value.
pub(crate) fn to_text(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => show(other),
    }
}

/// Formats a float as `%v`: the shortest digits, with an exponent below 1e-4 and from 1e6.
pub(crate) fn float(value: f64) -> String {
    if !value.is_finite() {
        return not_finite(value);
    }
    let (negative, digits, point) = decimal(value);
    if value != 0.0 && !(-4..6).contains(&(point - 1)) {
        scientific(negative, &digits, point - 1)
    } else {
        positional(negative, &digits, point)
    }
}

/// Formats a float as Go's JSON encoder does.
pub(crate) fn json_float(value: f64) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let (negative, digits, point) = decimal(value);
    if value.abs() < 1e-6 || value.abs() >= 1e21 {
        // A small negative exponent has one digit.
        scientific(negative, &digits, point - 1).replace("e-0", "e-")
    } else {
        positional(negative, &digits, point)
    }
}

fn not_finite(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN",
        value if value > 0.0 => "+Inf",
        _ => "-Inf",
    }
    .to_owned()
}

/// Returns the sign, the shortest digits and the position of the decimal point among them.
fn decimal(value: f64) -> (bool, String, i32) {
    let written = format!("{:e}", value.abs());
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or(0);
    (value.is_sign_negative(), digits, exponent + 1)
}

fn positional(negative: bool, digits: &str, point: i32) -> String {
    let sign = if negative { "-" } else { "" };
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    if point <= 0 {
        format!("{sign}0.{}{digits}", zeros(-point))
    } else if point >= count {
        format!("{sign}{digits}{}", zeros(point - count))
    } else {
        let (whole, rest) = digits.split_at(usize::try_from(point).unwrap_or(0));
        format!("{sign}{whole}.{rest}")
    }
}

fn scientific(negative: bool, digits: &str, exponent: i32) -> String {
    let sign = if negative { "-" } else { "" };
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    let mark = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{first}{point}{rest}e{mark}{:02}", exponent.abs())
}
