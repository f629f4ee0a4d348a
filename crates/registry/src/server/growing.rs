//! A file that is read while it is still being written: a blob that passes through a cache.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

/// Progress of the writer.
#[derive(Debug, Default)]
pub struct Growing {
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
    /// Reports that `written` bytes are available.
    pub(crate) fn grow(&self, written: u64) {
        self.change(|state| state.written = written);
    }

    /// Reports that all bytes are available and have the correct digest.
    pub fn finish(&self) {
        self.change(|state| state.verified = true);
    }

    /// Reports that the remaining bytes will not arrive.
    pub fn fail(&self) {
        self.change(|state| state.failed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for bytes after `at` and returns the offset up to which they are available. Holds back
    /// the last byte of `size` until the digest is verified, so that no client takes a corrupt blob
    /// for a complete one.
    pub(super) fn wait(&self, at: u64, size: u64) -> io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let readable =
                if state.verified { size } else { state.written.min(size.saturating_sub(1)) };
            if readable > at || (state.verified && at >= size) {
                return Ok(readable);
            }
            if state.failed {
                return Err(io::Error::other("the blob could not be fetched"));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
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
