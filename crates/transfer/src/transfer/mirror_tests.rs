//! Tests of mirroring between trees on disk; `tests/runner/registry_sync.rs` tests registries.

use std::path::Path;

use walkdir::WalkDir;

use super::*;
use crate::transfer::arbiter::Arbiter;
use crate::transfer::engine::CopyOptions;
use crate::transfer::plan::Platforms;
use crate::transfer::store::StoreSource;
use crate::transfer::testing::{self, Fixture, fixture, layer, load_bytes, tar};
use crate::transfer::tree::TreeSink;
use imgctl_base::image::{Descriptor, media_type};
use imgctl_base::progress::Silent;
use imgctl_registry::layout::Layout;
use imgctl_store::store::Named;

/// A store with two images that share a layer; one of them has two platforms.
fn filled() -> (Fixture, Vec<Descriptor>) {
    let fixture = fixture();
    let mut layout = testing::Layout::default();
    let plain = |text: &str| (media_type::OCI_LAYER, layer(text), layer(text));
    let one = layout.image(&[plain("shared"), plain("one")], "linux/amd64");
    let amd = layout.image(&[plain("shared"), plain("two")], "linux/amd64");
    let arm = layout.image(&[plain("arm")], "linux/arm64");
    let two = layout.index(vec![amd, arm]);
    layout.name(one.clone(), Some("reg.io/one:1"));
    layout.name(two.clone(), Some("reg.io/team/two:1"));
    load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
    (fixture, vec![one, two])
}

fn put(
    fixture: &Fixture,
    layout: &Layout,
    image: &Descriptor,
    repository: &str,
    tag: Option<&str>,
) {
    let named = Named { reference: None, descriptor: image.clone(), origin: None };
    let source = StoreSource::new(&fixture.store, &named, &Arbiter::everything()).unwrap();
    let sink = TreeSink::new(layout, repository, tag);
    let options = CopyOptions { selection: everything(), jobs: 2 };
    testing::copy(&source, &sink, &options, &Silent).unwrap();
}

/// A tree with `one:1`, `team/two:1`, and `one` again by digest in `lone`.
fn source_tree(fixture: &Fixture, images: &[Descriptor]) -> Layout {
    let layout = Layout::create(&fixture.directory.path().join("from"), false).unwrap();
    put(fixture, &layout, &images[0], "one", Some("1"));
    put(fixture, &layout, &images[1], "team/two", Some("1"));
    put(fixture, &layout, &images[0], "lone", None);
    layout
}

fn options(platforms: Platforms) -> MirrorOptions {
    MirrorOptions {
        selection: match platforms {
            Platforms::All => everything(),
            platforms => Selection { platforms, keep_index: false },
        },
        images: 3,
    }
}

/// All files below a directory, with their content.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = WalkDir::new(directory).sort_by_file_name().into_iter().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_file());
    let content = files.map(|file| {
        let name = file.path().strip_prefix(directory).unwrap().display().to_string();
        (name, std::fs::read(file.path()).unwrap())
    });
    content.collect()
}

#[test]
fn a_tree_is_mirrored_whole_and_a_second_time_nothing_moves() {
    let (fixture, images) = filled();
    let from = source_tree(&fixture, &images);
    let to = Layout::create(&fixture.directory.path().join("to"), false).unwrap();
    let (source, sink) = (
        Place::Tree(from.clone(), Arbiter::everything()),
        Place::Tree(to.clone(), Arbiter::everything()),
    );
    let options = options(Platforms::All);
    let planned = plan(&source, Some(&sink), &options).unwrap();
    let names: Vec<(String, Action)> = planned.iter().map(|p| (p.name(), p.action)).collect();
    let lone = format!("lone@{}", images[0].digest);
    let expected = [lone.as_str(), "one:1", "team/two:1"];
    assert_eq!(names, expected.map(|name| (name.to_owned(), Action::Add)));
    let done = sync(&source, &sink, &planned, &options, &Silent).unwrap();
    assert_eq!(files(&to.path()), files(&from.path()));
    // Five layers and three configs; shared blobs are copied once.
    let copied: u64 = done.iter().map(|one| one.moved.copied).sum();
    assert_eq!(copied, 4 + 3);
    let again = plan(&source, Some(&sink), &options).unwrap();
    assert!(again.iter().all(|one| one.action == Action::UpToDate));
    assert!(sync(&source, &sink, &again, &options, &Silent).unwrap().is_empty());
}

#[test]
fn a_tag_that_means_something_else_is_replaced_and_others_stay() {
    let (fixture, images) = filled();
    let from = source_tree(&fixture, &images);
    let to = Layout::create(&fixture.directory.path().join("to"), false).unwrap();
    put(&fixture, &to, &images[1], "one", Some("1"));
    put(&fixture, &to, &images[1], "own", Some("1"));
    let (source, sink) =
        (Place::Tree(from, Arbiter::everything()), Place::Tree(to.clone(), Arbiter::everything()));
    let options = options(Platforms::All);
    let planned = plan(&source, Some(&sink), &options).unwrap();
    let one = planned.iter().find(|one| one.name() == "one:1").unwrap();
    assert_eq!(one.action, Action::Replace);
    sync(&source, &sink, &planned, &options, &Silent).unwrap();
    let tag = to.resolve_tag("one", "1").unwrap();
    assert_eq!(tag, Some(images[0].digest.clone()));
    assert!(to.resolve_tag("own", "1").unwrap().is_some());
}

#[test]
fn one_platform_of_many_is_that_platforms_manifest() {
    let (fixture, images) = filled();
    let source = Place::Tree(source_tree(&fixture, &images), Arbiter::everything());
    let to = Layout::create(&fixture.directory.path().join("to"), false).unwrap();
    let sink = Place::Tree(to.clone(), Arbiter::everything());
    let amd = imgctl_base::image::Platform::parse("linux/amd64").unwrap();
    let options = options(Platforms::Only(vec![amd]));
    for round in 0..2 {
        let planned = plan(&source, Some(&sink), &options).unwrap();
        let done = sync(&source, &sink, &planned, &options, &Silent).unwrap();
        let copied: u64 = done.iter().map(|one| one.moved.copied).sum();
        assert_eq!(copied, if round == 0 { 3 + 2 } else { 0 });
    }
    let digest = to.resolve_tag("team/two", "1").unwrap().unwrap();
    let stored = to.manifest("team/two", &digest).unwrap().unwrap();
    assert_eq!(stored.media_type, media_type::OCI_MANIFEST);
}

#[test]
fn a_missing_blob_fails_its_image_by_name_and_the_others_arrive() {
    let (fixture, images) = filled();
    let from = source_tree(&fixture, &images);
    let own = Digest::of(&layer("arm"));
    let path = imgctl_registry::layout::paths::blob_data(&own);
    std::fs::remove_file(from.path().join(path)).unwrap();
    let to = Layout::create(&fixture.directory.path().join("to"), false).unwrap();
    let (source, sink) =
        (Place::Tree(from, Arbiter::everything()), Place::Tree(to.clone(), Arbiter::everything()));
    let options = options(Platforms::All);
    let planned = plan(&source, Some(&sink), &options).unwrap();
    let error = sync(&source, &sink, &planned, &options, &Silent).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(text.contains("1 of 3 images"), "{text}");
    assert!(text.contains("team/two:1") && text.contains(own.hex()), "{text}");
    assert!(to.resolve_tag("one", "1").unwrap().is_some());
    assert!(to.resolve_tag("team/two", "1").unwrap().is_none());
}
