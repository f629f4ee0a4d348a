//! Tests of loading: every archive variant, and inputs that must be refused without leaving
//! anything behind.

use super::arbiter::Arbiter;
use super::testing::*;
use super::*;
use imgctl_base::error::{Error, Kind};
use imgctl_base::image::{Descriptor, Digest, Platform, Reference, media_type};
use imgctl_base::progress::Silent;
use imgctl_layer::Limits;
use imgctl_store::mount::privilege::Privileges;
use imgctl_store::mount::snapshots;
use imgctl_store::store::Store;

/// Asserts that loading fails with the message `why` and leaves nothing in the store.
fn refused(bytes: &[u8], why: &str) {
    let fixture = fixture();
    let error = load_bytes(&fixture.store, bytes).unwrap_err();
    assert_refused(&fixture.store, &error, why);
}

fn assert_refused(store: &Store, error: &Error, why: &str) {
    assert!(error.to_string().contains(why), "`{error}` does not say `{why}`");
    assert_eq!(error.kind(), Kind::BadContent, "{error}");
    assert!(store.names().unwrap().is_empty());
    for directory in ["blobs/sha256", "toc", "ingest", "trash", "leases"] {
        let left: Vec<_> = std::fs::read_dir(store.path(directory)).unwrap().collect();
        assert!(left.is_empty(), "{why}: {left:?}");
    }
}

fn file(bytes: impl Into<Vec<u8>>) -> Node {
    Node::File(bytes.into())
}

#[test]
fn docker_archives_keep_id_layers_and_names() {
    let fixture = fixture();
    let layers = [layer("one"), layer("two")];
    let archive = tar(&docker(&["nginx:1", "localhost/n:2"], &layers));
    let loaded = load_bytes(&fixture.store, &archive).unwrap();
    assert_eq!(names(&loaded), ["docker.io/library/nginx:1", "localhost/n:2"]);
    let image = fixture.store.image("nginx:1", None).unwrap();
    let tars: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    assert_eq!(*image.id(), Digest::of(&config(&tars, "linux/amd64")));
    for ((layer, diff_id), tar) in image.layers().zip(&layers) {
        assert_eq!((&layer.digest, diff_id), (&Digest::of(tar), &Digest::of(tar)));
        assert_eq!(layer.media_type, media_type::OCI_LAYER);
    }
    // Loading it again gives the same manifest.
    assert_eq!(load_bytes(&fixture.store, &archive).unwrap(), loaded);
}

#[test]
fn archives_are_read_whatever_they_are_compressed_with() {
    let archive = tar(&docker(&["a:1"], &[layer("x")]));
    for bytes in [gzip(&archive), zstd(&archive), bzip2(&archive)] {
        let fixture = fixture();
        assert_eq!(load_bytes(&fixture.store, &bytes).unwrap().len(), 1);
    }
}

#[test]
fn layers_of_docker_archives_may_be_compressed() {
    let tar_bytes = layer("x");
    let config = config(&[&tar_bytes], "linux/amd64");
    for (blob, media) in [
        (gzip(&tar_bytes), media_type::OCI_LAYER_GZIP),
        (zstd(&tar_bytes), media_type::OCI_LAYER_ZSTD),
        (bzip2(&tar_bytes), media_type::OCI_LAYER),
    ] {
        let fixture = fixture();
        let archive = tar(&docker_with(&["a:1"], &[blob], &config));
        load_bytes(&fixture.store, &archive).unwrap();
        let image = fixture.store.image("docker.io/library/a:1", None).unwrap();
        assert_eq!(image.manifest.layers[0].media_type, media);
    }
}

#[test]
fn links_inside_a_docker_archive_are_followed() {
    for (link, target) in [
        (Node::Symlink("../0/layer.tar"), "1/layer.tar"),
        (Node::HardLink("0/layer.tar"), "1/layer.tar"),
    ] {
        let fixture = fixture();
        let same = layer("same");
        let mut members = docker(&["a:1"], &[same.clone(), same]);
        let place = members.iter_mut().find(|(path, _)| path == target).unwrap();
        place.1 = link;
        load_bytes(&fixture.store, &tar(&members)).unwrap();
        let image = fixture.store.image("docker.io/library/a:1", None).unwrap();
        assert_eq!(image.manifest.layers[0], image.manifest.layers[1]);
    }
}

#[test]
fn several_images_come_together_or_not_at_all() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let (a, b) = (layout.simple("a", "linux/amd64"), layout.simple("b", "linux/amd64"));
    layout.name(a, Some("reg.io/a:1"));
    layout.name(b.clone(), Some("reg.io/b:1"));
    let loaded = load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
    assert_eq!(names(&loaded), ["reg.io/a:1", "reg.io/b:1"]);
    // The last blob is missing.
    let mut members = layout.members();
    members.pop();
    refused(&tar(&members), "");
    layout.name(b, Some("reg.io/a:1"));
    refused(&tar(&layout.members()), "calls two images reg.io/a:1");
}

#[test]
fn a_multi_platform_index_is_kept_and_may_lack_platforms() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let amd = layout.simple("amd", "linux/amd64");
    let arm = layout.simple("arm", "linux/arm64");
    let mut unknown = layout.blob(media_type::OCI_MANIFEST, b"{}");
    unknown.platform = Some(Platform::new("unknown", "unknown", None));
    let absent = Layout::default().simple("s390x", "linux/s390x");
    let index = layout.index(vec![amd, arm.clone(), unknown, absent]);
    layout.name(index.clone(), Some("reg.io/m:1"));
    load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
    assert_eq!(fixture.store.names().unwrap()[0].descriptor.digest, index.digest);
    let wanted = Platform::parse("linux/arm64").unwrap();
    let image = fixture.store.image("reg.io/m:1", Some(&wanted)).unwrap();
    assert_eq!(image.descriptor.digest, arm.digest);
}

#[test]
fn dockers_new_archives_get_their_full_names() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let image = layout.simple("a", "linux/amd64");
    layout.name(image, Some("1"));
    let config = Digest::of(&layout.blobs[0]);
    let manifest = serde_json::json!([{
        "Config": format!("blobs/sha256/{}", config.hex()), "RepoTags": ["team/a:1"],
        "Layers": [format!("blobs/sha256/{}", Digest::of(&layout.blobs[1]).hex())],
    }]);
    let mut members = layout.members();
    members.push(("manifest.json".to_owned(), file(manifest.to_string())));
    let loaded = load_bytes(&fixture.store, &tar(&members)).unwrap();
    assert_eq!(names(&loaded), ["docker.io/team/a:1"]);
}

#[test]
fn a_right_manifest_json_helps_where_the_index_is_wrong() {
    let layer = layer("a");
    let config = config(&[&layer], "linux/amd64");
    for damage in ["layers", "index", "layout", "entries"] {
        let mut layout = Layout::default();
        let config_blob = layout.blob(media_type::OCI_CONFIG, &config);
        let layer_blob = layout.blob(media_type::OCI_LAYER, &layer);
        let layers = if damage == "layers" { vec![] } else { vec![&layer_blob] };
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": &config_blob,
            "layers": layers,
        });
        let image = layout.blob(media_type::OCI_MANIFEST, manifest.to_string().as_bytes());
        if damage != "entries" {
            layout.name(image, Some("1"));
        }
        let path = |blob: &Descriptor| format!("blobs/sha256/{}", blob.digest.hex());
        let docker = serde_json::json!([{
            "Config": path(&config_blob), "RepoTags": ["a:1"], "Layers": [path(&layer_blob)],
        }]);
        let mut members = layout.members();
        match damage {
            "index" => members.iter_mut().for_each(|(name, node)| {
                if name == "index.json" {
                    *node = file("[]");
                }
            }),
            "layout" => members.retain(|(name, _)| name != "oci-layout"),
            _ => {}
        }
        let whole = members.clone();
        members.push(("manifest.json".to_owned(), file(docker.to_string())));
        let filled = fixture();
        let loaded = load_bytes(&filled.store, &tar(&members)).unwrap();
        assert_eq!(names(&loaded), ["docker.io/library/a:1"], "{damage}");
        let image = filled.store.image("a:1", None).unwrap();
        assert_eq!((image.id(), image.manifest.layers.len()), (&config_blob.digest, 1), "{damage}");
        // Nothing else makes up for it.
        if damage != "entries" {
            load_bytes(&fixture().store, &tar(&whole)).unwrap_err();
        }
    }
}

#[test]
fn images_without_a_name_stay_without_one_or_get_one() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let image = layout.simple("a", "linux/amd64");
    layout.name(image, None);
    let archive = tar(&layout.members());
    assert!(names(&load_bytes(&fixture.store, &archive).unwrap()).is_empty());
    assert_eq!(fixture.store.names().unwrap().len(), 1);
    let options = LoadOptions {
        tags: vec![Reference::parse("x:1").unwrap()],
        ..LoadOptions::new(Arbiter::everything())
    };
    let input = Input::Stream(Box::new(&archive[..]));
    let loaded = load(&fixture.store, input, &options, &Silent).unwrap();
    assert_eq!(names(&loaded), ["localhost/x:1"]);
    let left = fixture.store.names().unwrap();
    assert_eq!(left.len(), 1, "the unnamed entry has become the named one");
    let two = layout.simple("b", "linux/amd64");
    layout.name(two, None);
    let archive = tar(&layout.members());
    let input = Input::Stream(Box::new(&archive[..]));
    let error = load(&fixture.store, input, &options, &Silent).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}

#[test]
fn directories_are_loaded_and_files_name_lone_tags() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let tar_bytes = layer("z");
    let image =
        layout.image(&[(media_type::OCI_LAYER_ZSTD, zstd(&tar_bytes), tar_bytes)], "linux/amd64");
    layout.name(image, Some("v1"));
    let directory = fixture.directory.path().join("My-Layout");
    layout.write(&directory);
    let archive = fixture.directory.path().join("etcd.tar.gz");
    std::fs::write(&archive, gzip(&tar(&layout.members()))).unwrap();
    for (path, name) in [(&directory, "localhost/my-layout:v1"), (&archive, "localhost/etcd:v1")] {
        let loaded = load(
            &fixture.store,
            Input::Path(path),
            &LoadOptions::new(Arbiter::everything()),
            &Silent,
        );
        assert_eq!(names(&loaded.unwrap()), [name]);
    }
    std::fs::remove_dir_all(directory.join("blobs")).unwrap();
    let fresh = testing::fixture();
    let input = Input::Path(&directory);
    let error =
        load(&fresh.store, input, &LoadOptions::new(Arbiter::everything()), &Silent).unwrap_err();
    assert_refused(&fresh.store, &error, "does not contain blob");
}

#[test]
fn a_directory_cannot_lend_files_from_elsewhere() {
    let fixture = fixture();
    let mut layout = Layout::default();
    let image = layout.simple("a", "linux/amd64");
    layout.name(image, Some("a:1"));
    let directory = fixture.directory.path().join("layout");
    layout.write(&directory);
    let blob = format!("blobs/sha256/{}", Digest::of(&layer("a")).hex());
    let outside = fixture.directory.path().join("outside");
    std::fs::rename(directory.join(&blob), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, directory.join(&blob)).unwrap();
    let input = Input::Path(&directory);
    assert!(
        load(&fixture.store, input, &LoadOptions::new(Arbiter::everything()), &Silent).is_err()
    );
    assert!(fixture.store.names().unwrap().is_empty());
}

#[test]
fn hostile_docker_archives_are_refused() {
    let good = docker(&["a:1"], &[layer("x")]);
    let with = |path: &str, node: Node| {
        let mut members = good.clone();
        match members.iter_mut().find(|(other, _)| other == path) {
            Some(place) => place.1 = node,
            None => members.push((path.to_owned(), node)),
        }
        tar(&members)
    };
    let manifest = |text: &str| with("manifest.json", file(text));
    let tars: [&[u8]; 1] = [&layer("other")];
    let lie = docker_with(&["a:1"], &[layer("x")], &config(&tars, "linux/amd64"));
    let zipped_lie = docker_with(&["a:1"], &[gzip(&layer("x"))], &config(&tars, "linux/amd64"));
    let mut twice = good.clone();
    twice.push(good[0].clone());
    let mut without_layer = good.clone();
    without_layer.remove(0);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (with("0/layer.tar", Node::Symlink("/etc/passwd")), "points outside the archive"),
        (with("0/layer.tar", Node::Symlink("../../etc/passwd")), "points outside the archive"),
        (with("0/layer.tar", Node::Symlink("layer.tar")), "part of a loop"),
        (with("0/layer.tar", Node::HardLink("nowhere")), "does not contain it"),
        (with("null", Node::Device), "no devices"),
        (manifest("[]"), "there is no image in it"),
        (manifest("{"), "manifest.json is malformed"),
        (manifest(r#"[{"Config":"../x","Layers":[]}]"#), "`..`"),
        (manifest(r#"[{"Config":"nowhere","Layers":[]}]"#), "does not contain it"),
        (manifest(r#"[{"Config":"0/layer.tar","Layers":[]}]"#), "config is malformed"),
        (tar(&lie), "but the config says"),
        (tar(&zipped_lie), "the uncompressed layer has the digest"),
        (tar(&twice), "twice"),
        (tar(&without_layer), "does not contain it"),
        (tar(&docker(&["NOT a name"], &[layer("x")])), "invalid image name"),
        (tar(&[("repositories".to_owned(), file("{}"))]), "not an image archive"),
        (tar(&[]), "not an image archive"),
    ];
    for (bytes, why) in cases {
        refused(&bytes, why);
    }
}

#[test]
fn hostile_oci_archives_are_refused() {
    let mut layout = Layout::default();
    let tar_bytes = layer("x");
    let image = layout
        .image(&[(media_type::OCI_LAYER_GZIP, gzip(&tar_bytes), tar_bytes.clone())], "linux/amd64");
    layout.name(image.clone(), Some("a:1"));
    let good = layout.members();
    let with = |path: &str, node: Node| {
        let mut members = good.clone();
        members.iter_mut().find(|(other, _)| other == path).unwrap().1 = node;
        tar(&members)
    };
    let layer_path = format!("blobs/sha256/{}", Digest::of(&gzip(&tar_bytes)).hex());
    let mut mixed_up = Layout::default();
    let other = layer("y");
    let mixed = mixed_up.image(&[(media_type::OCI_LAYER, other, tar_bytes.clone())], "linux/amd64");
    mixed_up.name(mixed, Some("a:1"));
    let mut masked = Layout::default();
    // The blob's digest given as diff ID, although the blob is compressed.
    let blob = gzip(&tar_bytes);
    let mask = masked.image(&[(media_type::OCI_LAYER, blob.clone(), blob)], "linux/amd64");
    masked.name(mask, Some("a:1"));
    let mut short = Layout::default();
    let mut shorter = short.simple("x", "linux/amd64");
    shorter.size -= 1;
    short.name(shorter, Some("a:1"));
    let mut schema1 = Layout::default();
    let old = schema1.blob(media_type::OCI_MANIFEST, br#"{"schemaVersion":1}"#);
    schema1.name(old, Some("a:1"));
    let mut empty_index = Layout::default();
    let absent = Layout::default().simple("s390x", "linux/s390x");
    let index = empty_index.index(vec![absent]);
    empty_index.name(index, Some("a:1"));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (with(&layer_path, file("garbage")), "cannot load /blobs/sha256/"),
        (with("index.json", file("[]")), "index.json is malformed"),
        (with("index.json", file(vec![b' '; (16 << 20) + 1])), "are allowed"),
        (with("oci-layout", file("{}")), "oci-layout file"),
        (with("oci-layout", file(r#"{"imageLayoutVersion":"9"}"#)), "unknown version 9"),
        (tar(&masked.members()), "is compressed, and its config"),
        (tar(&mixed_up.members()), "is not compressed, and its config"),
        (tar(&short.members()), "its descriptor says"),
        (tar(&schema1.members()), "schema 1"),
        (tar(&empty_index.members()), "none of its platforms"),
    ];
    for (bytes, why) in cases {
        refused(&bytes, why);
    }
}

/// The archive names the layer by its digest, which matches: nobody looks into it before it is used.
#[test]
fn a_wrong_diff_id_is_found_when_the_layer_is_unpacked() {
    let mut lying = Layout::default();
    let layers = [(media_type::OCI_LAYER_GZIP, gzip(&layer("y")), layer("x"))];
    let liar = lying.image(&layers, "linux/amd64");
    lying.name(liar, Some("a:1"));
    let archive = tar(&lying.members());
    let unpacking = LoadOptions { unpack: true, ..LoadOptions::new(Arbiter::everything()) };
    let fixture = fixture();
    let input = Input::Stream(Box::new(&archive[..]));
    let error = load(&fixture.store, input, &unpacking, &Silent).unwrap_err();
    assert_refused(&fixture.store, &error, "the uncompressed layer has the digest");
    let loaded = load_bytes(&fixture.store, &archive).unwrap();
    let image = fixture.store.image_at(&loaded[0].descriptor, None).unwrap();
    let error = snapshots::ensure(&fixture.store, &image, Privileges::current(), &Silent);
    assert_eq!(error.unwrap_err().kind(), Kind::BadContent);
    let (blob, diff_id) = image.layers().next().unwrap();
    assert!(fixture.store.toc(&blob.digest, diff_id).is_err());
    assert!(fixture.store.snapshot(diff_id).is_none());
}

#[test]
fn a_load_that_unpacks_leaves_snapshots_or_nothing() {
    let unpacking = LoadOptions { unpack: true, ..LoadOptions::new(Arbiter::everything()) };
    let mut layout = Layout::default();
    let tars = [layer("x"), layer("y")];
    let packed = tars.clone().map(|tar| (media_type::OCI_LAYER_GZIP, gzip(&tar), tar));
    let image = layout.image(&packed, "linux/amd64");
    layout.name(image, Some("a:1"));
    let archive = tar(&layout.members());
    let mut worse = Layout::default();
    let broken = (media_type::OCI_LAYER_GZIP, gzip(&layer("z")), layer("other"));
    let image = worse.image(&[packed[0].clone(), broken], "linux/amd64");
    worse.name(image, Some("a:1"));
    let worse = tar(&worse.members());
    let fixture = fixture();
    let load =
        |bytes: &[u8]| load(&fixture.store, Input::Stream(Box::new(bytes)), &unpacking, &Silent);
    let error = load(&worse).unwrap_err();
    assert_refused(&fixture.store, &error, "the uncompressed layer has the digest");
    let snapshots = || std::fs::read_dir(fixture.store.path("snapshots")).unwrap().count();
    assert_eq!(snapshots(), 0);
    load(&archive).unwrap();
    assert_eq!(snapshots(), 2);
    // What was there before stays.
    assert!(load(&worse).is_err());
    assert_eq!(snapshots(), 2);
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_ends() {
    let archive = tar(&docker(&["a:1"], &[layer("x"), layer("y")]));
    // Everything after the last member's content is padding: an archive may lack it.
    let content = 1 + archive.iter().rposition(|byte| *byte != 0).unwrap();
    for end in (0..content).step_by(487) {
        let fixture = fixture();
        let loaded = load_bytes(&fixture.store, &archive[..end]);
        assert!(loaded.is_err(), "{end} bytes were enough");
        assert!(fixture.store.names().unwrap().is_empty());
        assert!(fixture.store.path("blobs/sha256").read_dir().unwrap().next().is_none());
    }
    let zipped = gzip(&archive);
    refused(&zipped[..zipped.len() / 2], "");
}

#[test]
fn a_flipped_bit_anywhere_never_gives_an_image_that_differs_unnoticed() {
    let mut layout = Layout::default();
    let tar_bytes = layer("content");
    let image =
        layout.image(&[(media_type::OCI_LAYER_ZSTD, zstd(&tar_bytes), tar_bytes)], "linux/amd64");
    layout.name(image.clone(), Some("a:1"));
    let archive = tar(&layout.members());
    for position in (0..archive.len()).step_by(61) {
        let mut bytes = archive.clone();
        bytes[position] ^= 0x10;
        let fixture = fixture();
        // Some flips hit padding or names of files that are not needed; the image is then the same.
        if let Ok(loaded) = load_bytes(&fixture.store, &bytes) {
            assert_eq!(loaded[0].descriptor.digest, image.digest, "bit at {position}");
            let report = fixture.store.image_at(&loaded[0].descriptor, None).unwrap();
            for digest in report.digests().take(3) {
                assert_eq!(Digest::of(&fixture.store.read_blob(digest, 1 << 20).unwrap()), *digest);
            }
        }
    }
}

#[test]
fn bombs_hit_the_limits() {
    let fixture = fixture();
    let tar_bytes = tar(&[("zeros".to_owned(), file(vec![0; 1 << 20]))]);
    let config = config(&[&tar_bytes], "linux/amd64");
    let limits = Limits { size: 256 << 10, ..Limits::default() };
    let store = fixture.store.with_limits(limits);
    for blob in [bzip2(&tar_bytes), gzip(&tar_bytes)] {
        let archive = tar(&docker_with(&["a:1"], &[blob], &config));
        let input = Input::Stream(Box::new(&archive[..]));
        let error =
            load(&store, input, &LoadOptions::new(Arbiter::everything()), &Silent).unwrap_err();
        assert_refused(&store, &error, "");
    }
}

#[test]
fn what_was_there_before_survives_a_failed_load() {
    let fixture = fixture();
    let good = tar(&docker(&["a:1"], &[layer("x")]));
    load_bytes(&fixture.store, &good).unwrap();
    let before = fixture.store.list().unwrap().len();
    let tars: [&[u8]; 1] = [&layer("other")];
    let bad = docker_with(&["a:1"], &[layer("x")], &config(&tars, "linux/amd64"));
    assert!(load_bytes(&fixture.store, &tar(&bad)).is_err());
    assert_eq!(fixture.store.list().unwrap().len(), before);
    assert!(fixture.store.image("docker.io/library/a:1", None).is_ok());
    assert!(fixture.store.blob_size(&Digest::of(&layer("x"))).unwrap().is_some());
}

/// Documents with a few bytes changed, cut or repeated: loading never panics, and images that load
/// are complete.
#[test]
fn mutated_documents_are_refused_or_harmless() {
    let mut layout = Layout::default();
    let image = layout.simple("x", "linux/amd64");
    layout.name(image, Some("a:1"));
    let index = match &layout.members()[0].1 {
        Node::File(bytes) => bytes.clone(),
        _ => unreachable!("the first member is index.json"),
    };
    bolero::check!().for_each(|changes: &[u8]| {
        let mut bytes = index.clone();
        for change in changes.chunks_exact(3).take(8) {
            let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
            match change[2] {
                b @ 0..=127 => bytes[place] = b,
                128..=191 => bytes.truncate(place.max(1)),
                _ => bytes.insert(place, b'"'),
            }
        }
        if let Ok(found) = oci_layout::images(&bytes, Some("stem"), &mut |_| {}) {
            for image in found.images {
                assert!(image.references.iter().all(|name| name.registry().is_some()));
            }
        }
    });
}
