//! Waiting for upgrade windows: a run that a closed window has paused continues when the next one
//! opens.
//!
//! Nothing is held while this waits: neither the lock of the controller nor the cluster's Lease nor a
//! connection. What keeps other changes away is that the upgrade is open.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::front_end::Announcement;
use crate::operation::Operation;
use crate::session::Session;
use crate::upgrade::resume::{Continuing, resume_in};
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_journal::interrupt::Interrupt;
use imgctl_upgrade::document::Document;
use imgctl_upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_upgrade::window::{WindowState, Windows};

/// Interval at which a waiting run reads the clock and looks for a request to pause. The clock of the
/// wall counts: it may be set, and the machine may sleep.
const TICK: Duration = Duration::from_millis(200);
/// Pause before a run that could not begin is tried again.
const BUSY: Duration = Duration::from_secs(10);

/// Continues a run that ended with `went` for as long as closed windows pause it; returns how it
/// ended otherwise. The cluster's lock must be free.
pub(crate) fn go_on(
    went: Result<bool>,
    cluster: &str,
    options: &RunOptions,
    session: &Session<'_>,
) -> Result<bool> {
    let mut went = went;
    let mut interrupt = None;
    while matches!(went, Ok(false)) && !options.dry_run {
        let Some(open) = waiting(cluster, session)? else { break };
        let interrupt = match &interrupt {
            Some(interrupt) => interrupt,
            None => {
                let new = interrupt.insert(Interrupt::gentle());
                session.front.pass_interrupts(new)?;
                &*new
            }
        };
        match wait(&open, cluster, interrupt, session)? {
            Wakes::Open => went = once(&open, cluster, interrupt, options, session),
            Wakes::Ended => break,
        }
    }
    went
}

enum Wakes {
    /// A window is open.
    Open,
    /// There is nothing to wait for any more.
    Ended,
}

/// Returns the open upgrade if it waits for a window.
fn waiting(cluster: &str, session: &Session<'_>) -> Result<Option<Document>> {
    let upgrades = UpgradeStore::of(session.state(cluster)?.files());
    let Some(open) = upgrades.open()? else { return Ok(None) };
    let is_waiting = upgrades.status(&open.id)? == Some(UpgradeStatus::Waiting);
    Ok(is_waiting.then_some(open))
}

fn wait(
    open: &Document,
    cluster: &str,
    interrupt: &Interrupt,
    session: &Session<'_>,
) -> Result<Wakes> {
    let Some(windows) = Windows::of(&open.choices.windows)? else { return Ok(Wakes::Open) };
    let state = session.state(cluster)?;
    let upgrades = UpgradeStore::of(state.files());
    let pause_file = upgrades.pause_file(&open.id)?;
    // Whoever holds the lock has taken over, and records how the upgrade goes on.
    let paused = || match state.lock(Operation::Upgrade.name(), Timestamp::now().as_second()) {
        Ok(_held) => upgrades.set_status(&open.id, UpgradeStatus::Paused),
        Err(error) if error.kind() == Kind::Busy => Ok(()),
        Err(error) => Err(error),
    };
    loop {
        if interrupt.is_asked() {
            paused()?;
            return Err(interrupted(open));
        }
        if pause_file.exists() {
            paused()?;
            session
                .front
                .say(&format!("{} is paused: run `imgctl upgrade resume` to continue", open.id));
            return Ok(Wakes::Ended);
        }
        if waiting(cluster, session)?.is_none_or(|now| now.id != open.id) {
            session.front.note(&format!("another command has continued or ended {}", open.id));
            return Ok(Wakes::Ended);
        }
        match windows.at(Timestamp::now()) {
            WindowState::Closed { .. } => std::thread::sleep(TICK),
            state => {
                session.front.announce(&Announcement::Window { document: open, state })?;
                return Ok(Wakes::Open);
            }
        }
    }
}

fn interrupted(open: &Document) -> Error {
    let what = format!("{} was interrupted while it waited for a window", open.id);
    Error::new(Kind::Interrupted, what).hint("run `imgctl upgrade resume` to wait for it again")
}

/// Runs once more, as `imgctl upgrade resume` does. While another command works on the cluster, or
/// nobody can be reached, this tries again as long as the window is open.
fn once(
    open: &Document,
    cluster: &str,
    interrupt: &Interrupt,
    options: &RunOptions,
    session: &Session<'_>,
) -> Result<bool> {
    let options = options.of_another_run();
    let mut is_told = false;
    loop {
        let work = Work::begin_asking_hosts(Operation::Upgrade, cluster, &options, session);
        let went = work.and_then(|work| {
            let upgrades = UpgradeStore::of(work.state.files());
            match upgrades.open()? {
                Some(now) if now.id == open.id => {
                    resume_in(&work, &now, &Continuing::default()).map(Some)
                }
                _ => Ok(None),
            }
        });
        match went {
            Ok(Some(is_done)) => return Ok(is_done),
            Ok(None) => {
                session.front.note(&format!("another command has ended {}", open.id));
                return Ok(false);
            }
            Err(error)
                if matches!(error.kind(), Kind::Busy | Kind::Network)
                    && waiting(cluster, session)?.is_some_and(|now| now.id == open.id) =>
            {
                if !is_told {
                    session.front.note(&format!("{error}; trying again while the window is open"));
                }
                is_told = true;
                let until = Instant::now() + BUSY;
                while Instant::now() < until {
                    if interrupt.is_asked() {
                        return Err(interrupted(open));
                    }
                    std::thread::sleep(TICK);
                }
                if Windows::of(&open.choices.windows)?
                    .is_some_and(|windows| !windows.is_open(Timestamp::now()))
                {
                    // The next window is waited for.
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
