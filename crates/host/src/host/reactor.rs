//! The single tokio runtime for all communication with hosts. Must not depend on what runs on it.
//!
//! Callers are ordinary threads: they pass a future to [`block_on`] and wait. Two workers are
//! enough for a thousand connections; most of their work is encryption.

use std::future::Future;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Runtime};

use imgctl_base::error::{Error, IoContext, Result};

static REACTOR: OnceLock<Runtime> = OnceLock::new();
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the runtime, created on first use.
pub fn reactor() -> Result<&'static Runtime> {
    if let Some(runtime) = REACTOR.get() {
        return Ok(runtime);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = REACTOR.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("hosts")
        .enable_all()
        .build()
        .doing(|| "cannot start the threads that talk to hosts".to_owned())?;
    Ok(REACTOR.get_or_init(|| made))
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
    fn a_blocking_call_inside_is_refused_and_not_a_panic() {
        let inner = block_on(async { Ok(block_on(async { Ok(1) })) }).unwrap();
        assert!(inner.is_err());
        assert_eq!(block_on(async { Ok(2) }).unwrap(), 2);
    }
}
