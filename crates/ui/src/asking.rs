//! For tests of views: a question in the middle of a run, as a host that needs a password asks it. Must not
//! know what runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Ui;
use imgctl_journal::event::{Event, Listener};

/// Passes events on, and asks a question after some of them.
struct Asking<'a> {
    listener: &'a dyn Listener,
    ui: &'a Ui,
    /// Number of steps until then; 0: no question.
    left: AtomicU64,
}

impl Ui {
    /// Passes events on to `listener`, and asks a question when `after` steps have ended.
    pub fn asking<'a>(
        &'a self,
        listener: &'a dyn Listener,
        after: Option<u64>,
    ) -> impl Listener + 'a {
        Asking { listener, ui: self, left: after.unwrap_or(0).into() }
    }
}

impl Listener for Asking<'_> {
    fn event(&self, event: &Event) {
        self.listener.event(event);
        if matches!(event, Event::StepEnd { .. }) {
            let next = |left: u64| left.checked_sub(1);
            if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(1) {
                // The answer does not matter.
                drop(self.ui.confirm("Go on?"));
            }
        }
    }
}
