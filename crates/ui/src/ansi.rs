//! Writes the cells of a screen to stderr as escape sequences that every terminal of today knows (ECMA-48
//! and DEC's private modes). Must not know what the cells show, nor set the terminal's modes.

use std::io;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};

use crate::{edge, tty};

/// Alternate screen, cleared, without a cursor; and back, with the attributes as they were.
pub(super) const ENTER: &str = "\x1b[?1049h\x1b[2J\x1b[?25l";
pub(super) const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Collects a frame, which [`Backend::flush`] writes in one piece.
#[derive(Default)]
pub(super) struct Ansi {
    bytes: Vec<u8>,
}

impl Ansi {
    fn put(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn go(&mut self, x: u16, y: u16) {
        self.put(&format!("\x1b[{};{}H", y.saturating_add(1), x.saturating_add(1)));
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut style = (Color::Reset, Modifier::empty());
        let mut next = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.go(x, y);
            }
            // A wide character is followed by a jump, which is always right.
            next = Some((x.saturating_add(1), y));
            if (cell.fg, cell.modifier) != style {
                style = (cell.fg, cell.modifier);
                self.put(&rendition(cell.fg, cell.modifier));
            }
            self.put(cell.symbol());
        }
        self.put("\x1b[0m");
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.put("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.put("\x1b[?25h");
        Ok(())
    }

    /// The cursor is hidden: nothing depends on where it is.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.go(x, y);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, part: ClearType) -> io::Result<()> {
        self.put(match part {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        Ok(tty::size().unwrap_or_default())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        edge::frame(&bytes)
    }
}

/// The sequence that selects a colour and a weight; other attributes are not used.
fn rendition(colour: Color, modifier: Modifier) -> String {
    let mut codes = String::from("\x1b[0");
    for (flag, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")]
    {
        if modifier.contains(flag) {
            codes.push_str(code);
        }
    }
    codes.push_str(match colour {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Cyan => ";36",
        _ => "",
    });
    codes.push('m');
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::buffer::Buffer;
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    #[test]
    fn neighbours_need_no_movement_and_styles_end() {
        let before = Buffer::empty(Rect::new(0, 0, 8, 2));
        let mut after = before.clone();
        after.set_string(1, 0, "ab", Style::new().fg(Color::Red));
        after.set_string(0, 1, "c", Style::new().add_modifier(Modifier::BOLD));
        let mut ansi = Ansi::default();
        ansi.draw(before.diff(&after).into_iter()).unwrap();
        assert_eq!(
            String::from_utf8(ansi.bytes).unwrap(),
            "\x1b[1;2H\x1b[0;31mab\x1b[2;1H\x1b[0;1mc\x1b[0m"
        );
    }
}
