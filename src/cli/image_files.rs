//! Files of images in the store, readable without unpacking the image.

use std::io::Read as _;
use std::sync::Arc;

use crate::cli::image_tree::whole_tree;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::Platform;
use imgctl_cluster::cluster::image::ClusterImage;
use imgctl_cluster::runtime::ImageFiles;
use imgctl_store::layer::{ContentReader, LayerPath};
use imgctl_store::store::Store;

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
        let Some((layer, diff_id)) = entry.layer.and_then(|index| found.layers().nth(index)) else {
            return Ok(None);
        };
        let toc = Arc::new(self.store.toc(&layer.digest, diff_id)?);
        let mut reader = ContentReader::new(self.store.open_blob(&layer.digest)?, toc)?;
        let mut bytes = Vec::new();
        reader.open(entry.entry)?.take(LONGEST + 1).read_to_end(&mut bytes).doing(what)?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::bad_content(format!("{}: file exceeds {LONGEST} bytes", what())));
        }
        Ok(Some(bytes))
    }
}
