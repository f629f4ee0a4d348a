//! Images with layers that stay in a registry: the store has manifest, configuration and only the layers
//! that were needed. The name of such an image is marked; a complete pull removes the mark. Must not know
//! why layers stay, or how they are pulled.

use crate::store::images::add_layer;
use crate::store::{Image, Named, Store};
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::{Descriptor, LayerKind, Reference, Verdict};
use imgctl_layer::{Toc, Tree};

/// Annotation of the name of an image that may lack layers.
const LAYERS: &str = "io.imgctl.layers";
const REMOTE: &str = "remote";

impl Named {
    /// Returns whether layers of the image may be missing because they stayed in its registry.
    pub fn has_remote_layers(&self) -> bool {
        self.descriptor.annotations.get(LAYERS).is_some_and(|value| value == REMOTE)
    }
}

impl Store {
    /// Points `references` at an image that may lack layers. Its documents and configurations must be in
    /// the store. On return, everything written before is durable.
    pub fn tag_with_remote_layers(
        &self,
        references: &[Reference],
        descriptor: &Descriptor,
        verdict: &Verdict,
    ) -> Result<()> {
        self.platform_images(descriptor)?;
        let mut marked = descriptor.clone();
        marked.annotations.insert(LAYERS.to_owned(), REMOTE.to_owned());
        self.make_durable()?;
        self.change_names(&[], |table| {
            let mut all = references.iter();
            all.try_for_each(|name| table.set(&name.qualified(), &marked, verdict.origin()))
        })
    }

    /// Returns whether the image lacks layers that stayed in its registry.
    pub fn lacks_remote_layers(&self, name: &str) -> Result<bool> {
        let named = self.resolve(name)?;
        if !named.has_remote_layers() {
            return Ok(false);
        }
        match self.check_complete_image(&named.descriptor) {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == Kind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Returns the merged tree of an image without the layers of embedded images, which contain only `registry/`
/// and may be missing. Entries refer to layers by their index among all layers.
pub fn tree_without_registry(store: &Store, image: &Image) -> Result<Tree> {
    let mut tree = Tree::new();
    for (layer, diff_id) in image.layers() {
        let toc = match layer.layer_kind() {
            Some(LayerKind::Registry) => Toc::default(),
            _ => store.toc(&layer.digest, diff_id)?,
        };
        add_layer(store, image, &mut tree, toc)?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use crate::store::scrub::ScrubOptions;
    use crate::store::tests::{anyone, fixture, name, put_image};
    use imgctl_base::progress::Silent;

    #[test]
    fn an_image_without_its_layers_is_whole_again_once_they_are_here() {
        let fixture = fixture();
        let store = &fixture.store;
        let image = put_image(store, b"a layer", "linux/amd64");
        let layer = store.image_at(&image, None).unwrap().manifest.layers[0].digest.clone();
        std::fs::remove_file(store.blob_path(&layer)).unwrap();
        // An ordinary image must be complete.
        assert!(store.tag(&[name("r.io/a:1")], &image, &anyone()).is_err());
        store.tag_with_remote_layers(&[name("r.io/a:1")], &image, &anyone()).unwrap();
        assert!(store.lacks_remote_layers("r.io/a:1").unwrap());
        store.image("r.io/a:1", None).unwrap();
        let scrub = || store.scrub(&ScrubOptions::default(), &Silent).unwrap().problems;
        assert!(scrub().is_empty(), "{:?}", scrub());
        // Another name does not bypass the check.
        let named = store.resolve("r.io/a:1").unwrap();
        let error = store.tag(&[name("r.io/b:1")], &named.descriptor, &anyone()).unwrap_err();
        assert!(error.chain().join(": ").contains(&layer.to_string()), "{error}");

        store.put_blob(b"a layer").unwrap();
        assert!(!store.lacks_remote_layers("r.io/a:1").unwrap());
        store.tag(&[name("r.io/a:1")], &image, &anyone()).unwrap();
        assert!(!store.resolve("r.io/a:1").unwrap().has_remote_layers());
        // From now on a missing layer is damage.
        std::fs::remove_file(store.blob_path(&layer)).unwrap();
        assert_eq!(scrub().len(), 1);
        assert!(!store.lacks_remote_layers("r.io/a:1").unwrap());
    }
}
