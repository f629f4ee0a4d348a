//! Tables without borders, as docker prints them (columns three spaces apart), and how sizes, ages
//! and texts look in them.

use std::fmt::Display;

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table as Grid};

pub use imgctl_base::size::human;
use imgctl_base::text::{Lines, is_unsafe};

/// Formats a number of things: `1 host`, `2 hosts`; `thing` is in the singular.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    if number == N::from(1) {
        return format!("1 {thing}");
    }
    match thing.strip_suffix('y') {
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {thing}s"),
    }
}

/// Number of spaces between columns.
const GAP: u16 = 3;
/// Minimum width of a last column that is wrapped, and maximum width of a word in it: digests and paths stay
/// whole, so that they can be copied.
const PROSE: usize = 18;

/// Rows below a heading.
pub struct Table {
    headings: Vec<String>,
    right: Vec<usize>,
    rows: Vec<Vec<String>>,
    columns: Option<usize>,
}

impl Table {
    /// Creates an empty table.
    pub fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
            right: Vec::new(),
            rows: Vec::new(),
            columns: None,
        }
    }

    /// Keeps the table within the width of a terminal, in columns, if that is known.
    pub fn within(mut self, columns: Option<usize>) -> Self {
        self.columns = columns;
        self
    }

    /// Right-aligns the column `index`.
    pub fn right(mut self, index: usize) -> Self {
        self.right.push(index);
        self
    }

    /// Adds a row; it must have as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the table as text, with a newline after each line; without the heading unless
    /// requested. Within a width, sentences in the last column continue below.
    pub fn render(&self, heading: bool) -> Lines {
        let mut grid = Grid::new();
        grid.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if heading {
            grid.add_row(self.headings.iter().map(Cell::new));
        }
        for row in &self.rows {
            grid.add_row(row.iter().map(|cell| Cell::new(one_line(cell))));
        }
        if grid.row_count() == 0 {
            return Lines::default();
        }
        for (index, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((0, GAP));
            if self.right.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let widths = grid.column_max_content_widths();
        if let (Some(columns), [others @ .., last]) = (self.columns, &widths[..]) {
            let gap = usize::from(GAP);
            let left: usize = others.iter().map(|width| usize::from(*width) + gap).sum();
            let words =
                self.rows.iter().filter_map(|row| row.last()).flat_map(|cell| cell.split(' '));
            let is_prose = words.map(|word| word.chars().count()).max() <= Some(PROSE);
            if left + usize::from(*last) > columns && left + PROSE <= columns && is_prose {
                let width = u16::try_from(columns + gap).unwrap_or(u16::MAX);
                grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
                for column in grid.column_iter_mut().take(others.len()) {
                    column.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
        grid.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Cells contain names and commands from untrusted images: removes newlines, escape sequences and
/// characters that hide or reorder others.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if is_unsafe(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Truncates `text` to `width` characters, with an ellipsis if it was longer.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Formats the time between `then` and `now`, both in seconds since 1970.
pub fn ago(then: i64, now: i64) -> String {
    let Some(seconds) = now.checked_sub(then).filter(|seconds| *seconds >= 0) else {
        return "in the future".to_owned();
    };
    let minutes = seconds / 60;
    let hours = (seconds + 1800) / 3600;
    match seconds {
        0 => "Less than a second ago".to_owned(),
        1 => "1 second ago".to_owned(),
        2..60 => format!("{seconds} seconds ago"),
        60..120 => "About a minute ago".to_owned(),
        120..3600 => format!("{minutes} minutes ago"),
        _ if hours == 1 => "About an hour ago".to_owned(),
        _ if hours < 48 => format!("{hours} hours ago"),
        _ if hours < 24 * 14 => format!("{} days ago", hours / 24),
        _ if hours < 24 * 60 => format!("{} weeks ago", hours / 24 / 7),
        _ if hours < 24 * 365 * 2 => format!("{} months ago", hours / 24 / 30),
        _ => format!("{} years ago", hours / 24 / 365),
    }
}

/// Returns the current time, in seconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
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
            table.render(true).as_str(),
            "NAME               SIZE\netcd            1.00 MB\na\\u{1b}[31m b       9 B\n"
        );
        assert!(Table::new(&["X"]).render(false).is_empty());
        assert_eq!(one_line("a\u{202e}b\u{9b}2J"), "a\\u{202e}b\\u{9b}2J");
    }

    #[test]
    fn sentences_continue_below_on_a_narrow_terminal() {
        let rendered = |cells: &[[&str; 2]], columns| {
            let mut table = Table::new(&["NAME", "WHAT"]).within(columns);
            for row in cells {
                table.row(row.map(str::to_owned).to_vec());
            }
            table.render(true).as_str().to_owned()
        };
        let cluster = ["k3s", "a cluster of few parts, for edges and single hosts"];
        assert_eq!(rendered(&[cluster], Some(80)).lines().count(), 2);
        assert_eq!(
            rendered(&[cluster], Some(34)),
            "NAME   WHAT\nk3s    a cluster of few parts, for\n       edges and single hosts\n"
        );
        // A digest can still be copied.
        let digest = format!("sha256:{}", "0".repeat(64));
        let rows = [cluster, ["x", &digest]];
        assert_eq!(rendered(&rows, Some(34)), rendered(&rows, None));
    }

    #[test]
    fn cutting_counts_characters() {
        assert_eq!(cut("über", 4), "über");
        assert_eq!(cut("überall", 4), "übe…");
    }

    #[test]
    fn dockers_words() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, text) in [
            (0, "Less than a second ago"),
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (61, "About a minute ago"),
            (45 * 60, "45 minutes ago"),
            (HOUR + 60, "About an hour ago"),
            (3 * HOUR, "3 hours ago"),
            (3 * DAY, "3 days ago"),
            (15 * DAY, "2 weeks ago"),
            (90 * DAY, "3 months ago"),
            (800 * DAY, "2 years ago"),
            (-5, "in the future"),
        ] {
            assert_eq!(ago(10_000, 10_000 + seconds), text);
        }
        assert_eq!(ago(i64::MIN, i64::MAX), "in the future");
    }
}
