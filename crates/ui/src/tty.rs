//! The terminal that stderr is: its size, its modes, whose turn it is. Must not write to it.

use std::io;

use ratatui_core::layout::Size;
use rustix::stdio::stderr;
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// The smallest terminal that a full-screen view opens on, in columns and rows.
const SMALLEST: Size = Size { width: 20, height: 5 };

/// Returns the size in columns and rows; `None` if stderr is no terminal or does not know its size.
pub(super) fn size() -> Option<Size> {
    let size = termios::tcgetwinsize(stderr()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| Size::new(size.ws_col, size.ws_row))
}

/// Returns whether a full-screen view fits.
pub(super) fn is_large_enough() -> bool {
    size().is_some_and(|size| size.width >= SMALLEST.width && size.height >= SMALLEST.height)
}

/// Returns whether this process may change the terminal: it is not in the background of its shell.
pub(super) fn is_ours() -> bool {
    termios::tcgetpgrp(stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// The modes that a full-screen view needs, until this value is dropped: keys are neither echoed nor
/// kept until the end of a line. Ctrl-C and Ctrl-Z remain signals.
pub(super) struct Modes(Termios);

impl Modes {
    pub(super) fn set() -> io::Result<Self> {
        let before = termios::tcgetattr(stderr())?;
        let mut modes = before.clone();
        modes.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        // Ctrl-S would stop the view, and the run with it.
        modes.input_modes.remove(InputModes::IXON);
        // A read returns what there is; zero turns Ctrl-\ off, which would leave the view on the screen.
        for code in [SpecialCodeIndex::VMIN, SpecialCodeIndex::VTIME, SpecialCodeIndex::VQUIT] {
            modes.special_codes[code] = 0;
        }
        termios::tcsetattr(stderr(), OptionalActions::Drain, &modes)?;
        Ok(Self(before))
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(stderr(), OptionalActions::Drain, &self.0);
    }
}
