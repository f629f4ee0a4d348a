//! How values appear as text: foreign text without invisible or reordering characters, sizes, times.

use std::borrow::Cow;

use imgctl_base::text::is_unsafe;

/// Maximum number of characters of a name on a page.
pub(crate) const LONGEST: usize = 400;

/// Returns foreign text for one place on a page. Control, formatting and bidirectional characters
/// become visible escapes, as they could hide or reorder what is around them; long text is cut, with
/// its length.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    bounded(text, LONGEST)
}

/// Like [`shown`], with another maximum number of characters.
pub(crate) fn bounded(text: &str, longest: usize) -> Cow<'_, str> {
    // Most text is short and plain.
    if text.len() <= longest && !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    let mut count = 0_usize;
    for character in text.chars() {
        count += 1;
        if count > longest {
            continue;
        }
        if is_unsafe(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    if count > longest {
        shown.push_str(&format!("… ({count} characters)"));
    }
    Cow::Owned(shown)
}

/// Like [`bounded`] for text of several lines, such as a log: line feeds and tabs stay.
pub(crate) fn lines(text: &str, longest: usize) -> String {
    let shown: Vec<_> = text.lines().map(|line| bounded(line, longest)).collect();
    shown.join("\n")
}

/// Formats a number with spaces between groups of three digits.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats `number` things: `1 file`, `2 files`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Formats a share as whole percents, `0` of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    let share = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(100)
}

/// Formats the beginning of a digest.
pub(crate) fn short_digest(digest: &str) -> String {
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    shown(hex).chars().take(12).collect()
}

/// Formats a time of RFC 3339 for people, in UTC; other text is returned unchanged.
pub(crate) fn time(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => shown(text).into_owned(),
    }
}

/// Formats a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0 => format!("{milliseconds} ms"),
        1..10 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_spelled_out() {
        assert_eq!(shown("etc/häßlich 日本"), "etc/häßlich 日本");
        assert_eq!(shown("a\u{202e}b\u{1b}[31m\n"), "a\\u{202e}b\\u{1b}[31m\\u{a}");
        let long = shown(&"x".repeat(65_536)).into_owned();
        assert!(long.ends_with("… (65536 characters)") && long.len() < 500, "{long}");
        assert_eq!(lines("a\tb\n\u{9b}c", 10), "a\tb\n\\u{9b}c");
    }

    #[test]
    fn numbers_have_groups_and_units() {
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!((percent(1, 3), percent(u64::MAX, u64::MAX), percent(1, 0)), (33, 100, 100));
        assert_eq!(duration(450), "450 ms");
        assert_eq!(duration(1450), "1.4 s");
        assert_eq!(duration(200_000), "3 min 20 s");
        assert_eq!(duration(90_000_000), "1 d 1 h");
        assert_eq!(time("2026-01-02T03:04:05Z"), "2026-01-02 03:04:05 UTC");
        assert_eq!(short_digest("sha256:0123456789abcdef"), "0123456789ab");
    }
}
