//! Tests of scrub: intact data passes, every kind of damage is found, repair makes room for good
//! data.

use std::os::fd::OwnedFd;

use super::scrub::{ScrubOptions, ScrubReport};
use super::tests::{Fixture, anyone, fixture, name, put_image, put_index};
use super::*;
use imgctl_base::image::Digest;
use imgctl_base::progress::Silent;
use imgctl_layer::unpack::{Form, NoLowerFiles, Privilege, Unpacker};
use imgctl_layer::{
    Compression, Entry, EntryKind, LayerPath, LayerWriter, Limits, Names, TarReader,
};

const FULL: ScrubOptions = ScrubOptions { diff_ids: true, deep: true, repair: false };

fn path(text: &str) -> LayerPath {
    LayerPath::parse(text.as_bytes()).unwrap()
}

/// Returns a plain tar with entries of many kinds.
fn layer() -> Vec<u8> {
    let mut writer = LayerWriter::start(Vec::new(), Compression::None, 1).unwrap();
    let mut add = |name: &str, kind: EntryKind, content: &str| {
        let mode = if kind == EntryKind::Directory { 0o755 } else { 0o640 };
        let mut entry = Entry::new(path(name), kind, mode);
        entry.mtime.seconds = 1_000_000_000;
        writer.add(entry, &mut content.as_bytes()).unwrap();
    };
    let file = |content: &str| EntryKind::File { size: content.len() as u64 };
    add("d", EntryKind::Directory, "");
    add("d/.wh.gone", file(""), "");
    add("d/file", file("content"), "content");
    add("d/hard", EntryKind::HardLink { target: path("d/file") }, "");
    add("d/link", EntryKind::Symlink { target: b"file".to_vec() }, "");
    add("implied/file", file("x"), "x");
    writer.finish().unwrap().0
}

/// Returns a store with one image of [`layer`] and its snapshot.
fn filled() -> (Fixture, Digest) {
    let fixture = fixture();
    let store = &fixture.store;
    let tar = layer();
    let diff_id = Digest::of(&tar);
    store.tag(&[name("x:1")], &put_image(store, &tar, "linux/amd64"), &anyone()).unwrap();
    let mut fill = |directory: &Path| {
        let root: OwnedFd = std::fs::File::open(directory).unwrap().into();
        let privilege =
            if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User };
        let form = Form::Overlay { user_xattrs: privilege == Privilege::User };
        let mut unpacker = Unpacker::new(root, form, privilege).unwrap();
        let mut tar = TarReader::new(&tar[..], Limits::default(), Names::Layer);
        while let Some(entry) = tar.next_entry().unwrap() {
            unpacker.apply(&entry, &mut tar, &NoLowerFiles).unwrap();
        }
        unpacker.finish().unwrap();
        Ok(())
    };
    store.make_snapshot(&diff_id, &mut fill).unwrap();
    (fixture, diff_id)
}

fn scrub(store: &Store, options: ScrubOptions) -> ScrubReport {
    store.scrub(&options, &Silent).unwrap()
}

/// Returns all problems as one text.
fn problems(report: &ScrubReport) -> String {
    let lines = report.problems.iter().map(|p| format!("{}: {}\n", p.subject, p.detail));
    lines.collect()
}

#[test]
fn a_whole_store_has_no_problems() {
    let (fixture, _) = filled();
    let store = &fixture.store;
    let absent = put_image(store, b"other", "linux/arm64");
    let index = put_index(store, vec![put_image(store, &layer(), "linux/amd64"), absent.clone()]);
    store.tag(&[name("m:1")], &index, &anyone()).unwrap();
    std::fs::remove_file(store.blob_path(&absent.digest)).unwrap();
    let report = scrub(store, FULL);
    assert_eq!(problems(&report), "");
    assert_eq!((report.images, report.snapshots, report.unchecked), (2, 1, 0));
    assert!(report.blobs > 3 && report.bytes > 2048);
}

#[test]
fn damaged_blobs_are_found_moved_away_and_can_be_stored_again() {
    let (fixture, diff_id) = filled();
    let store = &fixture.store;
    let blob = store.blob_path(&diff_id);
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[700] ^= 1;
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(&blob, &bytes).unwrap();
    let found = problems(&scrub(store, ScrubOptions::default()));
    assert!(found.contains(&format!("blob {diff_id}: its content")), "{found}");
    assert!(blob.exists(), "nothing is touched without --repair");
    let repair = ScrubOptions { repair: true, ..ScrubOptions::default() };
    assert!(scrub(store, repair).problems[0].repaired);
    let found = problems(&scrub(store, ScrubOptions::default()));
    assert!(found.contains("image localhost/x:1") && found.contains(diff_id.hex()), "{found}");
    store.put_blob(&layer()).unwrap();
    assert_eq!(problems(&scrub(store, FULL)), "");
    let plan = store.plan_prune(&prune::PruneOptions::default()).unwrap();
    assert_eq!(plan.garbage.len(), 1, "what was moved away");
}

#[test]
fn broken_chains_from_a_name_are_found() {
    for (damage, expected) in
        [("manifest", "is not in the store"), ("config", "is not in the store")]
    {
        let (fixture, _) = filled();
        let store = &fixture.store;
        let image = store.image("x:1", None).unwrap();
        let digest = match damage {
            "manifest" => &image.descriptor.digest,
            _ => image.id(),
        };
        std::fs::remove_file(store.blob_path(digest)).unwrap();
        let found = problems(&scrub(store, ScrubOptions::default()));
        assert!(found.contains("image localhost/x:1"), "{found}");
        assert!(found.contains(expected) && found.contains(digest.hex()), "{found}");
    }
}

#[test]
fn a_layer_with_another_diff_id_is_found() {
    let fixture = fixture();
    let store = &fixture.store;
    // The layer is not a tar, so its diff ID cannot match.
    let tar = vec![1; 2000];
    store.tag(&[name("x:1")], &put_image(store, &tar, "linux/amd64"), &anyone()).unwrap();
    assert_eq!(problems(&scrub(store, ScrubOptions::default())), "");
    let found = problems(&scrub(store, FULL));
    assert!(found.contains(&format!("layer {}", Digest::of(&tar))), "{found}");
}

#[test]
fn every_change_of_a_snapshot_is_found() {
    use std::os::unix::fs::PermissionsExt;
    type Damage = fn(&Path);
    let cases: [(Damage, bool, &str); 8] = [
        (|fs| std::fs::remove_file(fs.join("d/link")).unwrap(), false, "/d/link is missing"),
        (|fs| std::fs::write(fs.join("extra"), "").unwrap(), false, "/extra is not in the layer"),
        (|fs| std::fs::write(fs.join("d/file"), "longer than it").unwrap(), false, "another size"),
        (|fs| touch(&fs.join("implied/file"), "y", true), true, "/implied/file has other content"),
        (|fs| touch(&fs.join("implied/file"), "x", false), false, "another modification time"),
        (
            |fs| std::fs::set_permissions(fs.join("d"), PermissionsExt::from_mode(0o700)).unwrap(),
            false,
            "/d has mode 700, not 755",
        ),
        (
            |fs| {
                std::fs::remove_file(fs.join("d/link")).unwrap();
                std::fs::create_dir(fs.join("d/link")).unwrap();
            },
            false,
            "/d/link is of another type",
        ),
        (|fs| std::fs::remove_dir_all(fs).unwrap(), false, "no fs directory"),
    ];
    for (damage, deep, expected) in cases {
        let (fixture, diff_id) = filled();
        let store = &fixture.store;
        damage(&store.snapshot(&diff_id).unwrap());
        let found = problems(&scrub(store, ScrubOptions { deep, ..ScrubOptions::default() }));
        assert!(found.contains(expected), "{expected}: {found}");
        let repair = ScrubOptions { deep, repair: true, ..ScrubOptions::default() };
        assert!(scrub(store, repair).problems[0].repaired);
        assert!(store.snapshot(&diff_id).is_none());
    }
}

/// Rewrites a file; keeps its modification time if requested.
fn touch(path: &Path, content: &str, keep_time: bool) {
    let before = std::fs::metadata(path).unwrap().modified().unwrap();
    std::fs::write(path, content).unwrap();
    if keep_time {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(before).unwrap();
    }
}

#[test]
fn a_torn_table_of_contents_is_no_damage_and_is_made_again() {
    let (fixture, diff_id) = filled();
    let store = &fixture.store;
    let before = store.toc(&diff_id, &diff_id).unwrap();
    let path = store.path("toc").join(diff_id.hex());
    let whole = std::fs::read(&path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    // States of an unsynced file after a power failure: partial, zeros or empty.
    for torn in [changed, whole[..40].to_vec(), vec![0; whole.len()], vec![]] {
        std::fs::write(&path, torn).unwrap();
        assert_eq!(problems(&scrub(store, ScrubOptions::default())), "");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
    assert_eq!(store.toc(&diff_id, &diff_id).unwrap(), before);
    // A table of a missing layer is removed.
    let stray = store.path("toc").join(Digest::of(b"other").hex());
    std::fs::write(&stray, b"torn").unwrap();
    assert_eq!(problems(&scrub(store, FULL)), "");
    assert!(!stray.exists());
}

/// Everything that is not synced, as a power failure may leave it: made again, or as good as absent.
#[test]
fn torn_caches_and_records_are_no_damage() {
    let (fixture, diff_id) = filled();
    let store = &fixture.store;
    let image = store.image("x:1", None).unwrap();
    let fs = store.snapshot(&diff_id).unwrap();
    let files = [
        store.path("cache/steps").join("aa"),
        store.path("cache/stat").join("bb"),
        store.path("cache/recompressed").join("cc"),
        store.path("cache/known-blobs").join("registry"),
        store.path("mounts/0123456789ab/mount.json"),
        fs.with_file_name("implied"),
    ];
    for torn in [&b""[..], &[0; 700], b"{\"digests\": [\"sha256:"] {
        for file in &files {
            // A record with some bytes is somebody's: a name replaces a file whole.
            if !(file.ends_with("mount.json") && torn.starts_with(b"{")) {
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, torn).unwrap();
            }
        }
        assert_eq!(problems(&scrub(store, FULL)), "");
        store.plan_prune(&prune::PruneOptions::default()).unwrap();
        let privileges = crate::mount::privilege::Privileges::current();
        crate::mount::snapshots::ensure(store, &image, privileges, &Silent).unwrap();
    }
    crate::mount::sweep(store).unwrap();
    assert!(!files[4].exists(), "a mount that a power cut has ended");
}
