//! Lines of text on a screen: tones instead of colours, widths instead of lengths, and no foreign
//! character that could leave its place.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Span;

use crate::table::one_line;

/// What a piece of text is to look like. Words carry the meaning: without colours nothing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

/// A screen to write on.
pub(super) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    has_colours: bool,
}

impl<'a> Canvas<'a> {
    pub(super) fn new(buffer: &'a mut Buffer, has_colours: bool) -> Self {
        Self { buffer, has_colours }
    }

    pub(super) fn width(&self) -> usize {
        usize::from(self.buffer.area.width)
    }

    pub(super) fn height(&self) -> usize {
        usize::from(self.buffer.area.height)
    }

    /// Writes pieces of text one after the other on line `y`, up to the end of the line.
    pub(super) fn line<T: AsRef<str>>(&mut self, y: usize, pieces: &[(Tone, T)]) {
        let mut x = 0;
        for (tone, text) in pieces {
            x += self.write(x, y, text.as_ref(), *tone);
        }
    }

    /// Writes text that ends with line `y`, unless that leaves no room for `left`.
    pub(super) fn right(&mut self, y: usize, text: &str, tone: Tone, left: usize) {
        let text = fit(text, self.width());
        let start = self.width() - width(&text);
        if start > left {
            self.write(start, y, &text, tone);
        }
    }

    /// Writes text at a place; returns its width.
    fn write(&mut self, x: usize, y: usize, text: &str, tone: Tone) -> usize {
        if x >= self.width() || y >= self.height() {
            return 0;
        }
        let text = fit(text, self.width() - x);
        let place = (u16::try_from(x).unwrap_or(0), u16::try_from(y).unwrap_or(0));
        let area = self.buffer.area;
        let style = self.style(tone);
        self.buffer.set_string(area.x + place.0, area.y + place.1, &text, style);
        width(&text)
    }

    fn style(&self, tone: Tone) -> Style {
        let colour = |colour| if self.has_colours { Style::new().fg(colour) } else { Style::new() };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Good => colour(Color::Green),
            Tone::Warning => colour(Color::Yellow),
            Tone::Bad => colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Returns the columns that printable text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns `text` as one line of at most `most` columns, with an ellipsis if something is missing.
/// Looks at no more than it needs, however long the text is.
pub(super) fn fit(text: &str, most: usize) -> String {
    let cut = text.char_indices().nth(most * 4 + 8).map_or(text.len(), |(end, _)| end);
    let line = one_line(&text[..cut]);
    if cut == text.len() && width(&line) <= most {
        return line;
    }
    let (mut fitted, mut taken) = (String::new(), 0);
    for character in line.chars() {
        let more = width(character.encode_utf8(&mut [0; 4]));
        if taken + more + 1 > most {
            break;
        }
        taken += more;
        fitted.push(character);
    }
    if most > 0 {
        fitted.push('…');
    }
    fitted
}

/// Returns how wide a column of names may be behind one of `before` columns: a third of the screen, or
/// nearly all of a narrow one.
pub(super) fn name_column(longest: usize, columns: usize, before: usize) -> usize {
    let most = if columns < 40 { columns.saturating_sub(before + 2) } else { columns / 3 };
    longest.clamp(4, most.max(4))
}

/// Returns `text` in exactly `columns` columns.
pub(super) fn column(text: &str, columns: usize) -> String {
    let mut text = fit(text, columns);
    text.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&text))));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits_whatever_it_is() {
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("a\u{202e}b\u{1b}[2J", 40), "a\\u{202e}b\\u{1b}[2J");
        assert_eq!(fit(&"x".repeat(65_536), 5), "xxxx…");
        assert_eq!(fit("a", 0), "");
        assert_eq!(column("日", 4), "日  ");
        let stacked = format!("a{}", "\u{301}".repeat(65_536));
        assert!(fit(&stacked, 5).chars().count() < 40);
    }
}
