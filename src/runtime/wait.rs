//! Asks until there is no complaint.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::runtime::action::Site;

const PAUSE: Duration = Duration::from_secs(2);
/// How a line begins that says what a step waits for.
pub(crate) const WAITING: &str = "waiting: ";
/// An action ends before its time is up, so that its last words are heard.
const MARGIN: Duration = Duration::from_secs(10);

/// An answer that cannot be had is a complaint like any other: servers restart meanwhile.
pub(crate) fn until_well(
    site: &Site<'_>,
    patience: Duration,
    hint: &str,
    complaint: &dyn Fn() -> Result<Option<String>>,
) -> Result<()> {
    until_well_or(site, patience, hint, complaint, &|| None)
}

/// The same, but ends early when `hopeless` says that waiting is of no use. It is asked as often.
pub(crate) fn until_well_or(
    site: &Site<'_>,
    patience: Duration,
    hint: &str,
    complaint: &dyn Fn() -> Result<Option<String>>,
    hopeless: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    let limit = site.timeout.map_or(patience, |timeout| {
        (timeout - MARGIN.min(timeout / 10)).min(patience)
    });
    let end = Instant::now() + limit;
    let mut told = String::new();
    loop {
        let found = match complaint() {
            Ok(None) => return Ok(()),
            Ok(Some(found)) => found,
            Err(error) => error.to_string(),
        };
        if let Some(error) = hopeless() {
            return Err(error.context(found).hint(hint));
        }
        if Instant::now() + PAUSE >= end {
            return Err(Error::failed(format!(
                "{}: after {} s still: {found}",
                site.agent.host(),
                limit.as_secs()
            ))
            .hint(hint));
        }
        if found != told {
            site.say(&format!("{WAITING}{found}"));
            told = found;
        }
        std::thread::sleep(PAUSE);
    }
}
