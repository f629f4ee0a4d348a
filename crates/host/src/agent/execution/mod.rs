//! Commands on a host that outlive the caller that requested them.
//!
//! ```text
//! agent ── run      starts the supervisor, follows the log
//!   └─ __supervise KEYDIR   own session; writes log and outcome, enforces the timeout
//!       └─ bash -e -c LINE  own process group
//! ```
//!
//! Everything known about one key is in its directory (`place.rs`): a state before the command
//! starts, a log while it runs, and an outcome when it has ended. The supervisor holds a lock while
//! it lives. The agent and the connection can therefore die at any moment: the next call with the
//! same key finds the outcome, follows the running command, or reports that the command ended
//! without an outcome. A command is never run a second time unless the caller asks for it.
//!
//! Must not depend on clusters, or on who reads the output.

mod follow;
mod log;
mod place;
mod session;
mod start;
mod supervisor;
mod surroundings;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::agent::protocol::{Outcome, OutputLine, Run};
use imgctl_base::error::{Error, Result};

pub use follow::cancel;

/// First argument of the process that supervises one command; the second is its directory.
const SUPERVISOR: &str = "__supervise";

/// Context of a call besides the request.
pub struct Caller<'a> {
    /// The supervisor binary: imgctl itself, normally `/proc/self/exe`.
    pub program: &'a Path,
    /// Polled from time to time; if it returns `true`, following ends (the command does not) with
    /// [`Kind::Busy`](imgctl_base::error::Kind::Busy).
    pub gone: &'a dyn Fn() -> bool,
}

/// Runs a command detached from this process, or finds the result of an earlier run of its key.
/// Passes on the output line by line and returns the outcome. Blocks until the command has ended.
pub fn run(
    request: &Run,
    caller: &Caller<'_>,
    output: &mut dyn FnMut(OutputLine),
) -> Result<Outcome> {
    surroundings::check(request)?;
    let place = place::Place::new(Path::new(&request.directory), &request.key)?;
    place.create()?;
    let mut again = request.again;
    for _ in 0..start::ATTEMPTS {
        match start::begin(&place, request, caller.program, again)? {
            start::Begun::Ended(record) => return follow::recall(&place, &record, output),
            start::Begun::Runs { ours } => {
                match follow::follow(&place, caller.gone, output)? {
                    follow::Followed::Ended(record) => return Ok(record.outcome(&place, !ours)),
                    // The next attempt finds the outcome.
                    follow::Followed::Died => again = false,
                }
            }
            start::Begun::Lost => again = false,
        }
    }
    Err(Error::busy(format!(
        "cannot run {}: other processes keep running the same command",
        request.key
    )))
}

/// Runs the supervisor if `arguments`, a command line without the program, ask for it. The binary
/// calls this before anything else.
pub fn entry(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments {
        [word, directory] if word == SUPERVISOR => Some(supervisor::main(Path::new(directory))),
        _ => None,
    }
}
