//! `printf`: Go's verbs, flags, width and precision, and what Go prints when they do not match the
//! argument.

use super::print::{MAX_NESTING, float, show};
use super::value::Value;

/// Maximum field width. Go has no limit; this one bounds memory use.
const MAX_WIDTH: usize = 10_000;

#[derive(Default)]
struct Verb {
    minus: bool,
    plus: bool,
    zero: bool,
    sharp: bool,
    space: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// `fmt.Sprintf`.
pub(super) fn sprintf(format: &str, arguments: &[Value]) -> String {
    let mut out = String::new();
    let mut next = arguments.iter();
    let mut characters = format.chars().peekable();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = Verb::default();
        while let Some(flag) = characters.next_if(|c| "-+0# ".contains(*c)) {
            match flag {
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                '0' => verb.zero = true,
                '#' => verb.sharp = true,
                _ => verb.space = true,
            }
        }
        let mut number = |next: &mut std::slice::Iter<'_, Value>| {
            if characters.next_if_eq(&'*').is_some() {
                return match next.next() {
                    Some(Value::Int(int)) => usize::try_from(*int).ok(),
                    _ => None,
                };
            }
            let mut digits = None;
            while let Some(digit) = characters.next_if(char::is_ascii_digit) {
                let value = usize::try_from(digit.to_digit(10).unwrap_or(0)).unwrap_or(0);
                digits = Some((digits.unwrap_or(0) * 10 + value).min(MAX_WIDTH));
            }
            digits
        };
        verb.width = number(&mut next).map(|width| width.min(MAX_WIDTH));
        if format_point(&mut characters) {
            let mut digits = 0;
            while let Some(digit) = characters.next_if(char::is_ascii_digit) {
                let value = usize::try_from(digit.to_digit(10).unwrap_or(0)).unwrap_or(0);
                digits = (digits * 10 + value).min(MAX_WIDTH);
            }
            verb.precision = Some(digits);
        }
        match characters.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(letter) => match next.next() {
                None => out.push_str(&format!("%!{letter}(MISSING)")),
                Some(value) => {
                    let text = one(&verb, letter, value, MAX_NESTING);
                    out.push_str(&text);
                }
            },
        }
        if out.len() > super::LONGEST_TEXT {
            return out;
        }
    }
    let extra: Vec<String> =
        next.map(|value| format!("{}={}", value.type_name(), show(value))).collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

fn format_point(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    characters.next_if_eq(&'.').is_some()
}

fn one(verb: &Verb, letter: char, value: &Value, depth: usize) -> String {
    if depth == 0 {
        return "...".to_owned();
    }
    match (letter, value) {
        ('v', Value::Text(text)) if verb.sharp => pad(verb, quoted(text)),
        ('v', Value::Float(_)) => number(verb, float_of('g', verb, value)),
        ('v', Value::Int(int)) => number(verb, int.to_string()),
        ('v', _) => pad(verb, show(value)),
        ('T', _) => pad(verb, value.type_name().to_owned()),
        // Go applies the verb to each item of a list or map.
        (_, Value::List(list)) => {
            let items = list.items().iter();
            let shown: Vec<String> = items.map(|v| one(verb, letter, v, depth - 1)).collect();
            format!("[{}]", shown.join(" "))
        }
        (_, Value::Map(map)) => {
            let key = |key: &str| match letter {
                'q' => quoted(key),
                's' => key.to_owned(),
                _ => format!("%!{letter}(string={key})"),
            };
            let members = map.members();
            let shown: Vec<String> = members
                .iter()
                .map(|(k, v)| format!("{}:{}", key(k), one(verb, letter, v, depth - 1)))
                .collect();
            format!("map[{}]", shown.join(" "))
        }
        ('s', Value::Text(text)) => pad(verb, cut(verb, text)),
        ('s', Value::Bytes(bytes)) => pad(verb, cut(verb, &String::from_utf8_lossy(bytes))),
        ('s', Value::Object(object)) => pad(verb, cut(verb, &object.show())),
        ('q', Value::Text(text)) => pad(verb, quoted(&cut(verb, text))),
        ('q', Value::Object(object)) => pad(verb, quoted(&object.show())),
        ('x', Value::Text(text)) => pad(verb, hex(text.as_bytes())),
        ('X', Value::Text(text)) => pad(verb, hex(text.as_bytes()).to_uppercase()),
        ('x', Value::Bytes(bytes)) => pad(verb, hex(bytes)),
        ('t', Value::Bool(bool)) => pad(verb, bool.to_string()),
        ('d' | 'b' | 'o' | 'O' | 'x' | 'X' | 'c' | 'U' | 'q', Value::Int(int)) => {
            number(verb, integer(letter, verb, *int))
        }
        ('e' | 'E' | 'f' | 'F' | 'g' | 'G', Value::Float(_)) => {
            number(verb, float_of(letter, verb, value))
        }
        (_, Value::Nil) => format!("%!{letter}(<nil>)"),
        _ => format!("%!{letter}({}={})", value.type_name(), show(value)),
    }
}

fn cut(verb: &Verb, text: &str) -> String {
    match verb.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn integer(letter: char, verb: &Verb, int: i64) -> String {
    let magnitude = int.unsigned_abs();
    let sign = if int < 0 { "-" } else { "" };
    let prefix = |prefix: &'static str| if verb.sharp { prefix } else { "" };
    match letter {
        'b' => format!("{sign}{magnitude:b}"),
        'o' => format!("{sign}{}{magnitude:o}", prefix("0")),
        'O' => format!("{sign}0o{magnitude:o}"),
        'x' => format!("{sign}{}{magnitude:x}", prefix("0x")),
        'X' => format!("{sign}{}{magnitude:X}", prefix("0X")),
        'U' => format!("U+{magnitude:04X}"),
        'c' | 'q' => {
            let c = u32::try_from(int).ok().and_then(char::from_u32);
            let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
            if letter == 'q' { format!("'{c}'") } else { c.to_string() }
        }
        _ => int.to_string(),
    }
}

fn float_of(letter: char, verb: &Verb, value: &Value) -> String {
    let Value::Float(value) = value else {
        return String::new();
    };
    match (letter, verb.precision) {
        ('f' | 'F', precision) => format!("{value:.*}", precision.unwrap_or(6)),
        ('e' | 'E', precision) => {
            let written = format!("{value:.*e}", precision.unwrap_or(6));
            let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let mark = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}{}{mark}{:02}", letter, exponent.abs())
        }
        // `%.3g`: rounds to significant digits first, then prints the shortest form.
        (_, Some(precision)) => {
            let rounded = format!("{value:.*e}", precision.max(1) - 1);
            float(rounded.parse().unwrap_or(*value))
        }
        _ => float(*value),
    }
}

/// Formats a number with its sign and, if requested, zero padding.
fn number(verb: &Verb, text: String) -> String {
    let text = match (verb.plus, verb.space, text.starts_with('-')) {
        (true, _, false) => format!("+{text}"),
        (false, true, false) => format!(" {text}"),
        _ => text,
    };
    let width = verb.width.unwrap_or(0);
    if verb.zero && !verb.minus && text.len() < width {
        let signed = text.starts_with(['-', '+', ' ']);
        let (sign, digits) = text.split_at(usize::from(signed));
        return format!("{sign}{}{digits}", "0".repeat(width - text.len()));
    }
    pad(verb, text)
}

fn pad(verb: &Verb, text: String) -> String {
    let missing = verb.width.unwrap_or(0).saturating_sub(text.chars().count());
    match missing {
        0 => text,
        _ if verb.minus => text + &" ".repeat(missing),
        _ => " ".repeat(missing) + &text,
    }
}

/// `%q` of a string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if c.is_control() || c == '\u{feff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `fmt.Sprint`: adds a space between two arguments if neither is a string.
pub(super) fn sprint(arguments: &[Value]) -> String {
    let mut out = String::new();
    let mut before_is_text = true;
    for value in arguments {
        let is_text = matches!(value, Value::Text(_));
        if !before_is_text && !is_text {
            out.push(' ');
        }
        out.push_str(&show(value));
        before_is_text = is_text;
    }
    out
}
