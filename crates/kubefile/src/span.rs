//! Places in a Kubefile, and the mapping from a folded instruction to its source.
//!
//! An instruction may span several lines; the parser works on the folded line. A [`LineMap`]
//! records the source of each piece, so a caret can point at the exact word.

/// A range of the source. Lines and columns count from 1, columns in characters; the end is
/// exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub line: usize,
    pub column: usize,
    pub(crate) end_line: usize,
    pub(crate) end_column: usize,
}

impl Span {}

/// The part of a folded line that comes from one physical line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// Byte offset in the folded line at which this piece starts.
    at: usize,
    line: usize,
    column: usize,
}

/// Source positions of the pieces of a folded line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineMap {
    pieces: Vec<Piece>,
}

impl LineMap {
    /// Records that the text from byte `at` of the folded line on comes from `line`, `column`.
    pub fn push(&mut self, at: usize, line: usize, column: usize) {
        self.pieces.push(Piece { at, line, column });
    }

    /// Returns the place of byte range `start..end` of the folded line `text`.
    pub(crate) fn locate(&self, text: &str, start: usize, end: usize) -> Span {
        let (line, column) = self.place(text, start);
        let (end_line, end_column) = if end > start {
            // The position after the last character, not the start of the next piece.
            let last = floor_boundary(text, end - 1);
            let (line, column) = self.place(text, last);
            (line, column + 1)
        } else {
            (line, column + 1)
        };
        Span { line, column, end_line, end_column }
    }

    /// Returns the map of the folded line's tail, starting at byte `start`.
    pub(super) fn tail(&self, text: &str, start: usize) -> LineMap {
        let (line, column) = self.place(text, start);
        let mut tail = LineMap::default();
        tail.push(0, line, column);
        for piece in self.pieces.iter().filter(|piece| piece.at > start) {
            tail.push(piece.at - start, piece.line, piece.column);
        }
        tail
    }

    fn place(&self, text: &str, at: usize) -> (usize, usize) {
        let at = floor_boundary(text, at.min(text.len()));
        let index = self.pieces.partition_point(|piece| piece.at <= at);
        match index.checked_sub(1).and_then(|i| self.pieces.get(i)) {
            Some(piece) => {
                let between = text.get(piece.at..at).unwrap_or_default();
                (piece.line, piece.column + between.chars().count())
            }
            None => (1, 1),
        }
    }
}

fn floor_boundary(text: &str, mut at: usize) -> usize {
    while at > 0 && !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
