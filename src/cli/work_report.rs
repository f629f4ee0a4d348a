//! The last output line of a verb that changes a cluster: the number of steps it ran.

use crate::cli::context::Context;
use crate::ui::events::JsonEvents;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::event::{Event, Listener as _, Outcome};
use imgctl_cluster::pipeline::executor::Summary;

/// Shows the summary of a run; JSON events have already shown it, unless there was nothing to do.
pub(crate) fn report(summary: &Summary, cluster: &str, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        if summary.journal.is_empty() {
            JsonEvents::default().event(&Event::End {
                outcome: Outcome::Done,
                done: 0,
                skipped: 0,
                failed: 0,
                duration_ms: 0,
                journal: String::new(),
            });
        }
        return Ok(());
    }
    if summary.done == 0 {
        return context
            .ui
            .line(&format!("cluster {cluster}: nothing to do, every host is up to date"));
    }
    context.ui.line(&format!(
        "cluster {cluster}: {} steps done{}",
        summary.done,
        match summary.skipped {
            0 => String::new(),
            skipped => format!(", {skipped} done before"),
        }
    ))
}
