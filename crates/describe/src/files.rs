//! The files of an image as columns, of a bounded number.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::cut;
use imgctl_layer::{Entry, EntryKind, LayerPath, Tree};
use imgctl_report::model::image::{FileTree, Totals};
use imgctl_trust::sbom::contents::Contents;

/// Maximum number of files that are listed. A browser still draws them at once.
const MOST: usize = 200_000;
/// Maximum length of a name, in bytes: that of file systems.
const LONGEST_NAME: usize = 255;

/// Files, and sums over them.
pub(super) struct Files {
    pub(super) tree: FileTree,
    pub(super) totals: Totals,
    /// Lowest first.
    pub(super) layers: Vec<LayerSums>,
    /// Paths of files with set-user-ID or set-group-ID bits, at most [`MOST_NOTED`].
    pub(super) privileged: Vec<String>,
    /// Paths of files that every user may write, at most [`MOST_NOTED`].
    pub(super) writable: Vec<String>,
}

/// Maximum number of paths that are kept for findings.
pub(super) const MOST_NOTED: usize = 20;

/// Sums over a layer, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct LayerSums {
    /// Content of its files.
    pub(super) content: u64,
    pub(super) files: u64,
    /// Content of those that higher layers leave visible.
    pub(super) visible: u64,
}

/// A file as it is listed.
struct Row {
    path: LayerPath,
    size: u64,
    layer: i32,
    letter: char,
}

/// What decides which rows are listed, for each row. There may be millions, so nothing else is kept.
#[derive(Default)]
struct Shape {
    sizes: Vec<u64>,
    depths: Vec<u16>,
}

impl Shape {
    fn add(&mut self, row: &Row) {
        self.sizes.push(row.size);
        self.depths.push(u16::try_from(depth(&row.path)).unwrap_or(u16::MAX));
    }
}

/// Lists the merged tree of an image with `layers` layers.
pub(super) fn list(contents: &Contents<'_>, layers: usize) -> Files {
    let mut sums = vec![LayerSums::default(); layers];
    for (sum, toc) in sums.iter_mut().zip(contents.tocs()) {
        for listed in &toc.entries {
            if let EntryKind::File { size } = listed.entry.kind {
                sum.content = sum.content.saturating_add(size);
                sum.files += 1;
            }
        }
    }
    let mut totals = Totals::default();
    let (mut privileged, mut writable) = (Vec::new(), Vec::new());
    let mut shape = Shape::default();
    for (row, entry) in rows(contents.tree()) {
        match row.letter {
            'f' => {
                totals.files += 1;
                totals.content = totals.content.saturating_add(row.size);
                if let Some(sum) = usize::try_from(row.layer).ok().and_then(|at| sums.get_mut(at)) {
                    sum.visible = sum.visible.saturating_add(row.size);
                }
                if entry.mode & 0o6000 != 0 && privileged.len() < MOST_NOTED {
                    privileged.push(cut(&row.path.to_string(), 4 * LONGEST_NAME));
                }
                if entry.mode & 0o002 != 0 && writable.len() < MOST_NOTED {
                    writable.push(cut(&row.path.to_string(), 4 * LONGEST_NAME));
                }
            }
            'd' => totals.directories += 1,
            _ => totals.other += 1,
        }
        shape.add(&row);
    }
    let kept = kept(&shape, MOST);
    let tree = columns(rows(contents.tree()).map(|(row, _)| row), &kept);
    Files { tree, totals, layers: sums, privileged, writable }
}

/// Returns the files of a tree with their entries, each directory before its content.
fn rows(tree: &Tree) -> impl Iterator<Item = (Row, &Entry)> {
    // Whether a file with several names has been seen.
    let mut linked: HashMap<_, _> = tree.linked().map(|inode| (inode, false)).collect();
    tree.walk(&LayerPath::root()).map(move |(path, found)| {
        let entry = found.entry();
        let (mut letter, mut size) = letter(&entry.kind);
        let seen = linked.get_mut(&found.inode);
        if letter == 'f' && seen.is_some_and(|seen| std::mem::replace(seen, true)) {
            (letter, size) = ('h', 0);
        }
        let layer = found.layer.and_then(|layer| i32::try_from(layer).ok()).unwrap_or(-1);
        (Row { path, size, layer, letter }, entry)
    })
}

fn letter(kind: &EntryKind) -> (char, u64) {
    match kind {
        EntryKind::File { size } => ('f', *size),
        EntryKind::Directory => ('d', 0),
        EntryKind::Symlink { .. } => ('l', 0),
        EntryKind::HardLink { .. } => ('h', 0),
        EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } | EntryKind::Fifo => ('x', 0),
    }
}

fn depth(path: &LayerPath) -> usize {
    path.components().count()
}

/// Turns the rows that are `kept` into columns; the size of each other counts for its directory.
fn columns(rows: impl Iterator<Item = Row>, kept: &[bool]) -> FileTree {
    let mut tree = FileTree::default();
    // Where the directories are in the columns that contain the current file, from the root on; or where the
    // directory is that stands for it.
    let mut above: Vec<u32> = Vec::new();
    for (row, is_kept) in rows.zip(kept) {
        above.truncate(depth(&row.path));
        let parent = above.last().copied().unwrap_or(0);
        if !is_kept {
            tree.omitted += 1;
            if let Some(size) = tree.sizes.get_mut(parent as usize) {
                *size = size.saturating_add(row.size);
            }
            above.push(parent);
            continue;
        }
        above.push(u32::try_from(tree.names.len()).unwrap_or(u32::MAX));
        let name = row.path.file_name().unwrap_or_default();
        tree.names.push(cut(&String::from_utf8_lossy(name), LONGEST_NAME));
        tree.parents.push(parent);
        tree.sizes.push(row.size);
        tree.layers.push(row.layer);
        tree.types.push(row.letter);
    }
    tree
}

/// Returns which rows are listed: of more than `most`, the upper levels and the largest of the next one.
fn kept(shape: &Shape, most: usize) -> Vec<bool> {
    let Shape { sizes, depths } = shape;
    if sizes.len() <= most {
        return vec![true; sizes.len()];
    }
    let mut levels: Vec<usize> = Vec::new();
    for depth in depths {
        let depth = usize::from(*depth);
        if levels.len() <= depth {
            levels.resize(depth + 1, 0);
        }
        levels[depth] += 1;
    }
    let mut room = most;
    let whole = levels.iter().take_while(|count| {
        let fits = **count <= room;
        room -= (**count).min(room);
        fits
    });
    let whole = whole.count();
    let above: usize = levels.iter().take(whole).sum();
    let mut kept: Vec<bool> = depths.iter().map(|depth| usize::from(*depth) < whole).collect();
    // Never more rows than a tree has nodes.
    let mut next: Vec<u32> = (0..)
        .zip(depths)
        .filter(|(_, depth)| usize::from(**depth) == whole)
        .map(|(row, _)| row)
        .collect();
    next.sort_unstable_by_key(|row| (Reverse(sizes[*row as usize]), *row));
    for row in next.into_iter().take(most - above) {
        kept[row as usize] = true;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &str, size: u64, letter: char) -> Row {
        Row { path: LayerPath::parse(path.as_bytes()).unwrap(), size, layer: 0, letter }
    }

    #[test]
    fn of_too_many_files_the_deepest_and_smallest_are_summed_up() {
        let rows = || {
            [
                row("", 0, 'd'),
                row("a", 0, 'd'),
                row("a/deep", 0, 'd'),
                row("a/deep/x", 7, 'f'),
                row("a/small", 1, 'f'),
                row("a/large", 100, 'f'),
                row("b", 5, 'f'),
            ]
            .into_iter()
        };
        let mut shape = Shape::default();
        rows().for_each(|row| shape.add(&row));
        let listed = |most| columns(rows(), &kept(&shape, most));
        let all = listed(7);
        assert_eq!((all.names.len(), all.omitted), (7, 0));
        let some = listed(4);
        assert_eq!(some.names, ["", "a", "large", "b"]);
        assert_eq!(some.parents, [0, 0, 1, 0]);
        assert_eq!(some.sizes, [0, 8, 100, 5]);
        assert_eq!((some.types.as_str(), some.omitted), ("ddff", 3));
    }
}
