//! What differs between two trees. Must not know how trees are kept.

use std::cmp::Ordering;

use crate::tree::{Found, Tree};
use crate::{Entry, EntryKind, LayerPath};

/// Type of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// Returns the differences from `old` to `new`, ordered by path components. Everything below an
/// added or deleted directory is listed.
pub fn compare(old: &Tree, new: &Tree) -> impl Iterator<Item = (Change, LayerPath)> {
    let root = LayerPath::root();
    let (mut before, mut after) = (old.walk(&root).peekable(), new.walk(&root).peekable());
    std::iter::from_fn(move || {
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.components().cmp(b.components()),
            };
            match order {
                Ordering::Less => return before.next().map(|(path, _)| (Change::Deleted, path)),
                Ordering::Greater => return after.next().map(|(path, _)| (Change::Added, path)),
                Ordering::Equal => {
                    if let (Some((path, a)), Some((_, b))) = (before.next(), after.next())
                        && !same(&a, &b)
                    {
                        return Some((Change::Modified, path));
                    }
                }
            }
        }
    })
}

fn same(a: &Found<'_>, b: &Found<'_>) -> bool {
    let (x, y) = (a.entry(), b.entry());
    let metadata = |entry: &Entry| (entry.mode, entry.uid, entry.gid);
    metadata(x) == metadata(y) && x.xattrs == y.xattrs && same_content(a, b)
}

/// Compares content digests if both are known. Otherwise the file counts as modified: equal sizes
/// at the same position in a layer prove nothing.
fn same_content(a: &Found<'_>, b: &Found<'_>) -> bool {
    match (&a.entry().kind, &b.entry().kind) {
        (EntryKind::File { size: x }, EntryKind::File { size: y }) => {
            x == y && (*x == 0 || (a.entry.content.is_some() && a.entry.content == b.entry.content))
        }
        (x, y) => x == y,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Toc, TocEntry};

    fn tree(entries: &[(&str, EntryKind, u8)]) -> Tree {
        let entries = entries
            .iter()
            .map(|(path, kind, content)| TocEntry {
                entry: Entry::new(LayerPath::parse(path.as_bytes()).unwrap(), kind.clone(), 0o755),
                offset: 0,
                content: matches!(kind, EntryKind::File { .. }).then_some([*content; 32]),
            })
            .collect();
        let toc = Toc { entries, restarts: Vec::new() };
        Tree::from_layers([Arc::new(toc)]).unwrap()
    }

    #[test]
    fn names_are_added_modified_and_deleted() {
        let file = EntryKind::File { size: 1 };
        let link = |target: &str| EntryKind::Symlink { target: target.into() };
        let old = tree(&[
            ("a", EntryKind::Directory, 0),
            ("a/x", file.clone(), 1),
            ("a.b", file.clone(), 1),
            ("gone/x", file.clone(), 1),
            ("link", link("a"), 0),
            ("same", file.clone(), 1),
        ]);
        let new = tree(&[
            ("a", EntryKind::Directory, 0),
            ("a/x", file.clone(), 2),
            ("a.b", file.clone(), 1),
            ("link", link("b"), 0),
            ("new", file.clone(), 1),
            ("same", file, 1),
        ]);
        let changes: Vec<(Change, String)> =
            compare(&old, &new).map(|(change, path)| (change, path.to_string())).collect();
        use Change::{Added, Deleted, Modified};
        let expected = [
            (Modified, "/a/x"),
            (Deleted, "/gone"),
            (Deleted, "/gone/x"),
            (Modified, "/link"),
            (Added, "/new"),
        ];
        assert_eq!(changes, expected.map(|(change, path)| (change, path.to_owned())));
        assert_eq!(compare(&old, &old).count(), 0);
    }
}
