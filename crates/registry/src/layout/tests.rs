//! The tree as a whole: written content is found again, also after a crash.

use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::layout::gc::GcOptions;
use imgctl_base::error::Kind;
use imgctl_base::image::Digest;
use imgctl_base::progress::Silent;

struct Scratch {
    directory: tempfile::TempDir,
    layout: Layout,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::create(&directory.path().join("tree"), false).unwrap();
        Self { directory, layout }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join("tree").join(relative)
    }

    fn blob(&self, repository: &str, content: &[u8]) -> Digest {
        let digest = Digest::of(content);
        self.layout.put_blob(&mut Cursor::new(content), &digest, content.len() as u64).unwrap();
        self.layout.link_layer(repository, &digest).unwrap();
        digest
    }

    fn put(&self, repository: &str, tags: &[&str], value: &serde_json::Value) -> Digest {
        let bytes = value.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        let facts = Facts::parse(&bytes).unwrap();
        self.layout.put_manifest(repository, tags, &digest, &bytes, &facts).unwrap();
        digest
    }

    /// Stores an image of one layer with that content.
    fn image(&self, repository: &str, tags: &[&str], content: &[u8]) -> Digest {
        let (config, layer) = (self.blob(repository, b"{}"), self.blob(repository, content));
        self.put(
            repository,
            tags,
            &json!({
                "schemaVersion": 2,
                "config": {"mediaType": "c/c", "digest": config, "size": 2},
                "layers": [{"mediaType": "l/l", "digest": layer, "size": content.len()}],
            }),
        )
    }

    fn scrub(&self) -> Vec<String> {
        let report = self.layout.scrub(&Silent).unwrap();
        let lines = report.problems.into_iter();
        lines.map(|problem| format!("{}: {}", problem.subject, problem.detail)).collect()
    }

    fn gc(&self, untagged: bool, dry_run: bool) -> gc::GcReport {
        let options = GcOptions { dry_run, untagged, grace: Duration::ZERO };
        self.layout.gc(&options, &Silent).unwrap()
    }
}

#[test]
fn what_is_put_is_found_and_listed_in_order() {
    let scratch = Scratch::new();
    let layout = &scratch.layout;
    let image = scratch.image("b/c", &["v2", "v1"], b"layer");
    for name in ["a", "a/b", "a-b", "b"] {
        scratch.image(name, &["latest"], name.as_bytes());
    }
    let stored = layout.manifest("b/c", &image).unwrap().unwrap();
    assert_eq!(Digest::of(&stored.bytes), image);
    assert_eq!(stored.media_type, imgctl_base::image::media_type::OCI_MANIFEST);
    assert!(layout.manifest("a", &image).unwrap().is_none());
    assert_eq!(layout.resolve_tag("b/c", "v1").unwrap(), Some(image));
    let tags = |after, limit| layout.tags("b/c", after, limit).unwrap().unwrap();
    assert_eq!(tags(None, 10), ["v1", "v2"]);
    assert_eq!(tags(Some("v1"), 10), ["v2"]);
    assert_eq!(tags(None, 1), ["v1"]);
    assert!(layout.tags("none", None, 10).unwrap().is_none());
    let all = ["a", "a/b", "a-b", "b", "b/c"];
    assert_eq!(layout.repositories(None, 10).unwrap(), all);
    for (index, name) in all.iter().enumerate() {
        let rest = layout.repositories(Some(name), 10).unwrap();
        assert_eq!(rest, all[index + 1..], "after {name}");
        assert_eq!(rest.len(), layout.repositories(Some(name), 5).unwrap().len());
    }
    assert_eq!(layout.repositories(Some("a/a/z"), 2).unwrap(), ["a/b", "a-b"]);
    assert_eq!(scratch.scrub(), [""; 0]);
}

#[test]
fn a_blob_with_another_digest_or_length_leaves_nothing() {
    let scratch = Scratch::new();
    let digest = Digest::of(b"right");
    for (content, size) in [(&b"wrong"[..], 5), (b"righ", 5), (b"rights", 5), (b"right", 4)] {
        let put = scratch.layout.put_blob(&mut Cursor::new(content), &digest, size);
        assert_eq!(put.unwrap_err().kind(), Kind::BadContent);
        assert_eq!(scratch.layout.blob_size(&digest).unwrap(), None);
    }
    let blob = scratch.path(&paths::blob_data(&digest));
    assert_eq!(std::fs::read_dir(blob.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn an_upload_goes_on_after_its_process_is_gone() {
    let scratch = Scratch::new();
    let mut upload = scratch.layout.start_upload("a", None).unwrap();
    upload.append(b"one ").unwrap();
    let id = upload.id().to_owned();
    drop(upload);
    let other = Layout::open(&scratch.directory.path().join("tree"), false).unwrap();
    assert!(other.resume_upload("b", &id).unwrap().is_none());
    assert!(other.resume_upload("a", "../../x").unwrap().is_none());
    let mut upload = other.resume_upload("a", &id).unwrap().unwrap();
    assert_eq!(upload.offset(), 4);
    upload.append(b"two").unwrap();
    let wrong = upload.commit(&Digest::of(b"one")).unwrap_err();
    assert_eq!(wrong.kind(), Kind::BadContent);
    let digest = Digest::of(b"one two");
    upload.commit(&digest).unwrap();
    assert!(other.has_layer("a", &digest).unwrap());
    assert_eq!(other.blob_size(&digest).unwrap(), Some(7));
    assert!(other.resume_upload("a", &id).unwrap().is_none());
    let sha512 = Digest::parse(&format!("sha512:{}", "0".repeat(128))).unwrap();
    let mut upload = other.start_upload("a", None).unwrap();
    assert!(upload.commit(&sha512).is_err());
    assert_eq!(other.sweep_all_uploads(Duration::from_secs(60)).unwrap(), 0);
    assert_eq!(other.sweep_all_uploads(Duration::ZERO).unwrap(), 1);
}

#[test]
fn links_cut_short_by_a_power_loss_do_not_count_and_symlinks_are_refused() {
    let scratch = Scratch::new();
    let image = scratch.image("a", &["v1"], b"layer");
    let link = scratch.path(&paths::tag_link("a", "v1"));
    std::fs::write(&link, "").unwrap();
    assert_eq!(scratch.layout.resolve_tag("a", "v1").unwrap(), None);
    std::fs::write(&link, format!("{image}\n")).unwrap();
    assert_eq!(scratch.layout.resolve_tag("a", "v1").unwrap(), Some(image));
    std::fs::write(&link, "sha256:../../../etc").unwrap();
    assert!(scratch.layout.resolve_tag("a", "v1").is_err());
    let layer = Digest::of(b"layer");
    let data = scratch.path(&paths::blob_data(&layer));
    std::fs::remove_file(&data).unwrap();
    symlink("/etc/passwd", &data).unwrap();
    assert!(scratch.layout.open_blob(&layer).is_err());
    let problems = scratch.scrub().join("\n");
    assert!(problems.contains("symlink"), "{problems}");
}

#[test]
fn a_tag_whose_link_was_never_written_is_none() {
    let scratch = Scratch::new();
    scratch.image("a", &["v1", "v2"], b"layer");
    let link = scratch.path(&paths::tag_link("a", "v1"));
    std::fs::write(&link, "").unwrap();
    assert_eq!(scratch.scrub(), ["a:v1: it refers to nothing"]);
    // State after a push was killed just before it wrote the tag's link.
    std::fs::remove_file(&link).unwrap();
    assert_eq!(scratch.scrub(), [""; 0]);
    let tags = scratch.layout.tags("a", None, 10).unwrap().unwrap();
    assert_eq!(tags, ["v2"]);
}

#[test]
fn referrers_are_found_by_link_and_by_tag() {
    let scratch = Scratch::new();
    let subject = scratch.image("a", &["v1"], b"layer");
    let config = scratch.blob("a", b"{}");
    let referring = |kind: &str| {
        json!({
            "schemaVersion": 2, "artifactType": kind, "annotations": {"k": kind},
            "config": {"mediaType": "c/c", "digest": config, "size": 2}, "layers": [],
            "subject": {"mediaType": "m/m", "digest": subject, "size": 1},
        })
    };
    let linked = scratch.put("a", &[], &referring("x/linked"));
    let tagged = scratch.put("a", &[], &referring("x/tagged"));
    let link = paths::referrer_link("a", &subject, &tagged);
    std::fs::remove_file(scratch.path(&link)).unwrap();
    let find = || -> Vec<String> {
        let found = scratch.layout.referrers("a", &subject).unwrap();
        let digests = found.iter().map(|entry| entry["digest"].as_str().unwrap());
        digests.map(str::to_owned).collect()
    };
    assert_eq!(find(), [linked.to_string()]);
    let index = json!({"schemaVersion": 2, "manifests": [{"digest": tagged, "size": 1}]});
    scratch.put("a", &[&subject.to_string().replace(':', "-")], &index);
    let mut both = [linked.to_string(), tagged.to_string()];
    both.sort();
    assert_eq!(find(), both);
    assert!(scratch.layout.delete_manifest("a", &linked).unwrap());
    assert_eq!(find(), [tagged.to_string()]);
    assert!(scratch.layout.referrers("b", &subject).unwrap().is_empty());
}

#[test]
fn deletion_takes_tags_along_and_gc_takes_the_bytes() {
    let scratch = Scratch::new();
    let layout = &scratch.layout;
    let old = scratch.image("a", &["v1", "same"], b"old");
    let new = scratch.image("a", &["v2"], b"new");
    scratch.image("b", &["v1"], b"old");
    assert_eq!(scratch.gc(true, false).blobs, 0);
    assert!(layout.delete_manifest("a", &old).unwrap());
    assert!(!layout.delete_manifest("a", &old).unwrap());
    assert_eq!(layout.tags("a", None, 9).unwrap().unwrap(), ["v2"]);
    // Another repository still has the blob, so only the link is removed.
    let report = scratch.gc(false, false);
    assert_eq!((report.blobs, report.links), (0, 1));
    assert!(layout.delete_tag("a", "v2").unwrap());
    assert!(!layout.delete_tag("a", "v2").unwrap());
    assert_eq!(scratch.gc(false, false).blobs, 0, "the manifest is still there");
    let would = scratch.gc(true, true);
    assert_eq!(would.manifests, [("a".to_owned(), new.clone())]);
    assert!(layout.manifest("a", &new).unwrap().is_some());
    let report = scratch.gc(true, false);
    assert_eq!(report.manifests, would.manifests);
    // The layer and the manifest; the config is shared with `b`.
    assert_eq!((report.blobs, report.kept), (2, 3));
    assert_eq!(scratch.scrub(), [""; 0]);
}

#[test]
fn gc_keeps_children_referrers_and_what_is_young_and_stops_at_damage() {
    let scratch = Scratch::new();
    let layout = &scratch.layout;
    let child = scratch.image("a", &[], b"child");
    let other = Digest::of(b"of another platform");
    let index = scratch.put(
        "a",
        &["v1"],
        &json!({"manifests": [{"digest": child, "size": 1}, {"digest": other, "size": 1}]}),
    );
    let config = scratch.blob("a", b"{}");
    scratch.put(
        "a",
        &[],
        &json!({
            "config": {"mediaType": "c/c", "digest": config, "size": 2}, "layers": [],
            "subject": {"digest": index},
        }),
    );
    let report = scratch.gc(true, false);
    assert_eq!((report.manifests.len(), report.blobs), (0, 0));
    assert_eq!(layout.scrub(&Silent).unwrap().absent_children, 1);
    scratch.image("a", &[], b"being pushed");
    scratch.blob("a", b"loose");
    let options = GcOptions { dry_run: false, untagged: true, grace: Duration::from_secs(600) };
    let report = layout.gc(&options, &Silent).unwrap();
    assert_eq!((report.manifests.len(), report.links, report.blobs), (0, 0, 0));
    assert_eq!(scratch.gc(true, false).blobs, 3);
    std::fs::write(scratch.path(&paths::blob_data(&child)), "damaged").unwrap();
    let error = layout.gc(&options, &Silent).unwrap_err();
    assert!(error.to_string().contains(&child.to_string()), "{error}");
    assert!(!scratch.scrub().is_empty());
}

#[test]
fn gc_and_serving_exclude_each_other() {
    let scratch = Scratch::new();
    let serving = scratch.layout.lock_shared().unwrap().unwrap();
    assert!(scratch.layout.lock_shared().unwrap().is_some());
    assert_eq!(scratch.layout.lock_alone().unwrap_err().kind(), Kind::Busy);
    drop(serving);
    let writing = scratch.layout.clone().for_writing().unwrap();
    let copy = writing.clone();
    drop(writing);
    assert_eq!(scratch.layout.lock_alone().unwrap_err().kind(), Kind::Busy);
    drop(copy);
    let alone = scratch.layout.lock_alone().unwrap();
    assert!(scratch.layout.lock_shared().unwrap().is_none());
    let refused = scratch.layout.clone().for_writing().unwrap_err();
    assert_eq!(refused.kind(), Kind::Busy);
    drop(alone);
}

#[test]
fn no_name_leads_out_of_the_tree() {
    let scratch = Scratch::new();
    let digest = Digest::of(b"");
    for name in ["..", "a/../..", "/etc", "", "a/_layers", "A"] {
        assert!(scratch.layout.link_layer(name, &digest).is_err(), "{name}");
        assert!(scratch.layout.start_upload(name, None).is_err(), "{name}");
        assert!(scratch.layout.tags(name, None, 1).is_err(), "{name}");
    }
    for tag in ["..", "../../x", "", ".a"] {
        assert!(scratch.layout.set_tag("a", tag, &digest).is_err(), "{tag}");
        assert!(scratch.layout.delete_tag("a", tag).is_err(), "{tag}");
    }
    let missing = Layout::open(scratch.directory.path(), false);
    assert_eq!(missing.unwrap_err().kind(), Kind::NotFound);
}
