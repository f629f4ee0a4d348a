//! Uploads in progress. Each upload serves one request at a time. Idle uploads are closed; their
//! bytes stay on disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;

use crate::server::backend::UploadSession;

/// Time without a request after which an upload is closed.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum number of open uploads. Above this limit, idle uploads are closed early.
const MAX_OPEN: usize = 1024;

/// The upload, or `None` after it was finished or canceled.
pub(super) type Slot = Option<Box<dyn UploadSession>>;
/// Exclusive lock on one upload.
pub(super) type Held = OwnedMutexGuard<Slot>;

#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<String, Session>>,
}

struct Session {
    slot: Arc<tokio::sync::Mutex<Slot>>,
    used: Instant,
}

fn key(repository: &str, id: &str) -> String {
    format!("{repository}:{id}")
}

impl Sessions {
    /// Registers and locks an upload; returns `None` if another request already has it.
    pub(super) fn open(&self, repository: &str, upload: Box<dyn UploadSession>) -> Option<Held> {
        let key = key(repository, upload.id());
        let slot = Arc::new(tokio::sync::Mutex::new(Some(upload)));
        let held = Arc::clone(&slot).try_lock_owned().ok();
        let used = Instant::now();
        if let Ok(mut open) = self.open.lock() {
            if open.len() >= MAX_OPEN {
                close_idle(&mut open, Duration::ZERO);
            }
            if open.contains_key(&key) {
                return None;
            }
            open.insert(key, Session { slot, used });
        }
        held
    }

    /// Returns the slot of an open upload.
    pub(super) fn find(&self, repository: &str, id: &str) -> Option<Arc<tokio::sync::Mutex<Slot>>> {
        let mut open = self.open.lock().ok()?;
        let session = open.get_mut(&key(repository, id))?;
        session.used = Instant::now();
        Some(Arc::clone(&session.slot))
    }

    /// Removes a finished upload.
    pub(super) fn close(&self, repository: &str, id: &str) {
        if let Ok(mut open) = self.open.lock() {
            open.remove(&key(repository, id));
        }
    }

    /// Closes idle uploads.
    pub(super) fn tidy(&self) {
        if let Ok(mut open) = self.open.lock() {
            close_idle(&mut open, IDLE);
        }
    }
}

fn close_idle(open: &mut HashMap<String, Session>, idle: Duration) {
    open.retain(|_, session| Arc::strong_count(&session.slot) > 1 || session.used.elapsed() < idle);
}
