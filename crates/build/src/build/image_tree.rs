//! A stage or a stored image as a source tree of COPY --from: looked up in the merged tables of
//! contents and read from the layers' tars, never unpacked.

use std::sync::Arc;

use crate::build::copy::node_of;
use crate::build::items::{Content, Item, LayerTar, Node, SourceTree};
use imgctl_base::error::{Error, Result};
use imgctl_store::layer::tree::Tree;
use imgctl_store::layer::{Entry, EntryKind, LayerPath};

/// The merged tree of some layers, and access to their bytes.
#[derive(Clone, Debug)]
pub(crate) struct ImageTree {
    name: String,
    tree: Arc<Tree>,
    /// One for each layer of the tree.
    tars: Vec<Arc<LayerTar>>,
}

impl ImageTree {
    /// `name` is used in messages.
    pub(super) fn new(name: String, tree: Arc<Tree>, tars: Vec<Arc<LayerTar>>) -> Self {
        Self { name, tree, tars }
    }

    /// Returns the size of the regular file at `path`, following symlinks.
    pub(crate) fn file_size(&self, path: &LayerPath) -> Option<u64> {
        let path = self.tree.resolve(path).ok()?;
        match self.tree.lookup(&path)?.entry.entry.kind {
            EntryKind::File { size } => Some(size),
            _ => None,
        }
    }

    /// Returns the whole content of a small file (`/etc/passwd`), following symlinks; `None` if it
    /// does not exist or is larger than `limit` bytes.
    pub(crate) fn read_small(&self, path: &LayerPath, limit: u64) -> Result<Option<Vec<u8>>> {
        use std::io::Read as _;
        let path = self.tree.resolve(path)?;
        let Some(found) = self.tree.lookup(&path) else {
            return Ok(None);
        };
        let size = found.entry.entry.size();
        let Some(tar) = found.layer.and_then(|layer| self.tars.get(layer)) else {
            return Ok(None);
        };
        if size > limit || found.entry.entry.is_directory() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        crate::build::items::RangeReader::new(tar.open()?, found.entry.offset, size)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(format!("cannot read {path} of {}", self.name), error))?;
        Ok(Some(bytes))
    }
}

impl SourceTree for ImageTree {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn node(&self, path: &LayerPath) -> Result<Option<Node>> {
        Ok(node_of(&self.tree, path))
    }

    fn names(&self, directory: &LayerPath) -> Result<Vec<Vec<u8>>> {
        if node_of(&self.tree, directory) != Some(Node::Directory) {
            return Err(Error::not_found(format!(
                "{directory} is not a directory of {}",
                self.name
            )));
        }
        Ok(self.tree.children(directory).map(|(name, _)| name.to_vec()).collect())
    }

    fn below(&self, path: &LayerPath) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for (path, found) in self.tree.walk(path) {
            let entry = Entry { path, ..found.entry.entry.clone() };
            let is_file = matches!(entry.kind, EntryKind::File { .. });
            let tar = found.layer.filter(|_| is_file).and_then(|layer| self.tars.get(layer));
            let content = match tar {
                Some(tar) if found.entry.offset == 0 && entry.size() > 0 => {
                    let path = found.entry.entry.path.clone();
                    Content::Sparse { layer: Arc::clone(tar), path }
                }
                Some(tar) => Content::Layer { layer: Arc::clone(tar), offset: found.entry.offset },
                None => Content::None,
            };
            let digest = if is_file { found.entry.content } else { Some([0; 32]) };
            let file = (0, found.inode.number());
            items.push(Item { entry, content, digest, file: Some(file), xattrs_unread: false });
        }
        Ok(items)
    }
}
