//! Which images share the layers of an image.

use std::collections::BTreeMap;

use crate::store::{Image, Store};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

impl Store {
    /// Returns, for each layer of `image`, the names of other images that have it. Images that cannot
    /// be read are ignored.
    pub fn sharing(&self, image: &Image) -> Result<BTreeMap<Digest, Vec<String>>> {
        let mut sharing: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
        for named in self.names()? {
            if named.reference == image.reference && named.reference.is_some() {
                continue;
            }
            let name = match named.descriptor.ref_name() {
                Some(name) => name.to_owned(),
                None => format!("<none> ({})", named.descriptor.digest.short()),
            };
            for other in self.platform_images(&named.descriptor).unwrap_or_default() {
                if other.descriptor.digest == image.descriptor.digest && named.reference.is_none() {
                    continue;
                }
                for layer in &other.manifest.layers {
                    let mine = image.manifest.layers.iter().any(|mine| mine.digest == layer.digest);
                    let names = sharing.entry(layer.digest.clone()).or_default();
                    if mine && !names.contains(&name) {
                        names.push(name.clone());
                    }
                }
            }
        }
        Ok(sharing)
    }
}
