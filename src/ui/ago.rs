//! Human-readable ages in docker's wording: `3 hours ago`.

/// Formats the time between `then` and `now`, both in seconds since 1970.
pub(crate) fn ago(then: i64, now: i64) -> String {
    let Some(seconds) = now.checked_sub(then).filter(|seconds| *seconds >= 0) else {
        return "in the future".to_owned();
    };
    let minutes = seconds / 60;
    let hours = (seconds + 1800) / 3600;
    match seconds {
        0 => "Less than a second ago".to_owned(),
        1 => "1 second ago".to_owned(),
        2..60 => format!("{seconds} seconds ago"),
        60..120 => "About a minute ago".to_owned(),
        120..3600 => format!("{minutes} minutes ago"),
        _ if hours == 1 => "About an hour ago".to_owned(),
        _ if hours < 48 => format!("{hours} hours ago"),
        _ if hours < 24 * 14 => format!("{} days ago", hours / 24),
        _ if hours < 24 * 60 => format!("{} weeks ago", hours / 24 / 7),
        _ if hours < 24 * 365 * 2 => format!("{} months ago", hours / 24 / 30),
        _ => format!("{} years ago", hours / 24 / 365),
    }
}

/// Returns the current time, in seconds since 1970.
pub(crate) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_words() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, text) in [
            (0, "Less than a second ago"),
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (61, "About a minute ago"),
            (45 * 60, "45 minutes ago"),
            (HOUR + 60, "About an hour ago"),
            (3 * HOUR, "3 hours ago"),
            (3 * DAY, "3 days ago"),
            (15 * DAY, "2 weeks ago"),
            (90 * DAY, "3 months ago"),
            (800 * DAY, "2 years ago"),
            (-5, "in the future"),
        ] {
            assert_eq!(ago(10_000, 10_000 + seconds), text);
        }
        assert_eq!(ago(i64::MIN, i64::MAX), "in the future");
    }
}
