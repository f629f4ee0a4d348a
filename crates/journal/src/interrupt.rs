//! Whether a stop is requested, and how urgently. Front ends turn signals into requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Returns whether hosts may be begun now.
type Admission = dyn Fn() -> bool + Send + Sync;

/// Shared between the code that requests a stop and the code that stops.
#[derive(Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicUsize>,
    now: Arc<AtomicBool>,
    /// Running steps may take as much time as they need.
    patient: Arc<AtomicBool>,
    /// The first request to stop is only a request to pause.
    is_gentle: bool,
    /// `None`: always.
    admission: Option<Arc<Admission>>,
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("asked", &self.asked)
            .field("patient", &self.patient)
            .finish_non_exhaustive()
    }
}

impl Interrupt {
    /// For operations that must not be cut off unnecessarily: the first request to stop lets all
    /// running steps finish, without a time limit. The second request acts like the first one
    /// otherwise.
    pub fn gentle() -> Self {
        Self { is_gentle: true, ..Self::default() }
    }

    /// Lets hosts begin only while `admits` returns `true`, in phases that wait for this
    /// (`while_admitted` of a phase). A host that has begun is finished.
    pub fn admitting(mut self, admits: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.admission = Some(Arc::new(admits));
        self
    }

    /// Returns whether hosts may be begun now.
    pub fn admits(&self) -> bool {
        self.admission.as_ref().is_none_or(|admits| admits())
    }

    /// Requests a stop. After the first request no new step starts; after the second, running steps
    /// are ended immediately.
    pub fn ask(&self) {
        if self.is_gentle && !self.patient.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            self.now.store(true, Ordering::SeqCst);
        }
    }

    /// Requests a pause: no new step starts, and running steps finish without a time limit.
    pub fn pause(&self) {
        self.patient.store(true, Ordering::SeqCst);
    }

    /// Returns whether no new step may start.
    pub fn is_asked(&self) -> bool {
        self.is_hasty() || self.patient.load(Ordering::SeqCst)
    }

    /// Returns whether running steps must end soon.
    pub fn is_hasty(&self) -> bool {
        self.asked.load(Ordering::SeqCst) > 0
    }

    /// Returns whether running steps must end now.
    pub fn is_urgent(&self) -> bool {
        self.now.load(Ordering::SeqCst)
    }

    /// Returns the same flag for code that does not depend on this type.
    pub fn urgent_flag(&self) -> &Arc<AtomicBool> {
        &self.now
    }

    /// Ends the grace period of running steps.
    pub fn press(&self) {
        self.now.store(true, Ordering::SeqCst);
    }
}
