//! A file that is read while it is still being written: a blob on its way through a cache.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

/// How far the writer has come.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: u64,
    verified: bool,
    failed: bool,
}

impl Growing {
    /// Says that `written` bytes are there now.
    pub(crate) fn grow(&self, written: u64) {
        self.change(|state| state.written = written);
    }

    /// Says that all are there and have the right digest.
    pub(crate) fn finish(&self) {
        self.change(|state| state.verified = true);
    }

    /// Says that the rest will not come.
    pub(crate) fn fail(&self) {
        self.change(|state| state.failed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for bytes behind `at` and tells up to where they are there. The last one of `size` is
    /// held back until the digest is known to be right: nobody takes a wrong blob for a whole one.
    pub(super) fn wait(&self, at: u64, size: u64) -> io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let readable = match state.verified {
                true => size,
                false => state.written.min(size.saturating_sub(1)),
            };
            if readable > at || (state.verified && at >= size) {
                return Ok(readable);
            }
            if state.failed {
                return Err(io::Error::other("the blob could not be fetched"));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_byte_waits_for_the_digest() {
        let growing = Arc::new(Growing::default());
        growing.grow(10);
        assert_eq!(growing.wait(0, 10).unwrap(), 9);
        let reader = std::thread::spawn({
            let growing = Arc::clone(&growing);
            move || growing.wait(9, 10)
        });
        growing.finish();
        assert_eq!(reader.join().unwrap().unwrap(), 10);
        let broken = Growing::default();
        broken.grow(4);
        broken.fail();
        assert_eq!(broken.wait(3, 10).unwrap(), 4);
        assert!(broken.wait(4, 10).is_err());
    }
}
