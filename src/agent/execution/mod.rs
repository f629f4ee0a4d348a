//! Commands on a host that survive whoever asked for them.
//!
//! ```text
//! agent ── run      starts the supervisor, follows the log
//!   └─ __supervise KEYDIR   own session; writes log and outcome, enforces the timeout
//!       └─ bash -e -c LINE  own process group
//! ```
//!
//! What is known of one key lies in its directory (`place.rs`): a state before the command starts,
//! a log while it runs, an outcome when it has ended; a lock is held for as long as the supervisor
//! lives. So agent and connection may die at any moment: the next call with the same key finds the
//! outcome, follows what still runs, or says that the command ended without telling how. It is
//! never run a second time unless that is asked for.
//!
//! Must not know clusters, nor who reads the output.

mod cancel;
mod follow;
mod log;
mod place;
mod remains;
mod start;
mod supervisor;
mod surroundings;
mod sweep;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::agent::protocol::{Outcome, OutputLine, Run};
use crate::error::{Error, Kind, Result};

pub(crate) use cancel::cancel;

/// First argument of the process that looks after one command; the second is its directory.
const SUPERVISOR: &str = "__supervise";

/// What a call is made with besides the request.
pub(crate) struct Caller<'a> {
    /// The binary that supervises: imgctl itself, normally `/proc/self/exe`.
    pub(crate) program: &'a Path,
    /// Asked now and then; `true` ends the following (not the command) with [`Kind::Busy`].
    pub(crate) gone: &'a dyn Fn() -> bool,
}

/// Runs a command detached from this process, or finds what became of an earlier run of its key,
/// and gives its output line by line and how it ended. Blocks until then.
pub(crate) fn run(
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
                    // The next look says how it ended.
                    follow::Followed::Died => again = false,
                }
            }
            start::Begun::Lost => again = false,
        }
    }
    Err(Error::new(
        Kind::Busy,
        format!(
            "cannot run {}: others run the same command again and again",
            request.key
        ),
    ))
}

/// Runs the supervisor if `arguments`, a command line without the program, ask for it. The binary
/// asks this before anything else.
pub(crate) fn entry(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments {
        [word, directory] if word == SUPERVISOR => Some(supervisor::main(Path::new(directory))),
        _ => None,
    }
}
