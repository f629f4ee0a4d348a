//! Results that are too long to be held: written to stdout in pieces. Must not know what they are.

use std::io::{self, Write};

use crate::terminal::Terminal;
use imgctl_base::error::{Error, Result};

/// Number of bytes that are written at once.
const PIECE: usize = 64 << 10;

/// Collects pieces of a result.
pub struct Results<'a> {
    terminal: &'a Terminal,
    /// Whether the pieces are those of a JSON text.
    is_json: bool,
    piece: Vec<u8>,
    /// Why a write through [`Write`] has failed.
    failed: Option<Error>,
}

impl<'a> Results<'a> {
    /// Collects content, which a terminal gets escaped.
    pub(super) fn of_content(terminal: &'a Terminal) -> Self {
        Self { terminal, is_json: false, piece: Vec::with_capacity(2 * PIECE), failed: None }
    }

    /// Collects a JSON text; each write ends with a whole character.
    pub(super) fn of_json(terminal: &'a Terminal) -> Self {
        Self { is_json: true, ..Self::of_content(terminal) }
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() < PIECE {
            return Ok(());
        }
        let written = self.write_piece();
        self.piece.clear();
        written
    }

    /// Returns the outcome of writing: the error of stdout, if that has failed.
    pub fn check(&mut self, written: Result<()>) -> Result<()> {
        self.failed.take().map_or(written, Err)
    }

    /// Writes what is left.
    pub fn end(self) -> Result<()> {
        self.write_piece()
    }

    fn write_piece(&self) -> Result<()> {
        if self.is_json {
            self.terminal.json(&String::from_utf8_lossy(&self.piece))
        } else {
            self.terminal.content(&self.piece)
        }
    }
}

impl Write for Results<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self.add(buffer) {
            Ok(()) => Ok(buffer.len()),
            Err(error) => {
                self.failed = Some(error);
                Err(io::Error::other("stdout cannot be written"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
