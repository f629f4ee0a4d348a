//! Prints values as Go does: `%v`, numbers, quoted strings, and `printf` with its verbs, flags, width and
//! precision, and what Go prints when they do not match the argument.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use crate::dialect::LONGEST_TEXT;
use crate::value::Value;

/// Maximum nesting depth of printed maps and lists, because a template can make a map contain
/// itself.
pub(crate) const MAX_NESTING: usize = 256;

/// `%v`.
pub(crate) fn show(value: &Value) -> String {
    let mut text = String::new();
    append(&mut text, value, MAX_NESTING, LONGEST_TEXT);
    text
}

/// `%v`, cut for a message.
pub(crate) fn brief(value: &Value) -> String {
    match value {
        Value::Text(text) => cut(text).to_owned(),
        other => {
            let mut text = String::new();
            append(&mut text, other, MAX_NESTING, LONGEST_CUT);
            cut(&text).to_owned()
        }
    }
}

/// Maximum length of a text within a message, in bytes.
const LONGEST_CUT: usize = 200;

/// Returns the beginning of a text, for a message.
pub(crate) fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_CUT)).unwrap_or(text)
}

/// Appends until the text is longer than `most`.
fn append(text: &mut String, value: &Value, depth: usize, most: usize) {
    if depth == 0 || text.len() > most {
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
            text.push('[');
            for (index, byte) in bytes.iter().enumerate() {
                let space = if index > 0 { " " } else { "" };
                let _ = write!(text, "{space}{byte}");
            }
            text.push(']');
        }
        Value::List(list) => {
            text.push('[');
            for (index, item) in list.items().iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                append(text, item, depth - 1, most);
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
                append(text, item, depth - 1, most);
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
pub fn float(value: f64) -> String {
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

/// The format that is left, and the argument that the next verb takes.
struct Reader<'a> {
    characters: Peekable<Chars<'a>>,
    arguments: &'a [Value],
    next: usize,
    /// Whether an argument was chosen by number.
    reordered: bool,
}

impl<'a> Reader<'a> {
    fn argument(&mut self) -> Option<&'a Value> {
        let value = self.arguments.get(self.next)?;
        self.next += 1;
        Some(value)
    }

    /// Reads `[N]`, which chooses the next argument. Returns false if there is no such argument.
    fn index(&mut self) -> bool {
        if self.characters.next_if_eq(&'[').is_none() {
            return true;
        }
        self.reordered = true;
        let inside: String = self.characters.by_ref().take_while(|c| *c != ']').collect();
        let number = inside.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let number = number.filter(|number| *number < self.arguments.len());
        self.next = number.unwrap_or(self.next);
        number.is_some()
    }

    /// Reads a width or precision: digits, or `*` for the next argument, which may be negative.
    /// `Err`: that argument is not a number.
    fn number(&mut self) -> Result<Option<i64>, ()> {
        if self.characters.next_if_eq(&'*').is_some() {
            return match self.argument() {
                Some(Value::Int(int)) => Ok(Some(*int)),
                _ => Err(()),
            };
        }
        let mut number = None;
        while let Some(digit) = self.characters.next_if(char::is_ascii_digit) {
            let digit = i64::from(digit.to_digit(10).unwrap_or(0));
            number = Some(number.unwrap_or(0_i64).saturating_mul(10).saturating_add(digit));
        }
        Ok(number)
    }
}

/// Returns the largest width or precision that a format may have.
pub(crate) fn widest(format: &str) -> usize {
    if format.contains('*') {
        return MAX_WIDTH;
    }
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(MAX_WIDTH).min(MAX_WIDTH)).max().unwrap_or(0)
}

fn width(number: i64) -> usize {
    usize::try_from(number.unsigned_abs()).unwrap_or(MAX_WIDTH).min(MAX_WIDTH)
}

/// `fmt.Sprintf`.
pub(crate) fn sprintf(format: &str, arguments: &[Value]) -> String {
    let mut out = String::new();
    let characters = format.chars().peekable();
    let mut reader = Reader { characters, arguments, next: 0, reordered: false };
    while let Some(c) = reader.characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = Verb::default();
        while let Some(flag) = reader.characters.next_if(|c| "-+0# ".contains(*c)) {
            match flag {
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                '0' => verb.zero = true,
                '#' => verb.sharp = true,
                _ => verb.space = true,
            }
        }
        let mut is_there = reader.index();
        match reader.number() {
            Ok(number) => {
                verb.minus |= number.is_some_and(i64::is_negative);
                verb.width = number.map(width);
            }
            Err(()) => out.push_str("%!(BADWIDTH)"),
        }
        if reader.characters.next_if_eq(&'.').is_some() {
            is_there &= reader.index();
            match reader.number() {
                Ok(number) if !number.is_some_and(i64::is_negative) => {
                    verb.precision = Some(width(number.unwrap_or(0)));
                }
                _ => out.push_str("%!(BADPREC)"),
            }
        }
        is_there &= reader.index();
        match reader.characters.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(letter) if !is_there => out.push_str(&format!("%!{letter}(BADINDEX)")),
            Some(letter) => match reader.argument() {
                None => out.push_str(&format!("%!{letter}(MISSING)")),
                Some(value) => out.push_str(&one(&verb, letter, value, MAX_NESTING)),
            },
        }
    }
    let extra = arguments.get(reader.next..).unwrap_or_default();
    if !extra.is_empty() && !reader.reordered {
        let shown: Vec<String> =
            extra.iter().map(|value| format!("{}={}", value.type_name(), show(value))).collect();
        out.push_str(&format!("%!(EXTRA {})", shown.join(", ")));
    }
    out
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
        ('s', Value::Text(text)) => pad(verb, precise(verb, text)),
        ('s', Value::Bytes(bytes)) => pad(verb, precise(verb, &String::from_utf8_lossy(bytes))),
        ('s', Value::Object(object)) => pad(verb, precise(verb, &object.show())),
        ('q', Value::Text(text))
            if verb.sharp && !text.contains(|c: char| c == '`' || c.is_control()) =>
        {
            pad(verb, format!("`{}`", precise(verb, text)))
        }
        ('q', Value::Text(text)) => pad(verb, quoted(&precise(verb, text))),
        ('q', Value::Object(object)) => pad(verb, quoted(&object.show())),
        ('x', Value::Text(text)) => pad(verb, hex(verb, text.as_bytes())),
        ('X', Value::Text(text)) => pad(verb, hex(verb, text.as_bytes()).to_uppercase()),
        ('x', Value::Bytes(bytes)) => pad(verb, hex(verb, bytes)),
        ('t', Value::Bool(bool)) => pad(verb, bool.to_string()),
        ('d' | 'b' | 'o' | 'O' | 'x' | 'X' | 'c' | 'U' | 'q', Value::Int(int)) => {
            number(verb, integer(letter, verb, *int))
        }
        ('G', Value::Float(_)) => number(verb, float_of('g', verb, value).to_uppercase()),
        ('e' | 'E' | 'f' | 'F' | 'g', Value::Float(_)) => {
            number(verb, float_of(letter, verb, value))
        }
        (_, Value::Nil) => format!("%!{letter}(<nil>)"),
        _ => format!("%!{letter}({}={})", value.type_name(), show(value)),
    }
}

fn precise(verb: &Verb, text: &str) -> String {
    match verb.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_owned(),
    }
}

fn hex(verb: &Verb, bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().saturating_mul(3));
    for (index, byte) in bytes.iter().enumerate() {
        let space = if verb.space && index > 0 { " " } else { "" };
        let _ = write!(out, "{space}{byte:02x}");
    }
    out
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
pub(crate) fn quoted(text: &str) -> String {
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
pub(crate) fn sprint(arguments: &[Value]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are what Go's `fmt` printed for the same calls.
    #[test]
    fn verbs_print_as_in_go() {
        let (int, text) = (Value::Int, |text: &str| Value::text(text));
        let (list, float) = (Value::list([int(1), text("a")]), Value::Float(1_500_000.0));
        for (format, arguments, expected) in [
            (
                "%5d|%-5d|%05d|%+d",
                vec![int(42), int(42), int(42), int(42)],
                "   42|42   |00042|+42",
            ),
            (
                "%x|%X|%o|%b|%c|%U|%q",
                [255, 255, 8, 5, 65, 65, 65].map(int).to_vec(),
                "ff|FF|10|101|A|U+0041|'A'",
            ),
            ("%#x|%#o|% d", [255, 8, 5].map(int).to_vec(), "0xff|010| 5"),
            (
                "%.2s|%5s|%#q|% x|%T",
                ["abc", "a", "a", "ab", "a"].map(text).to_vec(),
                "ab|    a|`a`|61 62|string",
            ),
            (
                "%v|%f|%.1e|%G",
                vec![float.clone(), float.clone(), float.clone(), Value::Float(1e-5)],
                "1.5e+06|1500000.000000|1.5e+06|1E-05",
            ),
            (
                "%v|%d|%T",
                vec![list.clone(), list.clone(), list],
                "[1 a]|[1 %!d(string=a)]|[]interface {}",
            ),
            ("%[2]s %[1]s", ["a", "b"].map(text).to_vec(), "b a"),
            ("%[1]d %[1]x %d", [5, 6].map(int).to_vec(), "5 5 6"),
            ("%[3]d", vec![int(5)], "%!d(BADINDEX)"),
            (
                "%*d|%-*d|%.*f",
                vec![int(5), int(42), int(5), int(42), int(2), Value::Float(3.25)],
                "   42|42   |3.25",
            ),
            ("%d %s", vec![int(5)], "5 %!s(MISSING)"),
            ("%d", [5, 6].map(int).to_vec(), "5%!(EXTRA int=6)"),
            ("%!|%%|%", vec![], "%!!(MISSING)|%|%!(NOVERB)"),
            ("%s %d", vec![Value::Nil, text("x")], "%!s(<nil>) %!d(string=x)"),
        ] {
            assert_eq!(sprintf(format, &arguments), expected, "{format}");
        }
    }
}
