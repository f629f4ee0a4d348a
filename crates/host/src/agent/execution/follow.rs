//! Follows a running command, replays the outcome of a finished one, or cancels it.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::agent::execution::log::Reader;
use crate::agent::execution::place::{Place, Record};
use crate::agent::execution::supervisor::GRACE;
use crate::agent::protocol::{Outcome, OutputLine};
use imgctl_base::error::{Error, IoContext, Result};

/// First and longest pause before checking for more output.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);

/// Why following ended.
pub(super) enum Followed {
    Ended(Record),
    /// The supervisor is gone and left no outcome.
    Died,
}

/// Passes on the output until the command has ended.
pub(super) fn follow(
    place: &Place,
    gone: &dyn Fn() -> bool,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Followed> {
    let mut reader = Reader::new(place);
    let mut pause = SHORTEST;
    loop {
        // Checked before the log is read: nothing is written to the log after the outcome.
        let record = place.record()?;
        let is_dead = record.is_none() && place.try_lock_alive()?.is_some();
        let mut any = false;
        while reader.read(output)? {
            any = true;
            if gone() {
                break;
            }
        }
        if let Some(record) = record {
            return Ok(Followed::Ended(record));
        }
        if is_dead && place.record()?.is_none() {
            return Ok(Followed::Died);
        }
        if gone() {
            return Err(Error::busy("the caller is gone; the command continues to run"));
        }
        pause = if any { SHORTEST } else { (pause * 2).min(LONGEST) };
        std::thread::sleep(pause);
    }
}

/// Returns the recorded outcome and replays the end of the output.
pub(super) fn recall(
    place: &Place,
    record: &Record,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    let mut reader = Reader::tail(place)?;
    while reader.read(output)? {}
    Ok(record.outcome(place, true))
}

/// How often to check whether the command has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Ends the command of `key` with SIGTERM, then SIGKILL, and waits for it to end. Succeeds if the
/// command is not running.
pub fn cancel(directory: &str, key: &str) -> Result<()> {
    let place = Place::new(Path::new(directory), key)?;
    if !place.directory().exists() {
        return Ok(());
    }
    let begun = Instant::now();
    while place.try_lock_alive()?.is_none() {
        std::fs::write(place.cancel_file(), b"").path("write", place.cancel_file())?;
        if begun.elapsed() > GRACE + Duration::from_secs(20) {
            return Err(Error::busy(format!(
                "cannot cancel {key}: its supervisor does not respond"
            ))
            .hint(format!("its files are in {}", place.directory().display())));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
