//! The files of an image as columns, of a bounded number.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::describe::cut;
use crate::trust::sbom::contents::Contents;
use imgctl_report::model::image::{FileTree, Totals};
use imgctl_store::layer::{EntryKind, LayerPath};

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

struct Row {
    name: String,
    parent: u32,
    size: u64,
    layer: i32,
    letter: char,
    depth: u32,
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
    let mut seen = HashSet::new();
    let mut rows: Vec<Row> = Vec::new();
    // The rows of the directories that contain the current file, from the root on.
    let mut above: Vec<u32> = Vec::new();
    for (path, found) in contents.tree().walk(&LayerPath::root()) {
        let depth = path.components().count();
        above.truncate(depth);
        let entry = found.entry();
        let (mut letter, mut size) = letter(&entry.kind);
        if letter == 'f' && !seen.insert(found.inode.number()) {
            (letter, size) = ('h', 0);
        }
        match letter {
            'f' => {
                totals.files += 1;
                totals.content = totals.content.saturating_add(size);
                if let Some(sum) = found.layer.and_then(|layer| sums.get_mut(layer)) {
                    sum.visible = sum.visible.saturating_add(size);
                }
                if entry.mode & 0o6000 != 0 && privileged.len() < MOST_NOTED {
                    privileged.push(cut(&path.to_string(), 4 * LONGEST_NAME));
                }
                if entry.mode & 0o002 != 0 && writable.len() < MOST_NOTED {
                    writable.push(cut(&path.to_string(), 4 * LONGEST_NAME));
                }
            }
            'd' => totals.directories += 1,
            _ => totals.other += 1,
        }
        let name = path.file_name().unwrap_or_default();
        // Never more rows than entries in memory already.
        let row = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        rows.push(Row {
            name: cut(&String::from_utf8_lossy(name), LONGEST_NAME),
            parent: above.last().copied().unwrap_or(0),
            size,
            layer: found.layer.and_then(|layer| i32::try_from(layer).ok()).unwrap_or(-1),
            letter,
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
        });
        above.push(row);
    }
    Files { tree: columns(rows, MOST), totals, layers: sums, privileged, writable }
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

/// Turns rows into columns; of more than `most`, keeps the upper levels and the largest of the next one.
fn columns(rows: Vec<Row>, most: usize) -> FileTree {
    let kept = kept(&rows, most);
    let mut tree = FileTree::default();
    // Where each row is in the columns, or where the directory is that stands for it.
    let mut places: Vec<u32> = Vec::with_capacity(rows.len());
    for (row, is_kept) in rows.into_iter().zip(kept) {
        let parent = places.get(row.parent as usize).copied().unwrap_or(0);
        if !is_kept {
            tree.omitted += 1;
            if let Some(size) = tree.sizes.get_mut(parent as usize) {
                *size = size.saturating_add(row.size);
            }
            places.push(parent);
            continue;
        }
        places.push(u32::try_from(tree.names.len()).unwrap_or(u32::MAX));
        tree.names.push(row.name);
        tree.parents.push(parent);
        tree.sizes.push(row.size);
        tree.layers.push(row.layer);
        tree.types.push(row.letter);
    }
    tree
}

fn kept(rows: &[Row], most: usize) -> Vec<bool> {
    if rows.len() <= most {
        return vec![true; rows.len()];
    }
    let mut levels: Vec<usize> = Vec::new();
    for row in rows {
        let depth = row.depth as usize;
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
    let mut kept: Vec<bool> = rows.iter().map(|row| (row.depth as usize) < whole).collect();
    let mut next: Vec<usize> =
        (0..rows.len()).filter(|row| rows[*row].depth as usize == whole).collect();
    next.sort_by_key(|row| Reverse(rows[*row].size));
    for row in next.into_iter().take(most - above) {
        kept[row] = true;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, parent: u32, size: u64, letter: char, depth: u32) -> Row {
        Row { name: name.to_owned(), parent, size, layer: 0, letter, depth }
    }

    #[test]
    fn of_too_many_files_the_deepest_and_smallest_are_summed_up() {
        let rows = || {
            vec![
                row("", 0, 0, 'd', 0),
                row("a", 0, 0, 'd', 1),
                row("deep", 1, 0, 'd', 2),
                row("x", 2, 7, 'f', 3),
                row("small", 1, 1, 'f', 2),
                row("large", 1, 100, 'f', 2),
                row("b", 0, 5, 'f', 1),
            ]
        };
        let all = columns(rows(), 7);
        assert_eq!((all.names.len(), all.omitted), (7, 0));
        let some = columns(rows(), 4);
        assert_eq!(some.names, ["", "a", "large", "b"]);
        assert_eq!(some.parents, [0, 0, 1, 0]);
        assert_eq!(some.sizes, [0, 8, 100, 5]);
        assert_eq!((some.types.as_str(), some.omitted), ("ddff", 3));
    }
}
