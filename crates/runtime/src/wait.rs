//! Repeats a check until there is no complaint.

use std::time::{Duration, Instant};

use crate::action::{Action, Site};
use imgctl_base::error::{Error, Result};
use imgctl_journal::event::WAITING;

const PAUSE: Duration = Duration::from_secs(2);
/// Time reserved before an action's timeout, so that its final message is reported.
const MARGIN: Duration = Duration::from_secs(10);

/// Creates an action that waits until the check passes, for at most `patience`.
pub(crate) fn waiting(
    name: &str,
    says: impl Into<String>,
    patience: Duration,
    hint: &'static str,
    complaint: impl Fn(&Site<'_>) -> Result<Option<String>> + Send + Sync + 'static,
) -> Action {
    let does = move |site: &Site<'_>| until_well(site, patience, hint, &|| complaint(site));
    Action::new(name, says, does).within(patience + MARGIN * 2)
}

/// Repeats the check until it passes or `patience` expires. A failed check counts as a complaint,
/// because servers restart meanwhile.
pub fn until_well(
    site: &Site<'_>,
    patience: Duration,
    hint: &str,
    complaint: &dyn Fn() -> Result<Option<String>>,
) -> Result<()> {
    until_well_or(site, patience, hint, complaint, &|| None)
}

/// Like [`until_well`], but stops early if `hopeless` reports that waiting is useless. Calls it as
/// often as the check.
pub(crate) fn until_well_or(
    site: &Site<'_>,
    patience: Duration,
    hint: &str,
    complaint: &dyn Fn() -> Result<Option<String>>,
    hopeless: &dyn Fn() -> Option<Error>,
) -> Result<()> {
    let limit =
        site.timeout.map_or(patience, |timeout| (timeout - MARGIN.min(timeout / 10)).min(patience));
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
                "{}: timed out after {} s: {found}",
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
