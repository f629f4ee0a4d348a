//! What `--report` of a verb on clusters asks for: a page of its plan, or of its run. Must not know how it
//! is written.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use imgctl_base::error::{Error, Result};
use imgctl_journal::event::{Event, Listener};

/// The report that is asked for, if any. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct RequestedReport(Arc<Mutex<Requested>>);

/// What is known of it so far.
#[derive(Default)]
pub(crate) struct Requested {
    pub(crate) path: Option<PathBuf>,
    /// Cluster and journal of the last run.
    pub(crate) run: Option<(String, String)>,
    pub(crate) has_plan: bool,
}

impl RequestedReport {
    /// Asks for a report. Fails at once if the file cannot be written: the run may take an hour.
    pub(crate) fn request(&self, path: &Path) -> Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if directory.is_some_and(|directory| !directory.is_dir()) || path.is_dir() {
            return Err(Error::usage(format!("--report cannot write {}", path.display()))
                .hint("name a file in a directory that exists"));
        }
        self.lock().path = Some(path.to_owned());
        Ok(())
    }

    /// Returns the file that is asked for.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.lock().path.clone()
    }

    /// Records that the page of a plan is written.
    pub(crate) fn plan_is_written(&self) {
        self.lock().has_plan = true;
    }

    /// Records the run that the requested report is about.
    pub(crate) fn run_begins(&self, cluster: &str, journal: &str) {
        self.lock().run = Some((cluster.to_owned(), journal.to_owned()));
    }

    /// Takes what is known; nothing is asked for any more.
    pub(crate) fn take(&self) -> Requested {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Requested> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes events on, and remembers the run that a report is asked for.
pub(crate) struct Noting<'a> {
    pub(crate) listener: Box<dyn Listener + 'a>,
    pub(crate) report: RequestedReport,
}

impl Listener for Noting<'_> {
    fn event(&self, event: &Event) {
        if let Event::Start { journal, cluster, .. } = event {
            self.report.run_begins(cluster, journal);
        }
        self.listener.event(event);
    }
}
