//! `HEALTHCHECK` and its durations.

use std::time::Duration;

use super::ast::{CommandForm, Healthcheck};
use super::diagnostic::Problem;
use super::reader::Reader;
use super::words;

const FLAGS: [&str; 5] = ["interval", "timeout", "start-period", "start-interval", "retries"];

/// Docker rejects shorter durations.
const SHORTEST: Duration = Duration::from_millis(1);

/// Parses `HEALTHCHECK NONE` or `HEALTHCHECK [FLAGS] CMD …`.
pub(super) fn parse(reader: &mut Reader<'_>) -> Option<Healthcheck> {
    let (kind, rest) = words::split_first(reader.rest);
    if kind.eq_ignore_ascii_case("NONE") {
        reader.finish_flags(&[]);
        if !rest.is_empty() {
            reader.problem(Problem::new("HEALTHCHECK NONE takes no arguments").at(rest));
        }
        return Some(Healthcheck::None);
    }
    let interval = duration_flag(reader, "interval");
    let timeout = duration_flag(reader, "timeout");
    let start_period = duration_flag(reader, "start-period");
    let start_interval = duration_flag(reader, "start-interval");
    let retries = retries(reader);
    reader.finish_flags(&FLAGS);
    let command = reader.form(rest)?;
    let nothing = rest.is_empty() || command == CommandForm::Exec(Vec::new());
    if !kind.eq_ignore_ascii_case("CMD") || nothing {
        let problem = match kind {
            "" => Problem::new("HEALTHCHECK needs an argument"),
            kind if kind.eq_ignore_ascii_case("CMD") => {
                Problem::new("HEALTHCHECK CMD needs a command").at(kind)
            }
            other => Problem::new(format!("unknown HEALTHCHECK {other}")).at(other),
        };
        reader.problem(problem.hint("write HEALTHCHECK CMD command, or HEALTHCHECK NONE"));
        return None;
    }
    Some(Healthcheck::Cmd { interval, timeout, start_period, start_interval, retries, command })
}

fn duration_flag(reader: &mut Reader<'_>, name: &str) -> Option<Duration> {
    let text = reader.flags.one(name, &mut reader.problems)?;
    if text.is_empty() {
        return None;
    }
    let wrong = match duration(text.strip_prefix('+').unwrap_or(&text)) {
        Some(Duration::ZERO) => return None,
        Some(duration) if duration >= SHORTEST => return Some(duration),
        Some(_) => "is shorter than 1ms",
        None => "is not a duration",
    };
    reader.problem(
        Problem::new(format!("--{name}={text} {wrong}"))
            .at(&text)
            .hint("durations look like 30s, 1m30s or 500ms"),
    );
    None
}

fn retries(reader: &mut Reader<'_>) -> Option<u32> {
    let text = reader.flags.one("retries", &mut reader.problems)?;
    if text.is_empty() {
        return None;
    }
    match text.parse::<u32>() {
        Ok(retries) if i32::try_from(retries).is_ok() => Some(retries),
        _ => {
            reader.problem(Problem::new(format!("--retries={text} is not a number")).at(&text));
            None
        }
    }
}

/// Parses a duration in Go's notation, without a sign: `1h2m3.5s`, `100ms`, `0`.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0_u128;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.into() };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        // Nineteen digits are finer than a nanosecond for every unit.
        let mut scale = unit;
        for digit in fraction.chars().take(19) {
            scale /= 10;
            total = total.checked_add(u128::from(digit.to_digit(10)?) * scale)?;
        }
        rest = tail;
    }
    let nanoseconds = u64::try_from(total).ok()?;
    let fits = !text.is_empty() && i64::try_from(nanoseconds).is_ok();
    fits.then(|| Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_gos_notation() {
        for (text, nanoseconds) in [
            ("0", Some(0)),
            ("5s", Some(5_000_000_000)),
            ("1m30s", Some(90_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("100ms", Some(100_000_000)),
            ("3µs", Some(3_000)),
            ("1h2m3.004s", Some(3_723_004_000_000)),
            ("", None),
            ("5", None),
            (".s", None),
            ("-5s", None),
            ("5 s", None),
            ("1.2.3s", None),
            ("99999999999h", None),
            ("5d", None),
        ] {
            assert_eq!(duration(text), nanoseconds.map(Duration::from_nanos), "{text}");
        }
    }
}
