//! Tests of blobs, names and leases together, in a real directory.

use std::io::{Read, Write};
use std::path::Path;

use super::*;
use imgctl_base::error::Kind;
use imgctl_base::image::{Descriptor, Digest, Index, Platform, Reference, Verdict, media_type};

/// A store that is removed after the test.
pub(super) struct Fixture {
    pub(super) directory: tempfile::TempDir,
    pub(super) store: Store,
}

pub(super) fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let store = reopen(directory.path());
    Fixture { directory, store }
}

/// A verdict for tests.
pub(super) fn anyone() -> Verdict {
    Verdict::not_asked("a test")
}

pub(super) fn reopen(directory: &Path) -> Store {
    Store::open(&directory.join("root"), Options { sync: false }).unwrap()
}

/// Stores an image with one layer (any bytes) for `platform`.
pub(super) fn put_image(store: &Store, layer: &[u8], platform: &str) -> Descriptor {
    let platform = Platform::parse(platform).unwrap();
    let layer_digest = store.put_blob(layer).unwrap();
    let config = serde_json::json!({
        "architecture": platform.architecture, "os": platform.os, "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
    });
    let config = config.to_string();
    let config_digest = store.put_blob(config.as_bytes()).unwrap();
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": Descriptor::new(media_type::OCI_CONFIG, config_digest, config.len() as u64),
        "layers": [Descriptor::new(media_type::OCI_LAYER, layer_digest, layer.len() as u64)],
    });
    let manifest = manifest.to_string();
    let digest = store.put_blob(manifest.as_bytes()).unwrap();
    let mut descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, manifest.len() as u64);
    descriptor.platform = Some(platform);
    descriptor
}

/// Stores an index over `manifests`.
pub(super) fn put_index(store: &Store, manifests: Vec<Descriptor>) -> Descriptor {
    let index = serde_json::to_string(&Index::new(manifests)).unwrap();
    let digest = store.put_blob(index.as_bytes()).unwrap();
    Descriptor::new(media_type::OCI_INDEX, digest, index.len() as u64)
}

pub(super) fn name(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

#[test]
fn the_layout_is_made_once_and_kept() {
    let fixture = fixture();
    let index = fixture.store.path("index.json");
    std::fs::write(&index, br#"{"schemaVersion":2,"manifests":[],"kept":1}"#).unwrap();
    let again = reopen(fixture.directory.path());
    assert!(std::fs::read_to_string(&index).unwrap().contains("kept"));
    assert_eq!(
        std::fs::read_to_string(again.path("oci-layout")).unwrap(),
        r#"{"imageLayoutVersion":"1.0.0"}"#
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(again.root()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn root_uses_no_store_that_another_user_may_change() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !imgctl_base::testing::needs_root() {
        return;
    }
    let refused = |owner: (u32, u32), mode: u32, why: &str| {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("root");
        for has_store in [false, true] {
            if has_store {
                chown(&root, Some(0), Some(0)).unwrap();
                std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
                reopen(scratch.path());
            } else {
                std::fs::create_dir(&root).unwrap();
            }
            chown(&root, Some(owner.0), Some(owner.1)).unwrap();
            std::fs::set_permissions(&root, PermissionsExt::from_mode(mode)).unwrap();
            let error = Store::open(&root, Options { sync: false }).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            assert!(error.to_string().contains(why), "{error}");
        }
    };
    refused((65534, 0), 0o700, "user 65534, who owns it, may change");
    refused((0, 65534), 0o775, "group 65534 may change");
    refused((0, 0), 0o777, "every user may change");
    // Root's group is root.
    let fixture = fixture();
    std::fs::set_permissions(fixture.store.root(), PermissionsExt::from_mode(0o775)).unwrap();
    reopen(fixture.directory.path());
    // A file system in memory has the mode of /tmp.
    std::fs::set_permissions(fixture.store.root(), PermissionsExt::from_mode(0o1777)).unwrap();
    reopen(fixture.directory.path());
    chown(fixture.store.layout(), Some(65534), None).unwrap();
    let error = Store::open(fixture.store.root(), Options { sync: false }).unwrap_err();
    assert!(error.to_string().contains("user 65534"), "{error}");
}

#[test]
fn a_store_from_the_future_is_refused() {
    let fixture = fixture();
    std::fs::write(fixture.store.path("version"), "2\n").unwrap();
    let error = Store::open(fixture.store.root(), Options { sync: false }).unwrap_err();
    assert!(error.to_string().contains("format 2"), "{error}");
}

#[test]
fn a_blob_comes_in_whole_or_not_at_all() {
    let fixture = fixture();
    let store = &fixture.store;
    let (good, digest) = (b"content".as_slice(), Digest::of(b"content"));
    for (bytes, size, why) in [
        (b"conten".as_slice(), 7, "fewer bytes"),
        (b"contents", 7, "more bytes"),
        (b"cOntent", 7, "other content"),
    ] {
        let error = store.import_blob(&mut &bytes[..], &digest, size).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(store.blob_size(&digest).unwrap(), None);
    }
    store.import_blob(&mut &good[..], &digest, 7).unwrap();
    assert_eq!(store.read_blob(&digest, 7).unwrap(), good);
    assert!(store.read_blob(&digest, 6).is_err(), "the limit holds");
    assert_eq!(entries(&store.path("ingest")), 0);
    // An existing blob is not read again.
    let mut untouched = &b"anything"[..];
    store.import_blob(&mut untouched, &digest, 7).unwrap();
    assert_eq!(untouched.len(), 8);
}

#[test]
fn other_digest_algorithms_have_their_own_directory() {
    let fixture = fixture();
    let mut hasher = imgctl_base::image::Hasher::with(imgctl_base::image::Algorithm::Sha512);
    hasher.update(b"x");
    let digest = hasher.finish();
    fixture.store.import_blob(&mut &b"x"[..], &digest, 1).unwrap();
    assert_eq!(fixture.store.read_blob(&digest, 1).unwrap(), b"x");
    assert_eq!(fixture.store.blob_digests().unwrap(), [digest]);
}

#[test]
fn a_damaged_blob_is_told_from_a_missing_one() {
    let fixture = fixture();
    let digest = fixture.store.put_blob(b"abc").unwrap();
    let path = fixture.store.blob_path(&digest);
    std::fs::remove_file(&path).unwrap();
    let missing = fixture.store.read_blob(&digest, 9).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert!(missing.to_string().contains(digest.hex()), "{missing}");
    std::fs::write(&path, "abd").unwrap();
    let damaged = fixture.store.read_blob(&digest, 9).unwrap_err();
    assert_eq!(damaged.kind(), Kind::BadContent);
    assert!(!fixture.store.verify_blob(&digest).unwrap());
}

#[test]
fn a_torn_blob_is_replaced_by_the_next_commit() {
    let fixture = fixture();
    let digest = Digest::of(b"abc");
    std::fs::write(fixture.store.blob_path(&digest), "").unwrap();
    fixture.store.put_blob(b"abc").unwrap();
    assert_eq!(fixture.store.read_blob(&digest, 9).unwrap(), b"abc");
}

#[test]
fn an_abandoned_ingest_leaves_nothing_and_a_dead_ones_is_swept() {
    let fixture = fixture();
    let ingests = fixture.store.path("ingest");
    let mut ingest = fixture.store.ingest().unwrap();
    ingest.write_all(b"half").unwrap();
    std::fs::write(ingests.join("1.dead"), "half").unwrap();
    reopen(fixture.directory.path());
    assert_eq!(entries(&ingests), 1, "the living one stays, the dead one goes");
    drop(ingest);
    assert_eq!(entries(&ingests), 0);
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_written() {
    let fixture = fixture();
    let store = &fixture.store;
    let here = store.put_blob(b"here").unwrap();
    let blob = |digest: &Digest, size| Descriptor::new(media_type::OCI_LAYER, digest.clone(), size);
    let (here, small) = (blob(&here, 4), blob(&Digest::of(b"small"), 5));
    let half = blob(&Digest::of(b"half"), 1 << 62);
    store.check_room_for([&here, &small]).unwrap();
    drop(store.ingest_of(5).unwrap());
    let others = [blob(&Digest::of(b"a"), u64::MAX), blob(&Digest::of(b"b"), u64::MAX)];
    for error in [
        store.ingest_of(1 << 62).unwrap_err(),
        store.check_room_for([&here, &half]).unwrap_err(),
        store.check_room_for(&others).unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        assert!(error.hints()[0].contains("imgctl prune"), "{error}");
    }
    assert_eq!(entries(&store.path("ingest")), 0);
    // What an interrupted download has brought needs no room again.
    let interrupted = store.partial(&half.digest, half.size).unwrap().unwrap();
    let place = store.path("ingest").join(half.digest.hex()).with_added_extension("partial");
    std::fs::File::options().write(true).open(place).unwrap().set_len((1 << 43) - 1).unwrap();
    let cut = blob(&half.digest, 1 << 43);
    store.check_room_for([&cut]).unwrap();
    drop(interrupted);
}

#[test]
fn a_scratch_file_has_no_name() {
    let fixture = fixture();
    let mut file = fixture.store.scratch_file().unwrap();
    file.write_all(b"x").unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    assert_eq!(entries(&fixture.store.path("ingest")), 0);
}

#[test]
fn many_threads_may_write_the_same_blobs() {
    let fixture = fixture();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let store = reopen(fixture.directory.path());
            scope.spawn(move || {
                for number in 0_u32..40 {
                    let digest = store.put_blob(&number.to_le_bytes()).unwrap();
                    assert_eq!(store.read_blob(&digest, 4).unwrap(), number.to_le_bytes());
                }
            });
        }
    });
    assert_eq!(fixture.store.blob_digests().unwrap().len(), 40);
    assert_eq!(entries(&fixture.store.path("ingest")), 0);
}

#[test]
fn names_set_at_the_same_time_are_all_there() {
    let fixture = fixture();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let store = reopen(fixture.directory.path());
            scope.spawn(move || {
                for number in 0..10 {
                    let image = put_image(&store, &[thread, number], "linux/amd64");
                    let name = name(&format!("localhost/t{thread}:{number}"));
                    store.tag(&[name], &image, &anyone()).unwrap();
                }
            });
        }
    });
    assert_eq!(fixture.store.names().unwrap().len(), 60);
}

#[test]
fn an_image_whose_annotations_name_another_list_gets_no_name() {
    use imgctl_layer::chunked::{CHECKSUM, POSITION};
    let fixture = fixture();
    let store = &fixture.store;
    let plain = put_image(store, b"a layer with a list", "linux/amd64");
    let tag = |list: &[u8]| {
        let mut manifest = store.image_at(&plain, None).unwrap().manifest;
        let annotations = &mut manifest.layers[0].annotations;
        annotations.insert(CHECKSUM.to_owned(), Digest::of(list).to_string());
        annotations.insert(POSITION.to_owned(), "15:4:9:1".to_owned());
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let digest = store.put_blob(&bytes).unwrap();
        let image = Descriptor::new(media_type::OCI_MANIFEST, digest, bytes.len() as u64);
        let tagged = store.tag(&[name("localhost/a:1")], &image, &anyone());
        tagged.map_err(|error| error.chain().join(": "))
    };
    let refused = tag(b"list").unwrap_err();
    assert!(refused.contains(POSITION), "{refused}");
    // What has another digest is of no use to anybody.
    tag(b"tsil").unwrap();
}

#[test]
fn nothing_incomplete_is_named() {
    let fixture = fixture();
    let store = &fixture.store;
    let image = put_image(store, b"layer", "linux/amd64");
    std::fs::remove_file(store.blob_path(&Digest::of(b"layer"))).unwrap();
    let error = store.tag(&[name("x:1")], &image, &anyone()).unwrap_err();
    assert!(error.to_string().contains(Digest::of(b"layer").hex()), "{error}");
    assert!(store.names().unwrap().is_empty());
    std::fs::write(store.blob_path(&Digest::of(b"layer")), "laye").unwrap();
    assert!(store.tag(&[name("x:1")], &image, &anyone()).is_err(), "a torn layer");
}

#[test]
fn names_ids_and_digests_are_resolved() {
    let fixture = fixture();
    let store = &fixture.store;
    let amd = put_image(store, b"a", "linux/amd64");
    let arm = put_image(store, b"b", "linux/arm64");
    let index = put_index(store, vec![amd.clone(), arm.clone()]);
    let lone = put_image(store, b"c", "linux/amd64");
    store.tag(&[name("etcd:v1")], &index, &anyone()).unwrap();
    store.tag(&[name("docker.io/library/nginx:latest")], &lone, &anyone()).unwrap();
    let image_id = store.image("nginx", None).unwrap().id().clone();
    let by_digest = format!("etcd@{}", index.digest);
    for (text, digest, named) in [
        ("etcd:v1", &index.digest, Some("localhost/etcd:v1")),
        ("localhost/etcd:v1", &index.digest, Some("localhost/etcd:v1")),
        (&by_digest, &index.digest, Some("localhost/etcd:v1")),
        ("nginx", &lone.digest, Some("docker.io/library/nginx:latest")),
        (&lone.digest.to_string(), &lone.digest, None),
        (&lone.digest.hex()[..12], &lone.digest, None),
        (&arm.digest.to_string(), &arm.digest, None),
        (image_id.hex(), &lone.digest, None),
        (&image_id.hex()[..10], &lone.digest, None),
    ] {
        let found = store.resolve(text).unwrap();
        assert_eq!(&found.descriptor.digest, digest, "{text}");
        let reference = found.reference.map(|reference| reference.to_string());
        assert_eq!(reference.as_deref(), named, "{text}");
    }
}

#[test]
fn names_that_look_like_ids_or_have_other_digests_are_nothing() {
    let fixture = fixture();
    let store = &fixture.store;
    let good = put_image(store, b"good", "linux/amd64");
    let evil = put_image(store, b"evil", "linux/amd64");
    let index = put_index(store, vec![good.clone()]);
    store.tag(&[name("good:1")], &good, &anyone()).unwrap();
    let id = store.image("good:1", None).unwrap().id().clone();
    let (other, own) = (Digest::of(b"other"), format!("good@{}", good.digest));
    let (hex, alpine) = (format!("localhost/{}", id.hex()), format!("alpine@{other}"));
    for claimed in [&hex, &format!("localhost/{id}"), &alpine, &own] {
        store.tag(&[name(claimed)], &evil, &anyone()).unwrap();
    }
    for text in [id.hex().to_owned(), id.to_string(), own] {
        assert_eq!(store.resolve(&text).unwrap().descriptor.digest, good.digest, "{text}");
    }
    assert_eq!(store.resolve(&alpine).unwrap_err().kind(), Kind::NotFound);
    // The name that a pull gives to the image of one platform.
    let of_index = format!("good@{}", index.digest);
    store.tag(&[name(&of_index)], &good, &anyone()).unwrap();
    assert_eq!(store.resolve(&of_index).unwrap().descriptor.digest, good.digest);
}

#[test]
fn what_is_not_there_is_explained() {
    let fixture = fixture();
    let store = &fixture.store;
    store.tag(&[name("etcd:v1")], &put_image(store, b"a", "linux/amd64"), &anyone()).unwrap();
    for (text, hint) in [
        ("etcdd:v1", "did you mean localhost/etcd:v1?"),
        ("etcd:v2", "did you mean localhost/etcd:v1?"),
        ("completely/else", "`imgctl images` lists"),
        ("deadbeef", "`imgctl images` lists"),
    ] {
        let error = store.resolve(text).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.hints().join(" ").contains(hint), "{text}: {:?}", error.hints());
    }
}

#[test]
fn an_ambiguous_id_lists_what_it_may_be() {
    let fixture = fixture();
    let store = &fixture.store;
    // With 300 images, some of the 600 IDs share their first four digits.
    for number in 0_u32..300 {
        let image = put_image(store, &number.to_le_bytes(), "linux/amd64");
        store.tag(&[], &image, &anyone()).unwrap();
    }
    let mut ids: Vec<String> = Vec::new();
    for named in store.names().unwrap() {
        ids.push(named.descriptor.digest.hex().to_owned());
        ids.push(store.image_at(&named.descriptor, None).unwrap().id().hex().to_owned());
    }
    ids.sort();
    let twins = ids.windows(2).find(|pair| pair[0][..4] == pair[1][..4]).unwrap();
    let error = store.resolve(&twins[0][..4]).unwrap_err();
    for id in twins {
        assert!(error.to_string().contains(id), "{error}");
    }
}

#[test]
fn the_platform_is_chosen_or_refused() {
    let fixture = fixture();
    let store = &fixture.store;
    let arm = put_image(store, b"b", "linux/arm64");
    let riscv = put_image(store, b"r", "linux/riscv64");
    let index = put_index(store, vec![arm.clone(), riscv]);
    let wanted = |text: &str| Platform::parse(text).unwrap();
    let found = store.image_at(&index, Some(&wanted("linux/arm64/v8"))).unwrap();
    assert_eq!(found.descriptor.digest, arm.digest);
    let error = store.image_at(&index, Some(&wanted("linux/s390x"))).unwrap_err();
    assert!(error.to_string().contains("linux/riscv64"), "{error}");
    assert!(store.image_at(&arm, Some(&wanted("linux/amd64"))).is_err());
    assert!(store.image_at(&arm, None).is_ok(), "the only one there is");
    let only = put_index(store, vec![put_image(store, b"z", "linux/s390x")]);
    assert!(store.image_at(&only, None).is_ok(), "the only one of an index");
}

#[test]
fn what_is_no_image_says_so() {
    let fixture = fixture();
    let store = &fixture.store;
    let empty = store.put_blob(b"{}").unwrap();
    let config = |media: &str| Descriptor::new(media, empty.clone(), 2);
    let manifest = |config: Descriptor, layers: Vec<Descriptor>| {
        let text = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": config, "layers": layers,
        })
        .to_string();
        let digest = store.put_blob(text.as_bytes()).unwrap();
        Descriptor::new(media_type::OCI_MANIFEST, digest, text.len() as u64)
    };
    let layer = Descriptor::new(media_type::OCI_LAYER, empty.clone(), 2);
    let mut loop_index = put_index(store, vec![]);
    for _ in 0..6 {
        loop_index = put_index(store, vec![loop_index]);
    }
    let mut wrong_size = manifest(config(media_type::OCI_CONFIG), vec![]);
    wrong_size.size += 1;
    for (descriptor, why) in [
        (manifest(config("application/vnd.oci.empty.v1+json"), vec![]), "artifact"),
        (manifest(config(media_type::OCI_CONFIG), vec![layer]), "1 layers but its config lists 0"),
        (
            manifest(config(media_type::OCI_CONFIG), vec![config("text/plain")]),
            "not a file system layer",
        ),
        (loop_index, "nests more than"),
        (wrong_size, "its descriptor says"),
    ] {
        let error = store.image_at(&descriptor, None).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_lease_counts_while_its_holder_lives() {
    let fixture = fixture();
    let store = reopen(fixture.directory.path());
    let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
    let lease = store.lease().unwrap();
    lease.hold(&a).unwrap();
    lease.hold_all([&a, &b]).unwrap();
    std::fs::write(store.path("leases").join("1.dead"), Digest::of(b"c").to_string()).unwrap();
    let leased = fixture.store.leased().unwrap();
    assert_eq!(leased, [a, b].into_iter().collect());
    assert_eq!(entries(&store.path("leases")), 1, "a dead lease is removed");
    drop(lease);
    assert!(fixture.store.leased().unwrap().is_empty());
}

#[test]
fn what_a_store_value_wrote_or_read_is_leased_with_it() {
    let fixture = fixture();
    let (descriptor, config) = {
        let store = reopen(fixture.directory.path());
        let descriptor = put_image(&store, b"layer", "linux/amd64");
        assert!(fixture.store.leased().unwrap().contains(&Digest::of(b"layer")));
        let config = store.image_at(&descriptor, None).unwrap().id().clone();
        (descriptor, config)
    };
    assert!(fixture.store.leased().unwrap().is_empty());
    let reader = reopen(fixture.directory.path());
    reader.image_at(&descriptor, None).unwrap();
    let leased = fixture.store.leased().unwrap();
    for digest in [&descriptor.digest, &config, &Digest::of(b"layer")] {
        assert!(leased.contains(digest));
    }
}

#[test]
fn a_snapshot_is_made_once_however_many_want_it() {
    let fixture = fixture();
    let diff_id = Digest::of(b"layer");
    let fills = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let store = reopen(fixture.directory.path());
            scope.spawn(|| {
                let store = store;
                let mut fill = |directory: &Path| {
                    fills.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    std::fs::write(directory.join("file"), "x").unwrap();
                    Ok(())
                };
                let path = store.make_snapshot(&diff_id, &mut fill).unwrap();
                assert!(path.join("file").exists());
            });
        }
    });
    assert_eq!(fills.into_inner(), 1);
    assert!(fixture.store.snapshot(&diff_id).is_some());
    assert_eq!(entries(&fixture.store.path("snapshots")), 1, "no lock or part is left");
}

#[test]
fn a_failed_snapshot_leaves_nothing_and_can_be_made_again() {
    let fixture = fixture();
    let store = &fixture.store;
    let diff_id = Digest::of(b"layer");
    let mut fail = |directory: &Path| {
        std::fs::write(directory.join("half"), "x").unwrap();
        Err(imgctl_base::error::Error::failed("no"))
    };
    assert!(store.make_snapshot(&diff_id, &mut fail).is_err());
    assert!(store.snapshot(&diff_id).is_none());
    assert_eq!(entries(&store.path("snapshots")), 0);
    // Leftovers of a killed process do not interfere.
    let part = store.path("snapshots").join(format!("{}.part", diff_id.hex()));
    std::fs::create_dir_all(part.join("fs/old")).unwrap();
    let path = store.make_snapshot(&diff_id, &mut |_| Ok(())).unwrap();
    assert_eq!(entries(&path), 0);
}

#[test]
fn after_a_crash_unsynced_leftovers_are_not_trusted() {
    let fixture = fixture();
    let store = &fixture.store;
    let good = store.put_blob(b"good").unwrap();
    let torn = store.put_blob(b"torn").unwrap();
    store.make_snapshot(&torn, &mut |_| Ok(())).unwrap();
    let path = store.blob_path(&torn);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "\0\0\0\0").unwrap();
    std::fs::write(store.path("boot"), "another boot").unwrap();
    let store = reopen(fixture.directory.path());
    assert_eq!(store.blob_size(&torn).unwrap(), None);
    assert_eq!(store.blob_size(&good).unwrap(), Some(4));
    assert!(store.snapshot(&torn).is_none());
    assert!(!store.path("unsynced").exists());
    assert_eq!(entries(&store.path("trash")), 0);
}

#[test]
fn a_new_store_has_no_crash_behind_it() {
    let fixture = fixture();
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(fixture.store.path("unsynced").exists());
    // A recovery would have removed the marker that a real crash needs.
    assert_eq!(std::fs::read(fixture.store.path("boot")).unwrap(), boot);
}

#[test]
fn a_synced_name_makes_unsynced_blobs_durable_first() {
    let fixture = fixture();
    let image = put_image(&fixture.store, b"layer", "linux/amd64");
    assert!(fixture.store.path("unsynced").exists());
    let synced = Store::open(fixture.store.root(), Options { sync: true }).unwrap();
    synced.tag(&[name("x:1")], &image, &anyone()).unwrap();
    assert!(!fixture.store.path("unsynced").exists());
}

#[test]
fn skopeo_reads_the_store_by_name() {
    let fixture = fixture();
    let store = &fixture.store;
    store.tag(&[name("x:v1")], &put_image(store, b"layer", "linux/amd64"), &anyone()).unwrap();
    let source = format!("oci:{}:localhost/x:v1", store.layout().display());
    let output = std::process::Command::new("skopeo")
        .args(["inspect", &source])
        .output()
        .expect("scripts/setup installs skopeo");
    let mut text = String::new();
    (&output.stdout[..]).read_to_string(&mut text).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(Digest::of(b"layer").hex()), "{text}");
}
