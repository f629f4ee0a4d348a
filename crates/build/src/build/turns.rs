//! Steps that are equal, in stages, platforms or builds that run side by side, are executed once: the first
//! has the turn, the others wait for its result. Must not know what a step is.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The steps of all builds that share this value.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: HashSet<String>,
    made: HashSet<String>,
}

/// The right to execute the step of one key, until it is dropped.
pub(super) struct Turn<'a> {
    shared: &'a Shared,
    key: &'a str,
    /// The step has been executed under this key before.
    pub(super) is_made: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// Waits until nobody executes the step of `key`. Whoever has a turn must not wait for another one.
    pub(super) fn take<'a>(&'a self, key: &'a str) -> Turn<'a> {
        let shared = &*self.0;
        let mut state = shared.lock();
        while !state.running.insert(key.to_owned()) {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { shared, key, is_made: state.made.contains(key) }
    }
}

impl Turn<'_> {
    /// Says that the step has been executed and its result is recorded.
    pub(super) fn made(self) {
        self.shared.lock().made.insert(self.key.to_owned());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.lock().running.remove(self.key);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn equal_steps_wait_for_each_other_and_others_do_not() {
        let turns = Turns::default();
        let (running, executed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let other = turns.take("other");
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    let turn = turns.take("step");
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::sleep(Duration::from_millis(2));
                    if !turn.is_made {
                        executed.fetch_add(1, Ordering::SeqCst);
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    turn.made();
                });
            }
        });
        drop(other);
        assert_eq!(executed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_step_that_failed_is_executed_by_the_next_one() {
        let turns = Turns::default();
        drop(turns.take("step"));
        assert!(!turns.take("step").is_made);
    }
}
