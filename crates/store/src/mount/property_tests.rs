//! Random layers over a few names, so that names collide. Every backend must show the same tree.

use std::path::PathBuf;

use proptest::prelude::*;

use super::privilege::Privileges;
use super::stack::Stack;
use super::testing::{Fixture, Layer, listing};
use super::workspace::{MERGED, Workspace};
use super::*;
use crate::store::images::Image;
use imgctl_base::progress::Silent;
use imgctl_base::testing::needs_root;
use imgctl_layer::{Compression, EntryKind};

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    File,
    Directory,
    Symlink(String),
    HardLink(String),
    Fifo,
    Whiteout,
    Opaque,
}

fn layer() -> impl Strategy<Value = Layer> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let path = || prop::collection::vec(name.clone(), 1..4).prop_map(|names| names.join("/"));
    let what = prop_oneof![
        4 => Just(What::File),
        4 => Just(What::Directory),
        2 => path().prop_map(|target| What::Symlink(format!("/{target}"))),
        2 => path().prop_map(What::HardLink),
        1 => Just(What::Fifo),
        2 => Just(What::Whiteout),
        1 => Just(What::Opaque),
    ];
    let mode = prop::sample::select(vec![0o755_u32, 0o700, 0o2711, 0o1777]);
    prop::collection::vec((path(), what, mode), 0..8).prop_map(|entries| {
        let mut layer = Layer::default();
        for (path, what, mode) in entries {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let marker = |name: &str| format!("{parent}/.wh.{name}");
            layer = match what {
                What::File => layer.file(&path, &format!("{path} {mode}")),
                What::Directory => layer.dir(&path, mode),
                What::Symlink(target) => layer.symlink(&path, &target),
                What::HardLink(target) => layer.link(&path, &target),
                What::Fifo => layer.add(&path, EntryKind::Fifo, 0o600, b""),
                What::Whiteout => layer.file(&marker(name), ""),
                What::Opaque => layer.file(&marker(".wh..opq"), ""),
            };
        }
        layer
    })
}

/// Mounts the image as an overlay of two snapshots into which the layers' snapshots are merged.
fn mounted_in_two(fixture: &Fixture, image: &Image) -> PathBuf {
    let privileges = Privileges::current();
    let layers = layers::distinct(image);
    let ensured = snapshots::ensure_layers(&fixture.store, &layers, privileges, &Silent).unwrap();
    let snapshots = ensured.snapshots;
    let (snapshots, _) =
        merge::reduce_to(2, &fixture.store, &layers, snapshots, privileges).unwrap();
    let stack = Stack::new(snapshots, false).unwrap();
    let workspace = Workspace::create(&fixture.store, "").unwrap();
    let merged = workspace.make(MERGED).unwrap();
    attach(&mounts::spec(&workspace, &stack, true).unwrap(), &merged).unwrap();
    workspace.keep();
    merged
}

/// Mounts an image of these layers by every backend and compares what they show.
fn compare(layers: Vec<Layer>) -> Result<(), TestCaseError> {
    let fixture = Fixture::new();
    let image = fixture.image("x", Compression::None, layers);
    let mut listings = Vec::new();
    for backend in [Backend::Checkout, Backend::Erofs, Backend::Overlay] {
        let options = Options { backend: Some(backend), ..Options::default() };
        let mounted = mount(&fixture.store, &image, &options, &Silent);
        listings.push(mounted.ok().map(|mounted| listing(&mounted.record.path)));
    }
    // If one backend refuses an image, all backends refuse it.
    let merged = listings[0].is_some().then(|| listing(&mounted_in_two(&fixture, &image)));
    umount_all(&fixture.store, true).unwrap();
    prop_assert_eq!(&listings[0], &listings[1], "checkout and erofs");
    prop_assert_eq!(&listings[0], &listings[2], "checkout and overlay");
    prop_assert_eq!(&listings[0], &merged, "checkout and merged snapshots");
    Ok(())
}

/// A marker makes a directory of the lower file that a hard link of the same layer names.
#[test]
fn opaque_markers_that_replace_targets_of_hard_links() {
    if !needs_root() {
        return;
    }
    let marker =
        |layer: Layer, directory: &str| layer.file(&format!("{directory}/.wh..wh..opq"), "");
    let upper = [
        marker(Layer::default().link("b", "a"), "a"),
        marker(Layer::default().link("b", "a"), "a/c"),
        marker(Layer::default().link("a", "a"), "a"),
        marker(Layer::default(), "a").link("b", "a"),
        marker(Layer::default(), "a/c").link("b", "a"),
        marker(Layer::default().dir("a", 0o755).link("b", "a"), "a"),
        marker(Layer::default().file("a/x", "x").link("b", "a"), "a"),
        marker(Layer::default().link("b", "a"), "a").file("a/x", "x"),
    ];
    for layer in upper {
        compare(vec![Layer::default().file("a", "content"), layer]).unwrap();
    }
}

/// What is left of a directory that only its content had made.
#[test]
fn directories_that_only_a_file_made_stay_when_it_is_deleted() {
    if !needs_root() {
        return;
    }
    let file = |name: &str| Layer::default().file(name, "content");
    for (lower, upper) in [
        (file("a"), file("a").file("a/c/b", "x")),
        (file("a/c/d"), file("a/.wh..wh..opq").file("a/c/b", "x")),
        (file("x"), file("a/c/b")),
    ] {
        compare(vec![lower, upper, Layer::default().file("a/c/.wh.b", "")]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_back_ends_agree(layers in prop::collection::vec(layer(), 1..5)) {
        if !needs_root() {
            return Ok(());
        }
        compare(layers)?;
    }
}
