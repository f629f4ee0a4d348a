//! Durations and sizes as users type them.

use std::time::Duration;

use imgctl_base::error::{Error, Result};

/// Parses `90s`, `12h`, `1h30m`, `7d`, `2w`; a bare number is seconds.
pub fn parse(text: &str) -> Result<Duration> {
    let wrong = || {
        Error::usage(format!("`{text}` is not a duration"))
            .hint("a duration looks like 90s, 12h or 7d")
    };
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            _ => return Err(wrong()),
        };
        rest = &rest[unit..];
        let part = number.checked_mul(seconds).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(total)) }
}

/// Parses `500MB`, `10GiB`, `10g`, `1.5G`; a bare number is bytes. Units are powers of 1000, or of
/// 1024 with an `i`.
pub fn bytes(text: &str) -> Result<u64> {
    let wrong =
        || Error::usage(format!("`{text}` is not a size")).hint("a size looks like 500MB or 10GiB");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) => (letter, 1024_u64),
        None => (unit, 1000),
    };
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(wrong()),
    };
    let scale = base.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(wrong);
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction is approximate anyway, and the cast saturates"
    )]
    Ok((fraction * scale as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("2w", 1_209_600)]
        {
            assert_eq!(parse(text).unwrap().as_secs(), seconds, "{text}");
        }
        for wrong in ["", "h", "1x", "1h2", "99999999999999999999w", "-1s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("5", 5),
            ("5k", 5000),
            ("1.5GB", 1_500_000_000),
            ("2GiB", 2 << 30),
            ("1 MB", 1_000_000),
        ] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "x", "1X", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
