//! A run over hosts on the whole screen: receives its events, keeps its state, and has the ordinary lines
//! ready for the normal screen, where they are read again when the run is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ratatui_core::buffer::Buffer;

use crate::canvas::Canvas;
use crate::hosts_view::HostsView;
use crate::run_draw;
use crate::run_state::RunState;
use crate::screen::{Screen, View};
use imgctl_journal::event::{Event, Listener};

/// A run that is over sooner does not take the screen.
const PATIENCE: Duration = Duration::from_millis(400);

/// Displays events on the whole screen; while that is not there, as lines and bars.
pub(crate) struct RunScreen {
    lines: HostsView,
    screen: Screen,
    view: Arc<RunView>,
    /// Smallest number of hosts for which it takes the screen.
    from_hosts: usize,
}

struct RunView {
    state: Mutex<RunState>,
    has_colours: bool,
}

impl RunScreen {
    /// Shows runs over at least `from_hosts` hosts on `screen`, other runs as `lines` alone.
    pub(super) fn new(
        lines: HostsView,
        screen: Screen,
        from_hosts: usize,
        has_colours: bool,
    ) -> Self {
        let view = Arc::new(RunView { state: Mutex::default(), has_colours });
        Self { lines, screen, view, from_hosts }
    }
}

impl Listener for RunScreen {
    fn event(&self, event: &Event) {
        self.view.lock().take(event, Instant::now());
        match event {
            Event::Start { hosts, .. } if *hosts >= self.from_hosts => {
                self.screen.open(Arc::clone(&self.view) as Arc<dyn View>, PATIENCE);
            }
            // The summary belongs on the normal screen.
            Event::End { .. } => self.screen.close(),
            _ => self.screen.changed(),
        }
        self.lines.event(event);
    }
}

impl Drop for RunScreen {
    fn drop(&mut self) {
        self.screen.close();
    }
}

impl RunView {
    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View for RunView {
    fn draw(&self, buffer: &mut Buffer, recent: &VecDeque<String>, now: Instant) {
        run_draw::draw(&self.lock(), &mut Canvas::new(buffer, self.has_colours), recent, now);
    }
}
