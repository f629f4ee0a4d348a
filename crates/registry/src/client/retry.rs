//! How often a request is retried, and the pauses between attempts.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};

/// Default maximum number of attempts of one request.
pub(super) const DEFAULT_TRIES: u32 = 5;
/// Maximum back-off.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Maximum delay honored on request of a registry.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Counts the attempts of one operation.
#[derive(Debug)]
pub struct Tries {
    made: u32,
    limit: u32,
    /// Pause after the first attempt.
    first_pause: Duration,
}

impl Tries {
    /// Allows `limit` attempts.
    pub fn new(limit: u32, first_pause: Duration) -> Self {
        Self { made: 0, limit: limit.max(1), first_pause }
    }

    /// Counts a failed attempt. Returns the pause before the next one, `None` if it was the last.
    /// `retry_after` is the delay that the registry requested.
    pub fn failed(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        self.made += 1;
        if self.made >= self.limit {
            return None;
        }
        let doubled = self.first_pause * (1 << (self.made - 1).min(10));
        let pause = jittered(doubled.min(LONGEST_PAUSE));
        Some(retry_after.map_or(pause, |retry_after| retry_after.min(LONGEST_RETRY_AFTER)))
    }

    /// Resets the count after progress.
    pub fn progressed(&mut self) {
        self.made = 0;
    }

    /// Returns the number of failed attempts.
    pub(super) fn made(&self) -> u32 {
        self.made
    }
}

/// Returns between half and all of `pause`, so that many clients do not retry at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1000;
    pause / 2 + pause / 2 * u32::try_from(random).unwrap_or(0) / 1000
}

/// Returns whether a request with this response is worth retrying.
pub(super) fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Parses `Retry-After` (RFC 9110 §10.2.3): seconds or a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let seconds = then.as_second() - jiff::Timestamp::now().as_second();
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_end_and_start_again_after_progress() {
        let mut tries = Tries::new(4, Duration::from_millis(100));
        let pauses: Vec<_> = (0..3).map(|_| tries.failed(None).unwrap()).collect();
        for (pause, most) in pauses.iter().zip([100, 200, 400]) {
            let pause = pause.as_millis();
            assert!(pause <= most && pause >= most / 2, "{pause} of {most}");
        }
        assert_eq!(tries.failed(None), None);
        tries.progressed();
        assert!(tries.failed(None).is_some());
        let mut long = Tries::new(40, Duration::from_secs(1));
        for _ in 0..39 {
            assert!(long.failed(None).unwrap() <= LONGEST_PAUSE);
        }
    }

    #[test]
    fn the_registrys_retry_after_counts_up_to_a_minute() {
        let mut tries = Tries::new(9, Duration::from_millis(1));
        for (header, least, most) in
            [("7", 7, 7), ("999999", 60, 60), ("Fri, 31 Dec 2100 23:59:59 GMT", 60, 60)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, header.parse().unwrap());
            let pause = tries.failed(retry_after(&headers)).unwrap().as_secs();
            assert!((least..=most).contains(&pause), "{header}: {pause}");
        }
        for nonsense in ["-1", "soon", "Fri, 31 Dec 1999 23:59:59 GMT"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, nonsense.parse().unwrap());
            assert_eq!(retry_after(&headers), None, "{nonsense}");
        }
    }
}
