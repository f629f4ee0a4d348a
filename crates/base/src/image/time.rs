//! Timestamps in image documents: RFC 3339, UTC.

use jiff::Timestamp;

use crate::error::{Error, Result};

/// Formats seconds since 1970 as `2024-01-02T03:04:05Z`; values out of range are clamped to the end
/// of the calendar.
pub fn rfc3339(seconds: i64) -> String {
    Timestamp::from_second(seconds)
        .unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
        .to_string()
}

/// Parses an RFC 3339 time into seconds and nanoseconds since 1970.
pub fn parse_rfc3339(text: &str) -> Result<(i64, u32)> {
    let time: Timestamp = text.parse().map_err(|error: jiff::Error| {
        Error::bad_content(format!("`{text}` is not an RFC 3339 time")).caused_by(error)
    })?;
    Ok((time.as_second(), u32::try_from(time.subsec_nanosecond()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(parse_rfc3339("1970-01-01T00:00:01.5Z").unwrap(), (1, 500_000_000));
        assert!(parse_rfc3339("yesterday").is_err());
    }
}
