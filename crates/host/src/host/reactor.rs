//! The tokio runtimes for all communication with hosts: one for what waits and for its time limits,
//! one for the sessions of SSH. Must not depend on what runs on them.
//!
//! Callers are ordinary threads: they pass a future to [`block_on`] and wait. Two workers are
//! enough for a thousand connections; most of their work is encryption.

use std::future::Future;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Runtime};

use imgctl_base::error::{Error, IoContext, Result};

static REACTOR: OnceLock<Runtime> = OnceLock::new();
static SESSIONS: OnceLock<Runtime> = OnceLock::new();
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the runtime, created on first use.
pub fn reactor() -> Result<&'static Runtime> {
    made_once(&REACTOR, "hosts")
}

/// Returns the runtime of the sessions. A key exchange that computes for minutes keeps a thread of it
/// busy; time limits, which are on the other runtime, end the wait for it.
pub(super) fn sessions() -> Result<&'static Runtime> {
    made_once(&SESSIONS, "sessions")
}

fn made_once(cell: &'static OnceLock<Runtime>, name: &str) -> Result<&'static Runtime> {
    if let Some(runtime) = cell.get() {
        return Ok(runtime);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = cell.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(name)
        .enable_all()
        .build()
        .doing(|| "cannot start the threads that talk to hosts".to_owned())?;
    Ok(cell.get_or_init(|| made))
}

/// Runs a future to completion on the reactor. For ordinary threads only: a call from inside the
/// reactor would deadlock and therefore returns an error.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(Error::failed(
            "a blocking call was made inside the reactor: this is a bug in imgctl",
        ));
    }
    reactor()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_end_the_wait_for_sessions_that_only_compute() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let stopped = std::sync::Arc::new(Mutex::new(stopped));
        for _ in 0..4 {
            let stopped = std::sync::Arc::clone(&stopped);
            sessions().unwrap().spawn(async move {
                // Keeps the thread, as a computation does.
                let _ = stopped.lock().unwrap().recv();
            });
        }
        let waiting = async {
            let session = sessions()?.spawn(async {});
            let limit = std::time::Duration::from_millis(50);
            Ok(tokio::time::timeout(limit, session).await.is_err())
        };
        assert!(block_on(waiting).unwrap());
        drop(stop);
    }

    #[test]
    fn a_blocking_call_inside_is_refused_and_not_a_panic() {
        let inner = block_on(async { Ok(block_on(async { Ok(1) })) }).unwrap();
        assert!(inner.is_err());
        assert_eq!(block_on(async { Ok(2) }).unwrap(), 2);
    }
}
