//! Writes YAML and JSON as Helm's `toYaml` and `toJson` do: sorted keys, lists not indented below
//! their key, and strings quoted only where YAML 1.1 would read another type.

use std::cmp::Ordering;
use std::rc::Rc;

use base64::Engine as _;

use crate::budget::Size;
use crate::dialect::{CHART, LONGEST_TEXT};
use crate::print::{MAX_NESTING, float, json_float};
use crate::value::Value;

/// Writes a value as YAML, without the final newline. The error is a message.
pub fn to_yaml(value: &Value) -> Result<String, String> {
    let size = Size::of(std::slice::from_ref(value));
    if size.times(96, 16).saturating_add(size.indent.saturating_mul(4)) > CHART.once {
        return Err("the value is too large".to_owned());
    }
    yaml(value, Layout::Kubernetes)
}

/// How lists and long texts are laid out.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layout {
    /// A list has the indentation of its key, and lines are folded (`toYaml`).
    Kubernetes,
    /// A list is indented below its key, and lines have any length (`toYamlPretty`).
    Pretty,
}

/// Like [`to_yaml`]; the caller knows that the value is not too large.
pub(crate) fn yaml(value: &Value, layout: Layout) -> Result<String, String> {
    let mut text = String::new();
    node(&mut text, value, 0, Place::Top, layout, MAX_NESTING)?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// A longer key stands behind a `?` (libyaml), in bytes.
const LONGEST_KEY: usize = 128;

/// A member of a map.
type Member = (Rc<str>, Value);

/// Position of a node.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Top,
    /// After `key:`.
    Member,
    /// After `-`.
    Item,
}

fn node(
    out: &mut String,
    value: &Value,
    indent: usize,
    place: Place,
    layout: Layout,
    depth: usize,
) -> Result<(), String> {
    if depth == 0 || out.len() > LONGEST_TEXT {
        return Err("the value is too large or nested too deeply".to_owned());
    }
    match value {
        Value::Map(map) if map.len() > 0 => {
            let members = sorted(map.members());
            for (index, (key, item)) in members.iter().enumerate() {
                begin(out, indent, place, index);
                if key.contains('\n') || key.len() > LONGEST_KEY {
                    out.push_str("? ");
                    let column = column(out);
                    out.push_str(&scalar(key, Some(column), indent + 2, layout));
                    out.push_str(&format!("\n{}:", " ".repeat(indent)));
                    node(out, item, indent + 2, Place::Item, layout, depth - 1)?;
                    continue;
                }
                out.push_str(&scalar(key, None, indent, layout));
                out.push(':');
                node(out, item, indent + 2, Place::Member, layout, depth - 1)?;
            }
        }
        Value::List(list) if !list.items().is_empty() => {
            let is_flat = place == Place::Member && layout == Layout::Kubernetes;
            let indent = if is_flat { indent - 2 } else { indent };
            for (index, item) in list.items().iter().enumerate() {
                begin(out, indent, place, index);
                out.push('-');
                node(out, item, indent + 2, Place::Item, layout, depth - 1)?;
            }
        }
        Value::Object(object) => node(out, &object.data(), indent, place, layout, depth - 1)?,
        other => {
            if place != Place::Top {
                out.push(' ');
            }
            // The lines of a block scalar are indented one level below the enclosing collection.
            let column = column(out);
            let indent = if place == Place::Top { 2 } else { indent };
            out.push_str(&leaf(other, indent, column, layout));
            out.push('\n');
        }
    }
    Ok(())
}

/// Sorts members as go-yaml does. Its comparison is not transitive for some keys (`a9`, `a12`, `a1b`), and the
/// standard library's sort may panic on such an order.
fn sorted(members: Vec<Member>) -> Vec<Member> {
    if members.is_sorted_by(|(a, _), (b, _)| in_order(a, b).is_le()) {
        return members;
    }
    let mut left = members;
    let right = left.split_off(left.len() / 2);
    let (left, right) = (sorted(left), sorted(right));
    let mut all = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some((a, _)), Some((b, _))) = (left.peek(), right.peek()) {
        let is_after = in_order(a, b).is_gt();
        all.extend(if is_after { right.next() } else { left.next() });
    }
    all.extend(left);
    all.extend(right);
    all
}

/// Compares keys as go-yaml does: numbers within keys by their value, letters after other characters.
fn in_order(a: &str, b: &str) -> Ordering {
    let is_digit = |c: &&char| c.is_ascii_digit();
    let (left, right): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = left.iter().zip(&right).position(|(a, b)| a != b) else {
        return left.len().cmp(&right.len());
    };
    let (a, b) = (left[at], right[at]);
    match (a.is_alphabetic(), b.is_alphabetic()) {
        (true, true) => return a.cmp(&b),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero counts, if it continues a number.
    let mut before = left[..at].iter().rev().take_while(is_digit);
    let continues = (a == '0' || b == '0') && before.any(|digit| *digit != '0');
    let number = |text: &[char]| {
        let digits: String = text[at..].iter().take_while(is_digit).collect();
        let value = if continues { format!("1{digits}") } else { digits.clone() };
        let value = value.trim_start_matches('0').to_owned();
        (value.len(), value, digits.len())
    };
    number(&left).cmp(&number(&right)).then(a.cmp(&b))
}

/// Writes what precedes entry `index` of a collection.
fn begin(out: &mut String, indent: usize, place: Place, index: usize) {
    match (place, index) {
        (Place::Item, 0) => out.push(' '),
        (Place::Member, 0) => {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
        }
        _ => out.push_str(&" ".repeat(indent)),
    }
}

fn leaf(value: &Value, indent: usize, column: usize, layout: Layout) -> String {
    match value {
        Value::Bool(bool) => bool.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Float(number) => number_text(*number),
        Value::Text(text) => scalar(text, Some(column), indent, layout),
        Value::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes),
        Value::List(_) => "[]".to_owned(),
        Value::Map(_) => "{}".to_owned(),
        // An object is written as its data.
        Value::Nil | Value::Object(_) => "null".to_owned(),
    }
}

/// A number passes through JSON, so a whole float that fits in 64 bits loses its exponent.
fn number_text(number: f64) -> String {
    let json = json_float(number);
    let whole = json.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if whole && (json.parse::<i64>().is_ok() || json.parse::<u64>().is_ok()) {
        json
    } else {
        float(number)
    }
}

/// Returns the column, in characters, at which the next character is written.
fn column(out: &str) -> usize {
    let line = out.rsplit('\n').next().unwrap_or(out);
    line.chars().count()
}

/// Writes a string as a plain, quoted or block scalar. `column` is where it begins, or `None` for a
/// key, which is never folded; continuation lines are indented by `indent`.
fn scalar(text: &str, column: Option<usize>, indent: usize, layout: Layout) -> String {
    let analysis = Analysis::of(text);
    if text.contains('\n') && column.is_some() && analysis.block {
        return literal(text, indent.max(2));
    }
    let folded = |inner: String, style| match column {
        Some(column) if layout == Layout::Kubernetes => fold(&inner, style, column, indent),
        _ => inner,
    };
    if is_text(text) && !text.contains('\n') {
        if analysis.plain {
            return folded(text.to_owned(), Style::Plain);
        }
        if analysis.single {
            let inner = folded(text.replace('\'', "''"), Style::Single);
            return format!("'{inner}'");
        }
    }
    format!("\"{}\"", folded(escaped(text), Style::Double))
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    Single,
    Double,
}

/// Breaks a scalar at the first space beyond column 80 of each line (libyaml's `best_width`).
fn fold(inner: &str, style: Style, column: usize, indent: usize) -> String {
    const WIDTH: usize = 80;
    let mut column = column + usize::from(style != Style::Plain);
    if column + inner.len() <= WIDTH {
        return inner.to_owned();
    }
    let mut out = String::with_capacity(inner.len() + inner.len() / 40);
    let mut after_space = false;
    let mut characters = inner.chars().peekable();
    let mut first = true;
    while let Some(c) = characters.next() {
        let next = characters.peek().copied();
        let within = style == Style::Plain || (!first && next.is_some());
        first = false;
        let next_is_space = next == Some(' ');
        let breaks = c == ' '
            && !after_space
            && column > WIDTH
            && within
            && (style == Style::Double || !next_is_space);
        after_space = c == ' ';
        if breaks {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
            if style == Style::Double && next_is_space {
                out.push('\\');
                column += 1;
            }
        } else {
            out.push(c);
            column += 1;
        }
    }
    out
}

/// The styles that a string allows (libyaml's analysis of a scalar).
struct Analysis {
    plain: bool,
    single: bool,
    block: bool,
}

impl Analysis {
    fn of(text: &str) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let (mut indicator, mut special, mut breaks) = (false, false, false);
        let (mut after_space, mut before_space_at_end) = (true, false);
        for (index, &c) in characters.iter().enumerate() {
            let following = characters.get(index + 1);
            let followed = following.is_none_or(|c| is_blank_or_break(*c));
            if index == 0 {
                indicator |= "#,[]{}&*!|>'\"%@`".contains(c) || ("?:-".contains(c) && followed);
            } else {
                indicator |= (c == ':' && followed) || (c == '#' && after_space);
            }
            let line_break = matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
            special |= !line_break && !is_printable(c);
            breaks |= line_break;
            before_space_at_end = c == ' ' && following.is_none();
            after_space = is_blank_or_break(c);
        }
        indicator |= text.starts_with("---") || text.starts_with("...");
        let edge = text.starts_with([' ', '\n']) || text.ends_with([' ', '\n']);
        let broken_space = text.contains(" \n");
        Self {
            plain: !indicator && !special && !breaks && !edge && !text.contains('\t'),
            single: !special && !breaks,
            // A block scalar must not end in a space, contain a space before a line break, or
            // contain a carriage return.
            block: !special && !before_space_at_end && !broken_space && !text.contains('\r'),
        }
    }
}

fn is_blank_or_break(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

fn literal(text: &str, indent: usize) -> String {
    let mut out = String::from("|");
    if text.starts_with([' ', '\n']) {
        out.push('2');
    }
    if !text.ends_with('\n') {
        out.push('-');
    } else if text.ends_with("\n\n") || text == "\n" {
        out.push('+');
    }
    let pad = " ".repeat(indent);
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.push_str(&pad);
            out.push_str(line);
        }
    }
    out
}

/// Returns the content of a double-quoted scalar, escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            '\u{85}' => out.push_str("\\N"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out
}

/// Writes a value as JSON. With `html`, escapes characters that are special in HTML, as Go does.
/// The error is a message.
pub(crate) fn to_json(value: &Value, html: bool, pretty: bool) -> Result<String, String> {
    let json = json_of(value, MAX_NESTING)?;
    let mut text = if pretty {
        serde_json::to_string_pretty(&json).map_err(|error| error.to_string())?
    } else {
        json.to_string()
    };
    if html {
        for (character, escape) in [
            ('&', "\\u0026"),
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('\u{2028}', "\\u2028"),
            ('\u{2029}', "\\u2029"),
        ] {
            if text.contains(character) {
                text = text.replace(character, escape);
            }
        }
    }
    Ok(text)
}

/// Converts a value to JSON data.
pub(crate) fn json_of(value: &Value, depth: usize) -> Result<serde_json::Value, String> {
    if depth == 0 {
        return Err("the value is nested too deeply".to_owned());
    }
    Ok(match value {
        Value::Nil => serde_json::Value::Null,
        Value::Bool(bool) => (*bool).into(),
        Value::Int(int) => (*int).into(),
        // A whole float is written without a fraction.
        #[allow(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
        Value::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => (*float as i64).into(),
        Value::Float(float) => {
            json_float(*float).parse().map_or(serde_json::Value::Null, serde_json::Value::Number)
        }
        Value::Text(text) => text.as_ref().into(),
        Value::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes).into(),
        Value::List(list) => {
            let items: Result<Vec<_>, String> =
                list.items().iter().map(|item| json_of(item, depth - 1)).collect();
            items?.into()
        }
        Value::Map(map) => {
            let mut members = serde_json::Map::new();
            for (key, item) in map.members() {
                members.insert(key.as_ref().to_owned(), json_of(&item, depth - 1)?);
            }
            members.into()
        }
        Value::Object(object) => json_of(&object.data(), depth - 1)?,
    })
}

/// Returns whether a YAML reader resolves `text`, written as a plain scalar, to a string.
pub(crate) fn is_text(text: &str) -> bool {
    let Some(first) = text.chars().next() else {
        // The empty string would be a null.
        return false;
    };
    if is_word(text) || is_sexagesimal(text) {
        return false;
    }
    match first {
        '0'..='9' | '+' | '-' | '.' => !is_number(text) && !is_timestamp(text),
        _ => true,
    }
}

fn is_word(text: &str) -> bool {
    let cased = |word: &str| {
        let mut capital = word.to_owned();
        if let Some(first) = capital.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        text == word || text == capital || text == word.to_ascii_uppercase()
    };
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null"].iter().any(|word| cased(word))
        || matches!(text, "~" | ".nan" | ".NaN" | ".NAN")
        || [".inf", ".Inf", ".INF"].contains(&text.trim_start_matches(['+', '-']))
}

fn is_number(text: &str) -> bool {
    let plain = text.replace('_', "");
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    for (prefix, radix) in [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)] {
        if let Some(digits) = unsigned.strip_prefix(prefix) {
            return u64::from_str_radix(digits, radix).is_ok();
        }
    }
    is_float(&plain)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let exponent_fits = exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)));
    let mantissa_fits = match mantissa.split_once('.') {
        None => digits(mantissa),
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
    };
    exponent_fits && mantissa_fits
}

/// `1:30`, which YAML 1.1 readers resolve to a base-60 number.
fn is_sexagesimal(text: &str) -> bool {
    let plain = text.strip_prefix(['+', '-']).unwrap_or(text);
    let whole = plain.split_once('.').map_or(plain, |(whole, rest)| {
        if rest.bytes().all(|b| b.is_ascii_digit() || b == b'_') { whole } else { "" }
    });
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or("");
    let starts = first.bytes().next().is_some_and(|b| b.is_ascii_digit())
        && first.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let rest: Vec<&str> = parts.collect();
    let minute = |part: &&str| match part.as_bytes() {
        [b] => b.is_ascii_digit(),
        [a, b] => (b'0'..=b'5').contains(a) && b.is_ascii_digit(),
        _ => false,
    };
    starts && !rest.is_empty() && rest.iter().all(minute)
}

/// A date, or a date with a time.
fn is_timestamp(text: &str) -> bool {
    let date = text.get(..10).unwrap_or(text);
    let parts: Vec<&str> = date.split('-').collect();
    let number = |part: &str, most: u32| {
        part.len() <= 2 && part.parse::<u32>().is_ok_and(|n| (1..=most).contains(&n))
    };
    let [year, month, day] = parts.as_slice() else {
        return false;
    };
    let dated = year.len() == 4
        && year.bytes().all(|b| b.is_ascii_digit())
        && number(month, 12)
        && number(day, 31);
    dated
        && match text.get(10..).unwrap_or("").chars().next() {
            None => true,
            Some('T' | 't') => text.get(11..).is_some_and(is_time),
            Some(' ') => text.get(11..).is_some_and(is_time),
            _ => false,
        }
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() >= 7
        && bytes.first().is_some_and(u8::is_ascii_digit)
        && bytes.iter().filter(|b| **b == b':').count() >= 2
        && bytes.iter().all(|b| b.is_ascii_digit() || b":.+-Zz ".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_go_yaml() {
        let keys = [
            "",
            "_",
            "1",
            "1_",
            "01",
            "2",
            "9",
            "10",
            "A",
            "a",
            "a_b",
            "a1",
            "a01",
            "a2",
            "a9",
            "a10",
            "aB",
            "ab",
            "mirror_percent",
            "mirrorPercent",
        ];
        let members = keys.iter().rev().map(|key| (Rc::from(*key), Value::Nil)).collect();
        let sorted: Vec<String> =
            sorted(members).into_iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(sorted, keys);
        assert_eq!(in_order("a12", "a1b"), Ordering::Less);
        assert_eq!(in_order("a105", "a15"), Ordering::Greater);
    }

    #[test]
    fn any_keys_are_sorted() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let letter = |byte: &u8| ['0', '1', '2', 'a', 'b', '_', '.'][usize::from(byte % 7)];
            let keys: Vec<String> =
                bytes.chunks(3).map(|key| key.iter().map(letter).collect()).collect();
            for (a, b) in keys.iter().zip(keys.iter().skip(1)) {
                assert_eq!(in_order(a, b), in_order(b, a).reverse(), "{a} {b}");
            }
            let members: Vec<Member> =
                keys.iter().map(|key| (Rc::from(key.as_str()), Value::Nil)).collect();
            assert_eq!(sorted(members).len(), keys.len());
        });
    }

    #[test]
    fn a_long_text_alone_continues_in_the_third_column() {
        let text = to_yaml(&Value::text("word ".repeat(20).trim())).unwrap();
        assert_eq!(
            text.lines().nth(1).map(|line| line.starts_with("  word")),
            Some(true),
            "{text}"
        );
    }
}
