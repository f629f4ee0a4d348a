//! Files of images in the store, readable without unpacking the image.

use imgctl_base::error::{Context as _, Kind, Result};
use imgctl_base::image::Platform;
use imgctl_cluster::cluster::image::ClusterImage;
use imgctl_cluster::runtime::ImageFiles;
use imgctl_store::layer::LayerPath;
use imgctl_store::store::Store;
use imgctl_store::store::image_tree::{content, whole_tree};

/// Maximum size of a configuration file, in bytes.
const LONGEST: u64 = 4 << 20;

/// Reads from the layers of the store.
pub(crate) struct StoreFiles<'a> {
    pub(crate) store: &'a Store,
    pub(crate) platform: Option<Platform>,
}

impl ImageFiles for StoreFiles<'_> {
    fn read(&self, image: &ClusterImage, path: &str) -> Result<Option<Vec<u8>>> {
        let what = || format!("cannot read {path} of image {}", image.name);
        let found = match self.store.image(&image.name, self.platform.as_ref()) {
            Ok(found) => found,
            // The cluster's image may be missing from this store, for example when a cluster is
            // only inspected.
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error.context(what())),
        };
        let tree = whole_tree(self.store, &found)?;
        let path = LayerPath::parse(path.as_bytes()).context(what)?;
        let Ok(resolved) = tree.resolve(&path) else {
            return Ok(None);
        };
        let Some(entry) = tree.lookup(&resolved) else {
            return Ok(None);
        };
        content(self.store, &found, &entry, LONGEST).context(what)
    }
}
