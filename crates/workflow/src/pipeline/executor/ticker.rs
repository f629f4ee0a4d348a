//! Work in parallel to the steps: handles requests to stop and reports steps that are silent for
//! long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::pipeline::executor::Run;
use imgctl_journal::event::Event;

const INTERVAL: Duration = Duration::from_millis(100);

/// Monitors a run until it has `ended`.
pub(crate) fn tick(run: &Run<'_>, ended: &AtomicBool) {
    let mut asked: Option<Instant> = None;
    let mut announced = false;
    std::thread::scope(|scope| {
        while !ended.load(Ordering::SeqCst) {
            std::thread::park_timeout(INTERVAL);
            for watch in run.running.steps() {
                if let Some(message) = watch.mention(run.options.silence) {
                    run.listener.event(&Event::Note { host: Some(watch.host.clone()), message });
                }
            }
            if run.interrupt.is_asked() && !run.interrupt.is_hasty() && !announced {
                announced = true;
                announce_pause(run);
            }
            if !run.interrupt.is_hasty() {
                continue;
            }
            let since = *asked.get_or_insert_with(|| {
                announce(run);
                Instant::now()
            });
            if since.elapsed() >= run.options.grace {
                run.interrupt.press();
            }
            if run.interrupt.is_urgent() {
                for command in run.running.steps().iter().flat_map(|watch| watch.to_cancel()) {
                    // A host that does not answer must not delay the others.
                    scope.spawn(move || command.cancel());
                }
            }
        }
    });
}

/// Ends the ticker on drop.
pub(crate) struct Ends<'a> {
    ended: &'a AtomicBool,
    ticker: std::thread::Thread,
}

impl<'a> Ends<'a> {
    pub(super) fn new(ended: &'a AtomicBool, ticker: &std::thread::Thread) -> Self {
        Self { ended, ticker: ticker.clone() }
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.ticker.unpark();
    }
}

fn announce_pause(run: &Run<'_>) {
    run.listener.event(&Event::Note {
        host: None,
        message: format!(
            "stopping: no new steps start; waiting for {} running steps without a limit (a second \
             Ctrl-C gives them {} s)",
            run.running.steps().len(),
            run.options.grace.as_secs()
        ),
    });
}

fn announce(run: &Run<'_>) {
    let running = run.running.steps().len();
    run.listener.event(&Event::Note {
        host: None,
        message: match running {
            0 => "stopping: no new steps start".to_owned(),
            _ => format!(
                "stopping: no new steps start; {running} running steps have {} s to finish (a \
                 second Ctrl-C ends them immediately)",
                run.options.grace.as_secs()
            ),
        },
    });
}
