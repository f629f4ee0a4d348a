//! Functions that in Helm are random, ask a cluster or the network, or depend on the clock. Here
//! they return the same value at every call, and the clock is fixed at 1970, so that a chart always
//! renders to the same text. The keys, certificates and passwords are not real: they only have the
//! form that templates check.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::call::{Answer, Call, Group, int, text, value};
use super::encoding::{decode_base64, sha256};
use super::growth::Growth::{Flat, Fresh};
use super::growth::{fixed, full};
use crate::value::{Object, Value, text_argument};

/// Value of `now`.
const NOW: i64 = 0;

pub(super) const GROUP: Group = &[
    ("now", "", Flat, |_| Ok(time(NOW))),
    ("date", "s*", Fresh(full::<48, 16>), |a| {
        Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))
    }),
    ("dateInZone", "s*s", Fresh(full::<48, 16>), |a| {
        Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))
    }),
    ("date_in_zone", "s*s", Fresh(full::<48, 16>), |a| {
        Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))
    }),
    ("htmlDate", "*", Fresh(full::<48, 16>), |a| {
        Ok(Value::text(format(seconds_of(&a[0]), "2006-01-02")))
    }),
    ("htmlDateInZone", "*s", Fresh(full::<48, 16>), |a| {
        Ok(Value::text(format(seconds_of(&a[0]), "2006-01-02")))
    }),
    ("unixEpoch", "*", Flat, |a| Ok(Value::text(seconds_of(&a[0]).to_string()))),
    ("ago", "*", Flat, |a| Ok(Value::text(show_duration(NOW.saturating_sub(seconds_of(&a[0])))))),
    ("dateModify", "s*", Flat, date_modify),
    ("date_modify", "s*", Flat, date_modify),
    ("toDate", "ss", Flat, |a| Ok(time(parse(&text(a, 1)).unwrap_or(0)))),
    ("duration", "*", Flat, |a| {
        let seconds = match &a[0] {
            Value::Text(text) => text.parse().ok().or_else(|| duration(text)).unwrap_or(0),
            _ => int(a, 0),
        };
        Ok(Value::text(show_duration(seconds)))
    }),
    ("durationRound", "*", Flat, |a| {
        let seconds = match &a[0] {
            Value::Text(text) => duration(text).unwrap_or(0),
            Value::Int(nanoseconds) => nanoseconds / 1_000_000_000,
            other => NOW.saturating_sub(seconds_of(other)),
        };
        let sign = if seconds < 0 { "-" } else { "" };
        let all = seconds.unsigned_abs();
        let units = [(31_536_000, "y"), (2_592_000, "mo"), (86_400, "d"), (3600, "h"), (60, "m")];
        let rounded = units.iter().find(|(size, _)| all >= *size);
        Ok(Value::text(match rounded {
            Some((size, unit)) => format!("{sign}{}{unit}", all / size),
            None => format!("{sign}{all}s"),
        }))
    }),
    ("randAlphaNum", "*", Fresh(fixed::<{ 4 << 20 }>), |a| {
        repeated(a, &format!("{LETTERS}{DIGITS}"))
    }),
    ("randAlpha", "*", Fresh(fixed::<{ 4 << 20 }>), |a| repeated(a, LETTERS)),
    ("randNumeric", "*", Fresh(fixed::<{ 4 << 20 }>), |a| repeated(a, DIGITS)),
    ("randAscii", "*", Fresh(fixed::<{ 4 << 20 }>), |a| repeated(a, &format!("{LETTERS}{DIGITS}"))),
    ("randBytes", "*", Fresh(fixed::<{ 4 << 20 }>), |a| {
        let text = repeated(a, LETTERS)?;
        Ok(Value::text(STANDARD.encode(super::call::text(&[text], 0).as_bytes())))
    }),
    ("randInt", "**", Flat, |a| Ok(Value::Int(int(a, 0)))),
    ("uuidv4", "", Flat, |_| Ok(Value::text("00000000-0000-4000-8000-000000000000"))),
    ("bcrypt", "s", Fresh(full::<48, 3>), |a| Ok(Value::text(hashed(&text(a, 0))))),
    ("htpasswd", "ss+", Fresh(full::<48, 3>), |a| {
        Ok(Value::text(format!("{}:{}", text(a, 0), hashed(&text(a, 1)))))
    }),
    ("derivePassword", "*sss*", Fresh(full::<48, 3>), |a| {
        Ok(Value::text(sha256(&text(a, 2)).chars().take(20).collect::<String>()))
    }),
    ("encryptAES", "ss", Fresh(full::<48, 3>), |a| {
        Ok(Value::text(STANDARD.encode(text(a, 1).as_bytes())))
    }),
    ("decryptAES", "ss", Fresh(full::<48, 8>), |a| decoded(a, 1)),
    ("genPrivateKey", "s", Fresh(fixed::<4096>), |a| {
        let kind = match text(a, 0).as_ref() {
            "rsa" => "RSA PRIVATE KEY",
            "ecdsa" => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        Ok(Value::text(pem(kind, "key")))
    }),
    ("genCA", "s*", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("genCAWithKey", "s*s", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("genSelfSignedCert", "s***", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("genSelfSignedCertWithKey", "s***s", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("genSignedCert", "s****", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("genSignedCertWithKey", "s****s", Fresh(fixed::<4096>), |a| certificate(&text(a, 0))),
    ("buildCustomCert", "ss", Fresh(full::<48, 8>), |a| {
        Ok(Value::object(Pair { certificate: decoded(a, 0)?, key: decoded(a, 1)? }))
    }),
    ("shuffle", "s", Fresh(full::<48, 3>), |a| Ok(value(a, 0))),
    ("lookup", "ssss", Flat, |_| Ok(Value::map::<&str>([]))),
    ("getHostByName", "s", Flat, |_| Ok(Value::text(""))),
];

fn date_modify(a: &Call<'_>) -> Answer {
    let by = duration(&text(a, 0)).unwrap_or(0);
    Ok(time(shift(seconds_of(&a[1]), by)))
}

/// A point in time, in seconds since 1970.
struct Time(i64);

fn time(seconds: i64) -> Value {
    Value::object(Time(seconds))
}

/// Returns the seconds of a time or a number, for sprig's date functions.
fn seconds_of(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => other.as_object().map_or(NOW, |Time(seconds)| *seconds),
    }
}

/// Elements of Go's layouts with their `strftime` equivalents, longer ones first.
const LAYOUT: [(&str, &str); 29] = [
    ("January", "%B"),
    ("Jan", "%b"),
    ("Monday", "%A"),
    ("Mon", "%a"),
    ("MST", "%Z"),
    ("2006", "%Y"),
    ("Z07:00", "Z"),
    ("Z0700", "Z"),
    ("-07:00", "+00:00"),
    ("-0700", "+0000"),
    ("-07", "+00"),
    (".000000000", ".000000000"),
    (".000000", ".000000"),
    (".000", ".000"),
    ("002", "%j"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("15", "%H"),
    ("PM", "%p"),
    ("_2", "%e"),
    ("1", "%-m"),
    ("2", "%-d"),
    ("3", "%-I"),
    ("4", "%-M"),
    ("5", "%-S"),
];

/// Formats a time by a Go layout, in UTC.
fn format(seconds: i64, layout: &str) -> String {
    let mut pattern = String::new();
    let mut rest = layout;
    while let Some(c) = rest.chars().next() {
        if let Some((element, code)) = LAYOUT.iter().find(|(element, _)| rest.starts_with(element))
        {
            pattern.push_str(code);
            rest = &rest[element.len()..];
        } else {
            if c == '%' {
                pattern.push('%');
            }
            pattern.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_zoned(TimeZone::UTC).strftime(&pattern).to_string()
}

/// Parses a date or a time in UTC; layouts are ignored.
fn parse(text: &str) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_second());
    }
    let date = text
        .parse::<jiff::civil::DateTime>()
        .or_else(|_| text.parse::<jiff::civil::Date>().map(|date| date.at(0, 0, 0, 0)));
    let zoned = date.ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_second())
}

/// Returns the seconds of a Go duration: `1h30m`, `-1.5s`, `300ms`.
fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0.0;
    let mut any = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units =
            [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let (unit, scale) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total += number * scale;
        any = true;
    }
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates")]
    let seconds = total as i64;
    any.then_some(if negative { -seconds } else { seconds })
}

/// Formats a duration as Go does: `1h30m0s`.
fn show_duration(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let all = seconds.unsigned_abs();
    let (hours, minutes, rest) = (all / 3600, all / 60 % 60, all % 60);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{rest}s"),
        (0, _) => format!("{sign}{minutes}m{rest}s"),
        _ => format!("{sign}{hours}h{minutes}m{rest}s"),
    }
}

/// Returns a time shifted by a duration.
fn shift(seconds: i64, by: i64) -> i64 {
    Timestamp::from_second(seconds)
        .and_then(|time| time.checked_add(SignedDuration::from_secs(by)))
        .map_or(seconds, Timestamp::as_second)
}

impl Time {
    /// Returns the seconds of `AddDate YEARS MONTHS DAYS`.
    fn later(&self, arguments: &[Value]) -> Option<i64> {
        let [Value::Int(years), Value::Int(months), Value::Int(days)] = arguments else {
            return None;
        };
        let span = jiff::Span::new()
            .try_years(*years)
            .and_then(|span| span.try_months(*months))
            .and_then(|span| span.try_days(*days));
        let start = Timestamp::from_second(self.0).ok()?.to_zoned(TimeZone::UTC);
        Some(start.checked_add(span.ok()?).ok()?.timestamp().as_second())
    }
}

impl Object for Time {
    fn type_name(&self) -> &'static str {
        "time.Time"
    }

    fn show(&self) -> String {
        format(self.0, "2006-01-02 15:04:05 -0700 MST")
    }

    fn data(&self) -> Value {
        Value::text(format(self.0, "2006-01-02T15:04:05Z"))
    }

    /// Fields and methods of Go's `time.Time` that charts call.
    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        let shown = |layout: &str| format(self.0, layout);
        let number = |layout: &str| Value::Int(shown(layout).trim().parse().unwrap_or(0));
        let order = || {
            let other = arguments.first()?.as_object::<Self>()?;
            Some(self.0.cmp(&other.0))
        };
        Some(Ok(match name {
            "Unix" => Value::Int(self.0),
            "UnixNano" => Value::Int(self.0.saturating_mul(1_000_000_000)),
            "UnixMilli" => Value::Int(self.0.saturating_mul(1000)),
            "UnixMicro" => Value::Int(self.0.saturating_mul(1_000_000)),
            "Nanosecond" => Value::Int(0),
            "IsZero" => Value::Bool(false),
            "Compare" => Value::Int(order()? as i64),
            "Before" => Value::Bool(order()?.is_lt()),
            "After" => Value::Bool(order()?.is_gt()),
            "Equal" => Value::Bool(order()?.is_eq()),
            "Add" => time(shift(self.0, int(arguments, 0) / 1_000_000_000)),
            "AddDate" => time(self.later(arguments)?),
            "UTC" | "Local" => time(self.0),
            "Year" => number("2006"),
            "Day" => number("2"),
            "Hour" => number("15"),
            "Minute" => number("4"),
            "Second" => number("5"),
            "YearDay" => number("002"),
            "Month" => Value::text(shown("January")),
            "Weekday" => Value::text(shown("Monday")),
            "String" => Value::text(self.show()),
            "Format" => {
                let layout = text_argument(name, arguments);
                return Some(layout.map(|layout| Value::text(shown(&layout))));
            }
            _ => return None,
        }))
    }
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &str = "0123456789";
/// Maximum length of a pseudo-random string.
const LONGEST: usize = 1 << 20;

fn decoded(a: &Call<'_>, index: usize) -> Answer {
    decode_base64(&a.with(&[value(a, index)]))
}

fn repeated(a: &[Value], letters: &str) -> Answer {
    let count = usize::try_from(int(a, 0)).map_err(|_| "a negative length".to_owned())?;
    if count > LONGEST {
        return Err(format!("more than {LONGEST} characters"));
    }
    Ok(Value::text(letters.chars().cycle().take(count).collect::<String>()))
}

/// Returns a string in the form of a bcrypt hash.
fn hashed(password: &str) -> String {
    format!("$2a$10${}", sha256(password).chars().take(53).collect::<String>())
}

fn certificate(name: &str) -> Answer {
    let (certificate, key) = (pem("CERTIFICATE", name), pem("RSA PRIVATE KEY", name));
    Ok(Value::object(Pair { certificate: Value::text(certificate), key: Value::text(key) }))
}

struct Pair {
    certificate: Value,
    key: Value,
}

impl Object for Pair {
    fn type_name(&self) -> &'static str {
        "sprig.certificate"
    }

    fn show(&self) -> String {
        "{placeholder}".to_owned()
    }

    fn data(&self) -> Value {
        Value::map([("Cert", self.certificate.clone()), ("Key", self.key.clone())])
    }

    fn member(&self, name: &str, _: &[Value]) -> Option<Result<Value, String>> {
        match name {
            "Cert" => Some(Ok(self.certificate.clone())),
            "Key" => Some(Ok(self.key.clone())),
            _ => None,
        }
    }
}

/// Returns a string in the form of a PEM block whose content is the digest of a name.
fn pem(kind: &str, name: &str) -> String {
    let content = STANDARD.encode(sha256(name));
    let lines: Vec<&str> =
        content.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}
