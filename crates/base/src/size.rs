//! Sizes for people.

/// Formats a size in bytes: `1.09 MB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    // f64 is exact enough for three digits.
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (1_093_632, "1.09 MB"),
            (99_960_000, "100 MB"),
            (999_499_999, "999 MB"),
            (999_500_000, "1.00 GB"),
            (12_345_678_901, "12.3 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
