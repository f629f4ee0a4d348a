//! Which layer each file is in, and what tags refer to.

use super::*;
use crate::resolve::{Origin, RawDocument};
use imgctl_base::image::Platform;

/// An image without a registry tree.
struct Nothing;

impl Present for Nothing {
    fn size(&self, _path: &str) -> Option<u64> {
        None
    }

    fn read(&self, _path: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

/// Returns an image with one manifest, or with an index of one manifest, whose layers have these
/// contents.
fn image(name: &str, layers: &[&str], is_index: bool) -> ResolvedImage {
    let blob = |text: &&str| {
        let digest = Digest::of(text.as_bytes());
        Descriptor::new(media_type::OCI_LAYER, digest, text.len() as u64)
    };
    let manifest = format!("manifest of {layers:?}");
    let document = |media: &str, text: &str| RawDocument {
        descriptor: Descriptor::new(media, Digest::of(text.as_bytes()), text.len() as u64),
        bytes: text.as_bytes().into(),
    };
    let mut documents = vec![document(media_type::OCI_MANIFEST, &manifest)];
    let digest = documents[0].descriptor.digest.clone();
    if is_index {
        let index = format!("index of {manifest}");
        documents.insert(0, document(media_type::OCI_INDEX, &index));
    }
    let name = name.replace("@INDEX", &format!("@{}", documents[0].descriptor.digest));
    ResolvedImage {
        reference: Reference::parse(&name).unwrap(),
        places: Vec::new(),
        root: documents[0].descriptor.clone(),
        documents,
        platforms: vec![(Platform::host(), digest)],
        is_whole: false,
        blobs: layers.iter().map(blob).collect(),
        configs: Vec::new(),
        origin: Origin::Store,
    }
}

fn planned(images: &[ResolvedImage]) -> Vec<LayerPlan> {
    plan(images, Naming::default(), &Nothing).unwrap()
}

/// Returns what determines the bytes of a layer.
fn key(layer: &LayerPlan) -> Vec<(String, Digest)> {
    let files = layer.files.iter();
    files.map(|(path, file)| (path.clone(), file.digest().clone())).collect()
}

fn link(layers: &[LayerPlan], path: &str) -> Option<Digest> {
    let path = format!("{DIRECTORY}/{path}");
    let file = layers.iter().find_map(|layer| layer.files.get(&path))?;
    Some(file.digest().clone())
}

#[test]
fn each_image_has_its_layer_and_shared_blobs_have_theirs() {
    let mut images: Vec<ResolvedImage> = (0..20)
        .map(|n| {
            let (base, own) = (format!("base {}", n % 8), format!("own {n}"));
            image(&format!("quay.io/team/app{n:02}:v1"), &[&base, &own], false)
        })
        .collect();
    let before = planned(&images);
    let shared = before.iter().filter(|layer| layer.title.starts_with("shared")).count();
    assert_eq!(before.len(), 20 + shared);
    assert!((1..=8).contains(&shared));
    let mut blobs = BTreeMap::new();
    for layer in &before {
        for path in layer.files.keys().filter(|path| path.ends_with("/data")) {
            *blobs.entry(path.clone()).or_insert(0) += 1;
        }
    }
    assert_eq!(blobs.len(), 8 + 20 + 20);
    assert!(blobs.values().all(|count| *count == 1));

    images[7] = image("quay.io/team/app07:v1", &["base 7", "changed"], false);
    let after: Vec<_> = planned(&images).iter().map(key).collect();
    let changed = before.iter().filter(|layer| !after.contains(&key(layer)));
    let titles: Vec<&str> = changed.map(|layer| &*layer.title).collect();
    assert_eq!(titles, ["quay.io/team/app07:v1"]);
    assert_eq!(after.len(), before.len());
}

#[test]
fn a_hundred_layers_hold_any_number_of_images() {
    let images: Vec<ResolvedImage> =
        (0..250).map(|n| image(&format!("a.io/app{n:03}:1"), &[&format!("{n}")], false)).collect();
    let layers = planned(&images);
    assert!((50..=100).contains(&layers.len()), "{}", layers.len());
    let tags = layers.iter().flat_map(|layer| layer.files.keys());
    assert_eq!(tags.filter(|path| path.ends_with("current/link")).count(), 250);
}

#[test]
fn a_collision_names_both_unless_registries_are_kept_apart() {
    let images = [image("a.io/x/y:1", &["one"], false), image("b.io:5000/x/y:1", &["two"], false)];
    let error = plan(&images, Naming::default(), &Nothing).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("a.io/x/y:1") && text.contains("b.io:5000/x/y:1"), "{text}");
    let layers = plan(&images, Naming::WithRegistry, &Nothing).unwrap();
    assert!(link(&layers, &paths::tag_link("a.io/x/y", "1")).is_some());
    assert!(link(&layers, &paths::tag_link("b.io-5000/x/y", "1")).is_some());
    // The same image under two names is not a collision.
    let same = [image("a.io/x/y:1", &["one"], false), image("b.io/x/y:1", &["one"], false)];
    assert_eq!(planned(&same).len(), 1);
}

#[test]
fn tags_mean_what_is_complete_and_digests_stay() {
    let tag = paths::tag_link("x/y", "1");
    let tagged = image("a.io/x/y:1", &["l"], true);
    let (index, manifest) = (&tagged.documents[0], &tagged.documents[1]);
    let layers = planned(std::slice::from_ref(&tagged));
    assert_eq!(link(&layers, &tag), Some(manifest.descriptor.digest.clone()));
    for document in &tagged.documents {
        let digest = &document.descriptor.digest;
        assert!(link(&layers, &paths::revision_link("x/y", digest)).is_some());
    }
    let pinned = [tagged.clone(), image("a.io/x/y@INDEX", &["l"], true)];
    let layers = planned(&pinned);
    assert_eq!(link(&layers, &tag), Some(index.descriptor.digest.clone()));
    assert_eq!(layers.len(), 1);
    // A reference with the tag and another digest does not change what the tag refers to.
    let other = image("a.io/x/y:1@INDEX", &["m"], true);
    let layers = planned(&[other.clone(), tagged.clone()]);
    assert_eq!(link(&layers, &tag), Some(manifest.descriptor.digest.clone()));
    let revision = paths::revision_link("x/y", &other.root.digest);
    assert!(link(&layers, &revision).is_some());
}

#[test]
fn what_is_there_is_not_written_again() {
    struct Has(LayerPlan);
    impl Present for Has {
        fn size(&self, path: &str) -> Option<u64> {
            self.0.files.get(path).map(File::size)
        }
        fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
            let file = self.0.files.get(path);
            Ok(file.map(|file| file.digest().to_string().into_bytes()))
        }
    }
    let one = image("a.io/x/y:1", &["l"], false);
    let layers = planned(std::slice::from_ref(&one));
    let has = Has(layers[0].clone());
    assert!(plan(&[one], Naming::default(), &has).unwrap().is_empty());
    let two = image("a.io/x/y:1", &["l", "m"], false);
    let layers = plan(&[two], Naming::default(), &has).unwrap();
    let blobs = layers[0].files.keys().filter(|path| path.ends_with("/data"));
    assert_eq!(blobs.count(), 2, "the manifest and the new layer");
}
