//! Full-screen views: when they open, when they are drawn, and what becomes of them when the window
//! changes, the process is suspended, or it panics. Must not know what a view shows.
//!
//! Only changes are drawn, and the clock once a second.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use ratatui_core::buffer::Buffer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::Terminal;
use imgctl_base::error::{IoContext, Result};

/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(100);
/// Time after which a frame is drawn even if nothing has changed: views show how long things take.
const CLOCK: Duration = Duration::from_secs(1);
const CTRL_L: u8 = 0x0c;

/// What fills the screen.
pub(crate) trait View: Send + Sync {
    /// Draws the state at `now`. `recent` are the last lines that wait for the end of the view; they are
    /// foreign text.
    fn draw(&self, buffer: &mut Buffer, recent: &VecDeque<String>, now: Instant);

    /// Takes a key that was pressed.
    fn key(&self, _key: u8) {}
}

/// The terminal's full-screen mode, for one view at a time.
#[derive(Clone)]
pub(crate) struct Screen(Arc<Shared>);

struct Shared {
    terminal: Arc<Terminal>,
    wanted: Mutex<Option<Wanted>>,
    has_changed: AtomicBool,
    wake: Notify,
}

/// A view that is open.
struct Wanted {
    view: Arc<dyn View>,
    /// When to enter: a view that is over at once must not flash.
    from: Instant,
    /// The last frame.
    drawn: Option<Instant>,
}

impl Screen {
    /// Starts a thread, which also handles SIGTSTP for the rest of the process's lifetime.
    pub(crate) fn start(terminal: Arc<Terminal>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "cannot draw on the whole screen".to_owned())?;
        let of_panics = Arc::downgrade(&terminal);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some(terminal) = of_panics.upgrade() {
                terminal.rescue();
            }
            before(panic);
        }));
        let shared = Arc::new(Shared {
            terminal,
            wanted: Mutex::default(),
            has_changed: AtomicBool::new(false),
            wake: Notify::new(),
        });
        let drawing = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || runtime.block_on(drawing.draw_always()))
            .doing(|| "cannot start a thread".to_owned())?;
        Ok(Self(shared))
    }

    /// Shows `view` from now on, or after a while.
    pub(crate) fn open(&self, view: Arc<dyn View>, after: Duration) {
        *self.0.lock() = Some(Wanted { view, from: Instant::now() + after, drawn: None });
        self.0.wake.notify_one();
    }

    /// Tells that the state of the view is another one. Cheap.
    pub(crate) fn changed(&self) {
        if !self.0.has_changed.swap(true, Ordering::AcqRel) {
            self.0.wake.notify_one();
        }
    }

    /// Ends the view; the normal screen is back when this returns.
    pub(crate) fn close(&self) {
        let mut wanted = self.0.lock();
        *wanted = None;
        self.0.terminal.leave();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn draw_always(&self) {
        let on = |signum: Signal| signal(SignalKind::from_raw(signum as i32));
        // A signal that cannot be handled keeps its usual effect.
        let (mut stop, mut goes_on) = (on(Signal::SIGTSTP).ok(), on(Signal::SIGCONT).ok());
        let mut resize = on(Signal::SIGWINCH).ok();
        let has_keys = std::io::stdin().is_terminal();
        let mut look = tokio::time::interval(FRAME);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.due();
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(due) => {}
                () = next(&mut stop) => self.suspend(),
                () = next(&mut goes_on) => {}
                () = next(&mut resize) => self.has_changed.store(true, Ordering::Release),
                _ = look.tick(), if has_keys && self.lock().is_some() => self.press(&self.keys()),
            }
            self.step(Instant::now());
        }
    }

    /// Returns when there is something to do without being woken.
    fn due(&self) -> Option<Instant> {
        let wanted = self.lock();
        let wanted = wanted.as_ref()?;
        Some(match wanted.drawn {
            None => wanted.from,
            Some(drawn) if self.has_changed.load(Ordering::Acquire) => drawn + FRAME,
            Some(drawn) => drawn + CLOCK,
        })
    }

    /// Gives the terminal back and stops this process, until somebody has it continue.
    fn suspend(&self) {
        if let Some(wanted) = self.lock().as_mut() {
            wanted.drawn = None;
            self.terminal.leave();
        }
        // To this thread: it does not go on before the process has stopped.
        let _ = raise(Signal::SIGSTOP);
    }

    /// Does what is due.
    fn step(&self, now: Instant) {
        let mut wanted = self.lock();
        let Some(wanted) = wanted.as_mut().filter(|wanted| now >= wanted.from) else { return };
        let has_changed = self.has_changed.load(Ordering::Acquire);
        let pause = if has_changed { FRAME } else { CLOCK };
        if wanted.drawn.is_some_and(|drawn| now < drawn + pause) {
            return;
        }
        wanted.drawn = Some(now);
        self.has_changed.store(false, Ordering::Release);
        // Also after a suspension or a question, as soon as the terminal is free again.
        if self.terminal.enter() {
            let view = &wanted.view;
            self.terminal.paint(&mut |buffer, recent| view.draw(buffer, recent, now));
        }
    }

    /// Returns the keys that were pressed for a view. With one, the terminal's modes have this not wait.
    fn keys(&self) -> Vec<u8> {
        let mut bytes = [0; 64];
        let read = if self.terminal.has_view() {
            rustix::io::read(rustix::stdio::stdin(), &mut bytes).unwrap_or(0)
        } else {
            0
        };
        bytes[..read].to_vec()
    }

    fn press(&self, keys: &[u8]) {
        let view = self.lock().as_ref().map(|wanted| Arc::clone(&wanted.view));
        for key in keys {
            match *key {
                CTRL_L => {
                    self.terminal.redraw();
                    self.has_changed.store(true, Ordering::Release);
                }
                key => view.iter().for_each(|view| view.key(key)),
            }
        }
    }
}

/// Waits for a signal; forever without a handler.
async fn next(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
