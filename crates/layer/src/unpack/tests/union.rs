//! Arbitrary layers give the same tree whether they are unpacked one by one and stacked, or flat.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Models what overlayfs shows of layers, lowest first, in the lines of [`list`], for users who
/// cannot mount.
fn model(layers: &[tempfile::TempDir]) -> Vec<String> {
    let mut tree: BTreeMap<String, String> = BTreeMap::new();
    for layer in layers {
        for line in list(layer.path()) {
            let path = line[2..].split(' ').next().unwrap().to_owned();
            let below = format!("{path}/");
            let kind = line.as_bytes()[0];
            let was_directory = tree.get(&path).is_some_and(|line| line.starts_with('d'));
            if kind != b'd' || !was_directory {
                tree.retain(|other, _| !other.starts_with(&below));
            }
            match kind {
                b'W' => tree.remove(&path),
                b'D' => tree.insert(path.clone(), format!("d {path}")),
                _ => tree.insert(path, line),
            };
        }
    }
    tree.into_values().collect()
}

/// Returns what the kernel shows, for which root must mount.
fn kernel(layers: &[tempfile::TempDir]) -> Vec<String> {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    // Overlayfs requires at least two layers.
    let (bottom, point) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut paths: Vec<&str> = layers.iter().map(|dir| dir.path().to_str().unwrap()).collect();
    paths.insert(0, bottom.path().to_str().unwrap());
    paths.reverse();
    let user = if overlay() == (Form::Overlay { user_xattrs: true }) { ",userxattr" } else { "" };
    let options = format!("lowerdir={}{user}", paths.join(":"));
    let options = std::ffi::CString::new(options).unwrap();
    mount("overlay", point.path(), "overlay", MountFlags::RDONLY, &*options).unwrap();
    let listing = std::panic::catch_unwind(|| list(point.path()));
    unmount(point.path(), UnmountFlags::DETACH).unwrap();
    listing.unwrap()
}

/// Generates layers with few names, so entries collide; real layers list every directory that
/// contains their whiteouts.
fn layer() -> impl Strategy<Value = Vec<String>> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let path = prop::collection::vec(name.clone(), 1..4).prop_map(|names| names.join("/"));
    let parent = prop::collection::vec(name.clone(), 0..3).prop_map(|names| names.join("/"));
    let line = prop_oneof![
        4 => path.clone().prop_map(|path| vec![format!("f {path} {}", path.len())]),
        3 => path.clone().prop_map(|path| vec![format!("d {path}")]),
        1 => path.clone().prop_map(|path| vec![format!("l {path} ../a")]),
        1 => path.prop_map(|path| vec![format!("p {path}")]),
        3 => (parent.clone(), name).prop_map(|(parent, name)| {
            let slash = if parent.is_empty() { "" } else { "/" };
            let parents = described(&parent);
            [parents, vec![format!("f {parent}{slash}.wh.{name}")]].concat()
        }),
        1 => parent.prop_filter("the root of a lower layer is never opaque", |p| !p.is_empty())
            .prop_map(|parent| vec![format!("f {parent}/.wh..wh..opq")]),
    ];
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.concat())
}

fn described(path: &str) -> Vec<String> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.filter(|end| *end > 0).map(|end| format!("d {}", &path[..end])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn stacked_and_flat_are_the_same_tree(layers in prop::collection::vec(layer(), 1..4)) {
        let lines: Vec<Vec<&str>> =
            layers.iter().map(|layer| layer.iter().map(String::as_str).collect()).collect();
        let borrowed: Vec<&[&str]> = lines.iter().map(Vec::as_slice).collect();
        let (_flat, flat) = unpack(Form::Flat, &borrowed);
        let stacked: Vec<tempfile::TempDir> =
            borrowed.iter().map(|layer| unpack(overlay(), &[layer]).0).collect();
        let mut modelled = model(&stacked);
        modelled.sort_by(|a, b| a[2..].split(' ').next().cmp(&b[2..].split(' ').next()));
        prop_assert_eq!(&flat, &modelled);
        if imgctl_base::testing::needs_root() {
            let mounted: Vec<String> = kernel(&stacked)
                .into_iter()
                .map(|line| line.strip_prefix("D ").map_or(line.clone(), |path| format!("d {path}")))
                .collect();
            prop_assert_eq!(&flat, &mounted);
        }
    }
}
