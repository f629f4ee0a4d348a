//! Determines the type that YAML 1.1 assigns to a plain scalar, which decides whether a string must
//! be quoted.

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
        || matches!(text, "~" | "<<" | ".nan" | ".NaN" | ".NAN")
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
