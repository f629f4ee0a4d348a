//! Cancels a running command.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::agent::execution::place::Place;
use crate::agent::execution::supervisor::GRACE;
use imgctl_base::error::{Error, IoContext, Kind, Result};

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
            return Err(Error::new(
                Kind::Busy,
                format!("cannot cancel {key}: its supervisor does not respond"),
            )
            .hint(format!("its files are in {}", place.directory().display())));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
