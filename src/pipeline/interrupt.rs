//! Whether somebody wants us to stop, and how urgently. `cli/` turns signals into this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Shared between who asks to stop and who does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicUsize>,
    now: Arc<AtomicBool>,
    /// What runs may take as long as it wants.
    patient: Arc<AtomicBool>,
    /// The first request to stop asks for a pause only.
    is_gentle: bool,
}

impl Interrupt {
    /// For what must not be cut off without need: the first request to stop lets everything that runs
    /// end, however long it takes; the second is as the first of others.
    pub(crate) fn gentle() -> Self {
        Self {
            is_gentle: true,
            ..Self::default()
        }
    }

    /// Asks once more: the first time no new step is begun, the second time running ones are
    /// ended at once.
    pub(crate) fn ask(&self) {
        if self.is_gentle && !self.patient.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            self.now.store(true, Ordering::SeqCst);
        }
    }

    /// Asks for a pause: no new step is begun, and what runs is let end, however long it takes.
    pub(crate) fn pause(&self) {
        self.patient.store(true, Ordering::SeqCst);
    }

    /// Whether nothing new is to be begun.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_hasty() || self.patient.load(Ordering::SeqCst)
    }

    /// Whether what runs is to end soon.
    pub(crate) fn is_hasty(&self) -> bool {
        self.asked.load(Ordering::SeqCst) > 0
    }

    /// Whether running work is to end now.
    pub(crate) fn is_urgent(&self) -> bool {
        self.now.load(Ordering::SeqCst)
    }

    /// The same as a flag for those that know nothing of us.
    pub(crate) fn urgent_flag(&self) -> &Arc<AtomicBool> {
        &self.now
    }

    /// The time to end of its own accord is over.
    pub(crate) fn press(&self) {
        self.now.store(true, Ordering::SeqCst);
    }
}
