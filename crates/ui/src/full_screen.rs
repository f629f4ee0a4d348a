//! The terminal while a view has all of it: the frames, and the lines that are held back until the view
//! ends. Dropping it gives the terminal back. Must not know when to draw, nor what.

use std::collections::VecDeque;
use std::io;

use ratatui_core::buffer::Buffer;
use ratatui_core::terminal::Terminal as Frames;

use crate::ansi::{Ansi, ENTER, LEAVE};
use crate::{edge::frame, tty::Modes};

/// Maximum size of the lines that are held back, in bytes; the oldest make room.
const MOST_HELD: usize = 4 << 20;
/// Number of recent lines that a view can show.
const MOST_RECENT: usize = 64;
/// Maximum number of characters of a recent line.
const LONGEST_RECENT: usize = 500;

/// The alternate screen of the terminal.
pub(super) struct FullScreen {
    frames: Frames<Ansi>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Number of writes that had to make room.
    dropped: usize,
    recent: VecDeque<String>,
    /// Restores the modes last.
    _modes: Modes,
}

/// What was written meanwhile.
pub(super) struct Held {
    pub(super) to_stdout: bool,
    pub(super) bytes: Vec<u8>,
}

impl FullScreen {
    /// Takes the whole terminal.
    pub(super) fn enter() -> io::Result<Self> {
        let modes = Modes::set()?;
        frame(ENTER.as_bytes())?;
        Ok(Self {
            frames: Frames::new(Ansi::default())?,
            held: VecDeque::new(),
            held_bytes: 0,
            dropped: 0,
            recent: VecDeque::new(),
            _modes: modes,
        })
    }

    /// Draws one frame; only cells that changed are written. `draw` gets the recent lines, too.
    pub(super) fn paint(&mut self, draw: &mut dyn FnMut(&mut Buffer, &VecDeque<String>)) {
        let recent = &self.recent;
        // There is nowhere to report a failure: the terminal may be gone.
        let _ = self.frames.draw(|frame| draw(frame.buffer_mut(), recent));
    }

    /// Draws the next frame as if the screen were empty.
    pub(super) fn redraw(&mut self) {
        let _ = self.frames.clear();
    }

    /// Keeps whole lines for the end.
    pub(super) fn hold(&mut self, bytes: &[u8], to_stdout: bool) {
        for line in String::from_utf8_lossy(bytes).lines() {
            self.recent.push_back(plain(line));
        }
        while self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
        self.held_bytes += bytes.len();
        self.held.push_back(Held { to_stdout, bytes: bytes.to_vec() });
        while self.held_bytes > MOST_HELD
            && let Some(oldest) = self.held.pop_front()
        {
            self.held_bytes -= oldest.bytes.len();
            self.dropped += 1;
        }
    }

    /// Gives the terminal back; returns what was held back.
    pub(super) fn leave(mut self) -> VecDeque<Held> {
        if self.dropped > 0 {
            let text = format!("note: {} earlier lines are left out here\n", self.dropped);
            self.held.push_front(Held { to_stdout: false, bytes: text.into_bytes() });
        }
        std::mem::take(&mut self.held)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        let _ = frame(LEAVE.as_bytes());
    }
}

/// Returns the beginning of a line without colours, which log records have.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("\x1b[") {
        let (before, sequence) = rest.split_at(start);
        let parameters = sequence[2..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        text.push_str(before);
        match parameters.strip_prefix('m') {
            Some(behind) => rest = behind,
            // Not a colour: the view shows it as what it is.
            None => {
                text.push_str("\x1b[");
                rest = &sequence[2..];
            }
        }
    }
    text.push_str(rest);
    match text.char_indices().nth(LONGEST_RECENT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_other_sequences_stay_to_be_escaped() {
        assert_eq!(plain("\x1b[1;33m WARN\x1b[0m x"), " WARN x");
        assert_eq!(plain("a\x1b[2Jb\x1b["), "a\x1b[2Jb\x1b[");
        assert_eq!(plain(&"é".repeat(900)).chars().count(), LONGEST_RECENT);
    }
}
