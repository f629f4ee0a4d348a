//! Decides whether to start a key's command, and starts exactly one supervisor, however many
//! callers ask at the same time. Removes old runs, whose number per cluster is limited.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::agent::execution::place::{Place, Record};
use crate::agent::execution::{SUPERVISOR, session, surroundings};
use crate::agent::protocol::Run;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::remove_tree;

/// Maximum number of attempts after another caller was faster or a supervisor died.
pub(super) const ATTEMPTS: usize = 10;

/// State of a key's command.
pub(super) enum Begun {
    Ended(Record),
    /// The command is running, started by this call or by an earlier one.
    Runs {
        ours: bool,
    },
    /// Another caller's supervisor was faster.
    Lost,
}

/// The supervisor's single message; until it arrives, nothing has been started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Started,
    /// The key has a state already, or another supervisor.
    Taken,
    Failed {
        message: String,
        hint: Option<String>,
    },
}

/// Time that a supervisor has to exit after its command, and how often to check.
const GOES: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(5);

/// Determines the state of the key's command, and starts it if it has not run, or if `again` is
/// set.
pub(super) fn begin(place: &Place, request: &Run, program: &Path, again: bool) -> Result<Begun> {
    let _deciding = place.lock_start()?;
    let waits = Instant::now();
    let alive = loop {
        if let Some(alive) = place.try_lock_alive()? {
            break alive;
        }
        // The command has ended and its supervisor is about to exit: that must not be mistaken for
        // the end of the command to run now.
        let goes = again && place.record()?.is_some() && waits.elapsed() < GOES;
        if !goes {
            return Ok(Begun::Runs { ours: false });
        }
        std::thread::sleep(GLANCE);
    };
    if let Some(record) = end_of_the_dead(place)? {
        if !again {
            return Ok(Begun::Ended(record));
        }
        place.forget()?;
    }
    drop(alive);
    sweep(place.runs(), place.directory());
    start(place, request, program)
}

/// Returns the outcome of a key without a live supervisor, or `None` if the key has never run.
fn end_of_the_dead(place: &Place) -> Result<Option<Record>> {
    let state = place.state()?;
    let is_of_this_boot =
        state.as_ref().is_none_or(|state| state.boot_id == surroundings::boot_id());
    match place.record()? {
        // A host that goes down may end the command a moment before its supervisor, which then
        // records the signal as the command's own end.
        Some(record) if is_of_this_boot || !record.is_by_signal() => return Ok(Some(record)),
        _ => {}
    }
    let Some(state) = state else {
        return Ok(None);
    };
    let reason = if is_of_this_boot {
        surroundings::kill_marked(&state.marker);
        "its supervisor was killed while it ran"
    } else {
        "the host was rebooted while it ran"
    };
    let record = Record { code: None, reason: Some(reason.to_owned()), duration_ms: 0 };
    place.write_record(&record)?;
    Ok(Some(record))
}

fn start(place: &Place, request: &Run, program: &Path) -> Result<Begun> {
    let doing = || format!("cannot start the supervisor of {}", request.key);
    let request_bytes = serde_json::to_vec(request)
        .doing(|| "cannot pass the command to its supervisor".to_owned())?;
    let supervise = |mut command: Command| -> Result<Vec<u8>> {
        let (mut ours, theirs) = UnixStream::pair().doing(doing)?;
        command.arg(SUPERVISOR).arg(place.directory()).env_clear().current_dir("/");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().doing(doing)?;
        // The command holds the other end of the socket, whose end is awaited below.
        drop(command);
        // A supervisor that has died sends no answer below.
        let _ = ours.write_all(&request_bytes);
        let _ = ours.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = ours.take(1 << 20).read_to_end(&mut answer);
        // The supervisor keeps running; a thread must reap it.
        let reaper = std::thread::Builder::new().name("reap".to_owned());
        let _ = reaper.spawn(move || child.wait());
        Ok(answer)
    };
    let outside = session::outside(program).map(&supervise);
    let answer = match outside {
        Some(Ok(answer)) if !answer.is_empty() || place.state()?.is_some() => answer,
        // Without a manager that answers, the session is all there is.
        _ => supervise(Command::new(program))?,
    };
    match serde_json::from_slice(&answer) {
        Ok(Said::Started) => Ok(Begun::Runs { ours: true }),
        Ok(Said::Taken) => Ok(Begun::Lost),
        Ok(Said::Failed { message, hint }) => {
            let error = Error::failed(message);
            Err(match hint {
                Some(hint) => error.hint(hint),
                None => error,
            })
        }
        Err(_) if place.state()?.is_some() => Ok(Begun::Lost),
        Err(_) => Err(Error::failed(format!(
            "the supervisor of {} ended before it started the command",
            request.key
        ))
        .hint("check the free memory of the host and its kernel log")),
    }
}

/// Number of runs to keep.
const KEPT: usize = 200;
/// Number of extra runs that triggers removal, so that not every start examines all of them.
const SLACK: usize = 20;

/// Keeps the newest runs in `runs`. Running ones and `ours` are never removed. Best effort: a
/// failure to remove old runs does not prevent a command from starting.
pub(super) fn sweep(runs: &Path, ours: &Path) {
    let Ok(entries) = std::fs::read_dir(runs) else {
        return;
    };
    let mut all: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            Some((modified.ok()?, entry.path()))
        })
        .filter(|(_, path)| path != ours)
        .collect();
    if all.len() < KEPT + SLACK {
        return;
    }
    all.sort();
    for (_, path) in all.iter().take(all.len() - KEPT) {
        let place = Place::at(path);
        let (Ok(Some(_start)), Ok(Some(_alive))) = (place.try_lock_start(), place.try_lock_alive())
        else {
            continue;
        };
        let _ = remove_tree(path);
    }
}
