//! The files of an image: places for the treemap and the search, which the script fills in, and tables
//! of what is largest for readers without it.

use maud::{Markup, html};

use crate::model::image::{FileTree, ImageReport};
use crate::text::{count, shown};
use crate::views::image::{kind_class, meter};
use crate::views::parts::{code, headings, nothing, table};
use imgctl_base::size::human;

/// Number of rows of the tables.
const ROWS: usize = 25;

pub(super) fn body(files: &FileTree, report: &ImageReport) -> Markup {
    if files.names.len() < 2 {
        return nothing("No files are listed.");
    }
    let totals = files.totals();
    let mut top: Vec<usize> =
        (1..files.names.len()).filter(|file| files.parents[*file] == 0).collect();
    top.sort_by_key(|file| std::cmp::Reverse(totals[*file]));
    let mut largest: Vec<usize> =
        (1..files.names.len()).filter(|file| files.types.as_bytes()[*file] == b'f').collect();
    let order = |file: &usize| (std::cmp::Reverse(files.sizes[*file]), *file);
    if largest.len() > ROWS {
        largest.select_nth_unstable_by_key(ROWS, order);
        largest.truncate(ROWS);
    }
    largest.sort_by_key(order);
    let layer = |file: usize| {
        usize::try_from(files.layers[file]).ok().and_then(|index| report.layers.get(index))
    };
    let most = top.first().map_or(0, |file| totals[*file]);
    let directories = html! {
        @for file in top.iter().take(ROWS) {
            tr {
                th scope="row" { (code(&files.names[*file])) @if files.types.as_bytes()[*file] == b'd' { "/" } }
                td.number { (human(totals[*file])) (meter(totals[*file], most, "k-other")) }
            }
        }
    };
    let single = html! {
        @for file in &largest {
            tr {
                th scope="row" { (code(&files.path(*file))) }
                td.number { (human(files.sizes[*file])) (meter(files.sizes[*file], largest.first().map_or(0, |first| files.sizes[*first]), kind_class(layer(*file).and_then(|layer| layer.kind.as_deref())))) }
                td.number { @if files.layers[*file] >= 0 { (files.layers[*file] + 1) } }
            }
        }
    };
    html! {
        @if files.omitted > 0 {
            p.quiet { "The image has very many files: the " (count(files.omitted)) " deepest and smallest are summed up in their directories." }
        }
        // Hidden until the script fills it in.
        div #explorer hidden {}
        div.columns {
            div { h3 { "At the top" } (table("Files and directories at the top", false, &headings(&["Name", "Size#"]), &directories)) }
            div { h3 { "Largest files" } (table("Largest files", false, &headings(&["File", "Size#", "Layer#"]), &single)) }
        }
        noscript { p.quiet { "With scripts, the treemap and the search show every file. The same data are in the JSON form of " (shown("imgctl report image --json")) "." } }
    }
}

impl FileTree {
    /// Returns whether the columns fit together: a page may be made from a foreign file.
    pub(crate) fn is_sound(&self) -> bool {
        let length = self.names.len();
        let is_same = [self.parents.len(), self.sizes.len(), self.layers.len(), self.types.len()];
        length > 0
            && is_same.iter().all(|other| *other == length)
            && self.types.is_ascii()
            && self.parents[0] == 0
            && (1..length).all(|file| (self.parents[file] as usize) < file)
    }

    /// Returns the content of each file, for directories with all that is below them.
    pub(crate) fn totals(&self) -> Vec<u64> {
        let mut totals = self.sizes.clone();
        for file in (1..totals.len()).rev() {
            let parent = self.parents[file] as usize;
            totals[parent] = totals[parent].saturating_add(totals[file]);
        }
        totals
    }

    /// Returns the path of a file. Hostile trees are deep: only the last part of a long path is
    /// returned.
    pub(crate) fn path(&self, file: usize) -> String {
        const DEEPEST: usize = 64;
        let mut parts = Vec::new();
        let mut at = file;
        while at != 0 && parts.len() < DEEPEST {
            parts.push(self.names[at].as_str());
            at = self.parents[at] as usize;
        }
        if at != 0 {
            parts.push("…");
        }
        parts.reverse();
        parts.join("/")
    }
}
