//! Follows a command that runs, or tells again how one has ended.

use std::time::Duration;

use crate::agent::execution::log::Reader;
use crate::agent::execution::place::{Place, Record};
use crate::agent::protocol::{Outcome, OutputLine};
use crate::error::{Error, Kind, Result};

/// How long we wait for more output: first, and at most.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);

/// How the following ended.
pub(super) enum Followed {
    Ended(Record),
    /// The supervisor is gone and has left no outcome.
    Died,
}

/// Hands out the output until the command has ended.
pub(super) fn follow(
    place: &Place,
    gone: &dyn Fn() -> bool,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Followed> {
    let mut reader = Reader::new(place);
    let mut pause = SHORTEST;
    loop {
        // Asked before the log is read: nothing is written behind an outcome.
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
            return Err(Error::new(
                Kind::Busy,
                "nobody listens any more; the command goes on",
            ));
        }
        pause = if any {
            SHORTEST
        } else {
            (pause * 2).min(LONGEST)
        };
        std::thread::sleep(pause);
    }
}

/// The recorded outcome, with the end of the output once more.
pub(super) fn recall(
    place: &Place,
    record: &Record,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    let mut reader = Reader::tail(place)?;
    while reader.read(output)? {}
    Ok(record.outcome(place, true))
}
