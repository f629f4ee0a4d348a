//! Upgrade windows: the times of a week at which hosts may be changed, `Sat 02:00-05:00
//! Europe/Berlin`.
//!
//! Must not read a clock: callers say what time it is.

mod zone;

use std::fmt;

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use imgctl_base::error::{Error, Result};

/// Days that are searched for the next opening: a week, and another if a change to summer time
/// skips the only hours of the first.
const HORIZON: i64 = 16;

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// The windows of one upgrade; without any, always open.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    windows: Vec<Window>,
}

#[derive(Clone, Debug)]
struct Window {
    days: Vec<Weekday>,
    hours: Vec<Hours>,
    zone: TimeZone,
}

/// From one time of day to another; to the next day if it is not later.
#[derive(Clone, Copy, Debug)]
struct Hours {
    from: Time,
    /// `None`: midnight at the end of the day.
    to: Option<Time>,
}

/// Whether hosts may be changed at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// There are no windows.
    Always,
    Open {
        closes: Moment,
    },
    Closed {
        opens: Moment,
    },
}

/// A moment, with its time of day where the window is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment(Zoned);

impl Moment {
    pub fn timestamp(&self) -> Timestamp {
        self.0.timestamp()
    }

    /// RFC 3339, with the offset of the window's time zone.
    pub fn rfc3339(&self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.strftime("%a %Y-%m-%d %H:%M %Z"))
    }
}

impl Windows {
    /// Parses windows, each `DAYS HH:MM-HH:MM[,HH:MM-HH:MM…] [ZONE]`: days are `Sat`, `Mon-Fri`,
    /// `Sat,Sun` or `daily`, the zone is a name of the IANA database and UTC by default.
    ///
    /// # Errors
    /// Of kind [`imgctl_base::error::Kind::Usage`] for another form or an unknown zone.
    pub fn parse(texts: &[impl AsRef<str>]) -> Result<Self> {
        let windows = texts.iter().map(|text| Window::parse(text.as_ref()));
        Ok(Self { windows: windows.collect::<Result<_>>()? })
    }

    /// Returns the parsed windows; `None` without any.
    pub fn of(texts: &[impl AsRef<str>]) -> Result<Option<Self>> {
        let windows = Self::parse(texts)?;
        Ok((!windows.windows.is_empty()).then_some(windows))
    }

    /// Returns whether a window is open at `now`, and until or from when.
    pub fn at(&self, now: Timestamp) -> WindowState {
        if self.windows.is_empty() {
            return WindowState::Always;
        }
        let mut spans: Vec<(Zoned, Zoned)> =
            self.windows.iter().flat_map(|window| window.around(now)).collect();
        spans.sort_by_key(|(start, _)| start.timestamp());
        // Windows that meet are one.
        let mut joined: Vec<(Zoned, Zoned)> = Vec::new();
        for (start, end) in spans {
            match joined.last_mut() {
                Some(last) if start.timestamp() <= last.1.timestamp() => {
                    if end.timestamp() > last.1.timestamp() {
                        last.1 = end;
                    }
                }
                _ => joined.push((start, end)),
            }
        }
        match joined.into_iter().find(|(_, end)| end.timestamp() > now) {
            Some((start, end)) if start.timestamp() <= now => {
                WindowState::Open { closes: Moment(end) }
            }
            Some((start, _)) => WindowState::Closed { opens: Moment(start) },
            // No window is longer than its horizon: not reached.
            None => WindowState::Always,
        }
    }

    /// Returns whether hosts may be changed at `now`.
    pub fn is_open(&self, now: Timestamp) -> bool {
        !matches!(self.at(now), WindowState::Closed { .. })
    }
}

impl Window {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| {
            Error::usage(format!("--window '{text}': {what}")).hint(
                "write days, hours and a time zone: --window 'Sat 02:00-05:00 Europe/Berlin', \
                 'Mon-Fri 22:00-04:00', 'daily 01:00-03:00,13:00-14:00 UTC'",
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, hours, zone_name) = match words[..] {
            [days, hours] => (days, hours, "UTC"),
            [days, hours, zone] => (days, hours, zone),
            _ => return Err(wrong("it does not have two or three words".to_owned())),
        };
        let window = Self {
            days: parse_days(days).map_err(wrong)?,
            hours: hours.split(',').map(Hours::parse).collect::<Result<_, _>>().map_err(wrong)?,
            zone: zone::find(zone_name).map_err(wrong)?,
        };
        Ok(window)
    }

    /// Returns when the window is open, from the day before `now` on.
    fn around(&self, now: Timestamp) -> Vec<(Zoned, Zoned)> {
        let today = now.to_zoned(self.zone.clone()).date();
        let mut spans = Vec::new();
        for offset in -1..HORIZON {
            let Ok(day) = today.checked_add(offset.days()) else { continue };
            if !self.days.contains(&day.weekday()) {
                continue;
            }
            spans.extend(self.hours.iter().filter_map(|hours| hours.on(day, &self.zone)));
        }
        spans
    }
}

fn parse_days(text: &str) -> Result<Vec<Weekday>, String> {
    if matches!(text.to_ascii_lowercase().as_str(), "daily" | "*") {
        return Ok(DAYS.iter().map(|(_, day)| *day).collect());
    }
    let number = |word: &str| {
        let lower = word.to_ascii_lowercase();
        let is_it = |name: &str| lower == name || (lower.len() > 3 && is_long(&lower, name));
        DAYS.iter().position(|(name, _)| is_it(name)).ok_or_else(|| format!("`{word}` is no day"))
    };
    let mut days = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        // `Sat-Mon` goes over the end of the week.
        let length = (last + DAYS.len() - first) % DAYS.len();
        for offset in 0..=length {
            let day = DAYS[(first + offset) % DAYS.len()].1;
            if !days.contains(&day) {
                days.push(day);
            }
        }
    }
    Ok(days)
}

/// Whether `word` is the long name of the day with the short name `short`.
fn is_long(word: &str, short: &str) -> bool {
    const LONG: [&str; 7] =
        ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    LONG.iter().any(|long| *long == word && long.starts_with(short))
}

impl Hours {
    fn parse(text: &str) -> Result<Self, String> {
        let (from, to) =
            text.split_once('-').ok_or_else(|| format!("`{text}` is not HH:MM-HH:MM"))?;
        let from_time = time_of_day(from)?;
        let to_time = match to {
            "24:00" => None,
            _ => Some(time_of_day(to)?),
        };
        if to_time == Some(from_time) {
            return Err(format!("{text} ends when it begins; write 00:00-24:00 for a whole day"));
        }
        Ok(Self { from: from_time, to: to_time })
    }

    /// Returns the window that begins on `day`; `None` if a change to summer time skips all of it.
    ///
    /// Of an hour that exists twice, the first counts.
    fn on(self, day: Date, zone: &TimeZone) -> Option<(Zoned, Zoned)> {
        let last = match self.to {
            Some(to) if to > self.from => day.to_datetime(to),
            Some(to) => day.tomorrow().ok()?.to_datetime(to),
            None => day.tomorrow().ok()?.to_datetime(Time::midnight()),
        };
        let start = day.to_datetime(self.from).to_zoned(zone.clone()).ok()?;
        let end = last.to_zoned(zone.clone()).ok()?;
        (end.timestamp() > start.timestamp()).then_some((start, end))
    }
}

/// Parses `HH:MM` or `HH:MM:SS`.
fn time_of_day(text: &str) -> Result<Time, String> {
    let wrong = || format!("`{text}` is not a time of day between 00:00 and 23:59");
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len())
        || parts.iter().any(|part| part.len() != 2 || !part.bytes().all(|it| it.is_ascii_digit()))
    {
        return Err(wrong());
    }
    let number = |place: usize| {
        parts.get(place).map_or(Ok(0), |part| part.parse::<i8>()).map_err(|_| wrong())
    };
    Time::new(number(0)?, number(1)?, number(2)?, 0).map_err(|_| wrong())
}

#[cfg(test)]
mod tests;
