//! Points in time. The clock of templates is fixed at 1970: a chart must render to the same text at
//! any time.

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::objects::{Object, text_argument};
use super::value::Value;

/// Value of `now`.
pub(super) const NOW: i64 = 0;

/// Returns a point in time as a value.
pub(super) fn time(seconds: i64) -> Value {
    Value::Object(Rc::new(Object::Time(seconds)))
}

/// Returns the seconds of a time or a number, for sprig's date functions.
pub(super) fn seconds_of(value: &Value) -> i64 {
    match value {
        Value::Object(object) => match object.as_ref() {
            Object::Time(seconds) => *seconds,
            _ => NOW,
        },
        Value::Int(int) => *int,
        _ => NOW,
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
pub(super) fn format(seconds: i64, layout: &str) -> String {
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

/// Parses text by a Go layout; only dates and times in UTC.
pub(super) fn parse(layout: &str, text: &str) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_second());
    }
    let date = text
        .parse::<jiff::civil::DateTime>()
        .or_else(|_| text.parse::<jiff::civil::Date>().map(|date| date.at(0, 0, 0, 0)));
    let _ = layout;
    let zoned = date.ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_second())
}

/// Returns the seconds of a Go duration: `1h30m`, `-1.5s`, `300ms`.
pub(super) fn duration(text: &str) -> Option<i64> {
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
pub(super) fn show_duration(seconds: i64) -> String {
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
pub(super) fn shift(seconds: i64, by: i64) -> i64 {
    Timestamp::from_second(seconds)
        .and_then(|time| time.checked_add(SignedDuration::from_secs(by)))
        .map_or(seconds, Timestamp::as_second)
}

/// Fields and methods of Go's `time.Time` that charts call.
pub(super) fn method(
    seconds: i64,
    name: &str,
    arguments: &[Value],
) -> Option<Result<Value, String>> {
    let number = |layout: &str| {
        let text = format(seconds, layout);
        Ok(Value::Int(text.trim().parse().unwrap_or(0)))
    };
    Some(match name {
        "Unix" => Ok(Value::Int(seconds)),
        "UnixNano" => Ok(Value::Int(seconds.saturating_mul(1_000_000_000))),
        "UnixMilli" => Ok(Value::Int(seconds.saturating_mul(1000))),
        "UTC" | "Local" => Ok(time(seconds)),
        "Year" => number("2006"),
        "Day" => number("2"),
        "Hour" => number("15"),
        "Minute" => number("4"),
        "Second" => number("5"),
        "YearDay" => number("002"),
        "Month" => Ok(Value::text(format(seconds, "January"))),
        "Weekday" => Ok(Value::text(format(seconds, "Monday"))),
        "String" => Ok(Value::text(format(seconds, "2006-01-02 15:04:05 -0700 MST"))),
        "Format" => {
            text_argument(name, arguments).map(|layout| Value::text(format(seconds, &layout)))
        }
        _ => return None,
    })
}
