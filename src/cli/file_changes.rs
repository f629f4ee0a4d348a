//! The files that differ between two images, as lines and as data. There may be millions: they are found while they are shown. Must not
//! know how a verb names images.

use serde::{Serialize, Serializer};

use imgctl_base::error::Result;
use imgctl_base::text::Lines;
use imgctl_frontend::names::printable;
use imgctl_layer::tree::{Change, compare};
use imgctl_layer::{LayerPath, Tree};
use imgctl_report::model::comparison::Comparison;
use imgctl_store::store::images::{tree_of, whole_tree};
use imgctl_store::store::{Image, Store};

/// Number of lines that are shown at once.
const AT_ONCE: usize = 1000;

/// The files of two images.
pub(crate) struct Trees {
    old: Tree,
    new: Tree,
}

impl Trees {
    /// Reads the files of `old` and `new`; without `new`, those below the last layer of `old` and all of it.
    pub(crate) fn of(store: &Store, old: &Image, new: Option<&Image>) -> Result<Self> {
        Ok(match new {
            Some(new) => Self { old: whole_tree(store, old)?, new: whole_tree(store, new)? },
            None => {
                let below = old.manifest.layers.len().saturating_sub(1);
                Self { old: tree_of(store, old, below)?, new: whole_tree(store, old)? }
            }
        })
    }

    /// Passes one line for each file that differs to `show`, many at a time.
    pub(crate) fn lines(&self, show: &mut dyn FnMut(&Lines) -> Result<()>) -> Result<()> {
        let mut changes = compare(&self.old, &self.new).peekable();
        while changes.peek().is_some() {
            let line = |(change, path): (Change, LayerPath)| {
                let letter = match change {
                    Change::Added => 'A',
                    Change::Modified => 'C',
                    Change::Deleted => 'D',
                };
                format!("{letter} /{}", printable(path.as_bytes()))
            };
            let text: Lines = changes.by_ref().take(AT_ONCE).map(line).collect();
            show(&text)?;
        }
        Ok(())
    }

    /// Returns the files that differ by kind, with what else differs.
    pub(crate) fn changes<'a>(&'a self, comparison: Option<&'a Comparison>) -> Changes<'a> {
        let of = |change| Paths { trees: self, change };
        Changes {
            added: of(Change::Added),
            modified: of(Change::Modified),
            deleted: of(Change::Deleted),
            comparison,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Changes<'a> {
    added: Paths<'a>,
    modified: Paths<'a>,
    deleted: Paths<'a>,
    /// Of two images.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
}

/// The paths of one type of change.
struct Paths<'a> {
    trees: &'a Trees,
    change: Change,
}

impl Serialize for Paths<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let all = compare(&self.trees.old, &self.trees.new);
        let all = all.filter(|(change, _)| *change == self.change);
        serializer.collect_seq(all.map(|(_, path)| path.to_string()))
    }
}
