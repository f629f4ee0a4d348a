//! Tables without borders, as docker prints them: columns three spaces apart.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table as Grid};

/// Rows below a heading.
pub(crate) struct Table {
    headings: Vec<String>,
    right: Vec<usize>,
    gap: u16,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
            right: Vec::new(),
            gap: 3,
            rows: Vec::new(),
        }
    }

    /// Right-aligns the column `index`.
    pub(crate) fn right(mut self, index: usize) -> Self {
        self.right.push(index);
        self
    }

    /// Separates columns by one space, as in `ls -l`.
    pub(crate) fn close(mut self) -> Self {
        self.gap = 1;
        self
    }

    /// Adds a row; it must have as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the table as text, with a newline after each line; without the heading unless
    /// requested.
    pub(crate) fn render(&self, heading: bool) -> String {
        let mut grid = Grid::new();
        grid.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if heading {
            grid.add_row(self.headings.iter().map(Cell::new));
        }
        for row in &self.rows {
            grid.add_row(row.iter().map(|cell| Cell::new(one_line(cell))));
        }
        if grid.row_count() == 0 {
            return String::new();
        }
        for (index, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((0, self.gap));
            if self.right.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        for line in grid.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Cells contain names and commands from untrusted images: removes newlines and escape sequences.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Truncates `text` to `width` characters, with an ellipsis if it was longer.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let mut table = Table::new(&["NAME", "SIZE"]).right(1);
        table.row(vec!["etcd".into(), "1.00 MB".into()]);
        table.row(vec!["a\u{1b}[31m\nb".into(), "9 B".into()]);
        assert_eq!(
            table.render(true),
            "NAME               SIZE\netcd            1.00 MB\na\\u{1b}[31m b       9 B\n"
        );
        assert_eq!(Table::new(&["X"]).render(false), "");
    }

    #[test]
    fn cutting_counts_characters() {
        assert_eq!(cut("über", 4), "über");
        assert_eq!(cut("überall", 4), "übe…");
    }
}
