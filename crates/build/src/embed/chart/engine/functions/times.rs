//! Dates and durations, with a fixed clock.

use super::{Group, int, text};
use crate::embed::chart::engine::dates::{
    NOW, duration, format, parse, seconds_of, shift, show_duration, time,
};
use crate::embed::chart::engine::value::Value;

pub(super) const GROUP: Group = &[
    ("now", "", |_| Ok(time(NOW))),
    ("date", "s*", |a| Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))),
    ("dateInZone", "s*s", |a| Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))),
    ("date_in_zone", "s*s", |a| Ok(Value::text(format(seconds_of(&a[1]), &text(a, 0))))),
    ("htmlDate", "*", |a| Ok(Value::text(format(seconds_of(&a[0]), "2006-01-02")))),
    ("htmlDateInZone", "*s", |a| Ok(Value::text(format(seconds_of(&a[0]), "2006-01-02")))),
    ("unixEpoch", "*", |a| Ok(Value::text(seconds_of(&a[0]).to_string()))),
    ("ago", "*", |a| Ok(Value::text(show_duration(NOW - seconds_of(&a[0]))))),
    ("dateModify", "s*", |a| {
        let by = duration(&text(a, 0)).unwrap_or(0);
        Ok(time(shift(seconds_of(&a[1]), by)))
    }),
    ("date_modify", "s*", |a| {
        let by = duration(&text(a, 0)).unwrap_or(0);
        Ok(time(shift(seconds_of(&a[1]), by)))
    }),
    ("toDate", "ss", |a| Ok(time(parse(&text(a, 0), &text(a, 1)).unwrap_or(0)))),
    ("duration", "*", |a| {
        let seconds = match &a[0] {
            Value::Text(text) => text.parse().ok().or_else(|| duration(text)).unwrap_or(0),
            _ => int(a, 0),
        };
        Ok(Value::text(show_duration(seconds)))
    }),
    ("durationRound", "*", |a| {
        let seconds = match &a[0] {
            Value::Text(text) => duration(text).unwrap_or(0),
            Value::Int(nanoseconds) => nanoseconds / 1_000_000_000,
            other => NOW - seconds_of(other),
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
];
