//! Converts images with layers of every compression and checks the results.

use super::*;
use crate::transfer::testing::{self, Fixture, fixture, gzip, layer, load_bytes, tar};
use imgctl_base::progress::Silent;

/// A store with a two-platform image that has a zstd layer, a gzip layer and a plain tar.
fn filled() -> Fixture {
    let fixture = fixture();
    let mut layout = testing::Layout::default();
    let tars = ["one", "two", "three"].map(|text| layer(&text.repeat(1000)));
    let layers = [
        (media_type::OCI_LAYER_ZSTD, testing::zstd(&tars[0]), tars[0].clone()),
        (media_type::OCI_LAYER_GZIP, gzip(&tars[1]), tars[1].clone()),
        (media_type::OCI_LAYER, tars[2].clone(), tars[2].clone()),
    ];
    let amd = layout.image(&layers, "linux/amd64");
    let arm = layout.image(&layers[..1], "linux/arm64");
    let index = layout.index(vec![amd, arm]);
    layout.name(index, Some("reg.io/x:1"));
    load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
    fixture
}

fn changed(store: &Store, what: Change) -> Result<Changed> {
    let named = store.resolve("reg.io/x:1")?;
    change(store, &named.descriptor, &what, &Silent)
}

fn types(store: &Store, root: &Descriptor) -> Vec<Vec<String>> {
    let images = store.platform_images(root).unwrap();
    let types = |image: &Image| {
        let layers = image.manifest.layers.iter();
        layers.map(|layer| layer.media_type.clone()).collect()
    };
    images.iter().map(types).collect()
}

#[test]
fn every_layer_gets_the_compression_and_the_content_stays() {
    let fixture = filled();
    let store = &fixture.store;
    let original = store.resolve("reg.io/x:1").unwrap().descriptor;
    for (compression, media) in [
        (Compression::Gzip { level: 1 }, media_type::OCI_LAYER_GZIP),
        (Compression::Zstd { level: 1 }, media_type::OCI_LAYER_ZSTD),
        (Compression::None, media_type::OCI_LAYER),
    ] {
        let what = Change { compression: Some(compression), ..Change::default() };
        let root = changed(store, what).unwrap().root;
        let all = types(store, &root);
        assert_eq!(all, [vec![media; 3], vec![media; 1]]);
        let old = store.platform_images(&original).unwrap();
        for (new, old) in store.platform_images(&root).unwrap().iter().zip(&old) {
            assert_eq!(new.id(), old.id());
            for (layer, diff_id) in new.layers() {
                store.scan_layer(&layer.digest, diff_id).unwrap();
            }
        }
        let again = changed(store, what).unwrap().root;
        assert_eq!(again, root);
    }
}

#[test]
fn what_has_it_already_stays_as_it_is_unless_forced() {
    let fixture = filled();
    let store = &fixture.store;
    let gzip = Change { compression: Some(Compression::Gzip { level: 9 }), ..Change::default() };
    let kept = changed(store, gzip).unwrap().root;
    let forced = Change { force: true, ..gzip };
    let forced = changed(store, forced).unwrap().root;
    let layer = |root: &Descriptor| {
        let images = store.platform_images(root).unwrap();
        images[0].manifest.layers[1].digest.clone()
    };
    let original = store.resolve("reg.io/x:1").unwrap().descriptor;
    assert_eq!(layer(&kept), layer(&original));
    assert_ne!(layer(&forced), layer(&original));
}

#[test]
fn a_result_that_was_pruned_is_known_and_made_when_it_is_read() {
    let fixture = filled();
    let store = &fixture.store;
    let gzip = Change { compression: Some(Compression::Gzip { level: 1 }), ..Change::default() };
    let root = changed(store, gzip).unwrap().root;
    let image = store.platform_images(&root).unwrap().remove(0);
    let layer = &image.manifest.layers[0].digest;
    std::fs::remove_file(store.blob_path(layer)).unwrap();
    let again = changed(store, gzip).unwrap();
    assert_eq!(again.root, root);
    assert!(store.open_blob(layer).is_err());
    again.open(layer).unwrap();
    let diff_id = &image.config.rootfs.diff_ids[0];
    store.scan_layer(layer, diff_id).unwrap();
    assert!(again.open(&Digest::of(b"none")).is_err());
}

#[test]
fn docker_has_no_zstd_and_no_annotations() {
    let fixture = filled();
    let store = &fixture.store;
    let docker = Change { format: Some(Format::Docker), ..Change::default() };
    let root = changed(store, docker).unwrap().root;
    assert_eq!(root.media_type, media_type::DOCKER_LIST);
    let gzip = media_type::DOCKER_LAYER_GZIP;
    let amd = vec![gzip, gzip, media_type::DOCKER_LAYER];
    assert_eq!(types(store, &root), [amd, vec![gzip]]);
    let images = store.platform_images(&root).unwrap();
    assert_eq!(images[0].manifest.config.media_type, media_type::DOCKER_CONFIG);
    assert_eq!(images[0].descriptor.media_type, media_type::DOCKER_MANIFEST);
    let zstd = Change { compression: Some(Compression::default()), ..docker };
    assert_eq!(changed(store, zstd).err().unwrap().kind(), Kind::Usage);
}

/// The output of buildx: next to the image an attestation, which is not an image, whatever its
/// config says.
fn attested(store: &Store) -> Descriptor {
    let amd = store.resolve("reg.io/x:1").unwrap().descriptor;
    let image = store.image_at(&amd, None).unwrap();
    let statement = store.put_blob(b"{}").unwrap();
    let mut manifest = image.manifest.clone();
    manifest.layers = vec![Descriptor::new("application/vnd.in-toto+json", statement, 2)];
    let bytes = serde_json::to_vec(&manifest).unwrap();
    let digest = store.put_blob(&bytes).unwrap();
    let mut entry = Descriptor::new(media_type::OCI_MANIFEST, digest, bytes.len() as u64);
    entry.platform = Some(imgctl_base::image::Platform::parse("unknown/unknown").unwrap());
    let of = image.descriptor.digest.to_string();
    entry.annotations.insert(ATTESTED_IMAGE.to_owned(), of);
    let bytes = serde_json::to_vec(&Index::new(vec![image.descriptor, entry])).unwrap();
    let digest = store.put_blob(&bytes).unwrap();
    Descriptor::new(media_type::OCI_INDEX, digest, bytes.len() as u64)
}

#[test]
fn attestations_go_with_the_image_that_they_attest() {
    let fixture = filled();
    let store = &fixture.store;
    let root = attested(store);
    let members = |what: Change| {
        let changed = change(store, &root, &what, &Silent).unwrap().root;
        match store.document(&changed).unwrap() {
            Document::Index(index) => index.manifests.len(),
            Document::Manifest(_) => 0,
        }
    };
    let to_oci = Change { format: Some(Format::Oci), ..Change::default() };
    assert_eq!(members(to_oci), 2, "nothing has changed");
    let to_docker = Change { format: Some(Format::Docker), ..Change::default() };
    assert_eq!(members(to_docker), 1);
}
