//! The next version of an image reaches hosts as its differences from the one that they have,
//! whatever state they are in.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::sync::recipe::Delta;
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter};

const ZSTD: Compression = Compression::Zstd { level: 3 };
/// Length of the binary, in bytes.
const BINARY: usize = 3 << 20;

/// Bytes that differ for each seed and compress to about half.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state >> 8).to_le_bytes().map(|byte| byte & 15));
    }
    bytes.truncate(length);
    bytes
}

/// The files of a version: 20 of 40 KiB and a binary. In version 2 one of them is changed by 1 %, and
/// the binary in a hundred places.
fn version(number: u64) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> =
        (0..20).map(|file| (format!("etc/{file:02}"), content(file + 2, 40 << 10))).collect();
    let mut binary = content(1, BINARY);
    if number > 1 {
        files[7].1[1000..1400].fill(number as u8 + 200);
        for place in 0..100 {
            let at = place * (BINARY / 100);
            binary[at..at + 20].fill(number as u8 + 200);
        }
    }
    files.push(("usr/binary".to_owned(), binary));
    files
}

impl Controller {
    /// Stores a layer with these files.
    fn layer_of(
        &self,
        files: &[(String, Vec<u8>)],
        compression: Compression,
        kind: &str,
    ) -> ImageLayer {
        let mut writer = LayerWriter::start(Vec::new(), compression, 2).unwrap();
        for (path, bytes) in files {
            let path = LayerPath::parse(path.as_bytes()).unwrap();
            let kind = EntryKind::File { size: bytes.len() as u64 };
            writer.add(Entry::new(path, kind, 0o644), &mut &bytes[..]).unwrap();
        }
        let (blob, layer) = writer.finish().unwrap();
        self.store.put_blob(&blob).unwrap();
        let mut descriptor = Descriptor::new("layer", layer.digest, layer.size);
        descriptor.annotations.insert(LAYER_KIND.to_owned(), kind.to_owned());
        ImageLayer { descriptor, diff_id: layer.diff_id, registry: kind == "registry" }
    }
}

fn of(layer: &ImageLayer) -> Brief {
    brief(vec![image("rootfs", ImageKind::Rootfs, vec![layer.clone()])])
}

/// Four hosts with version 1, and the layers of both versions.
fn with_version_1(compression: Compression) -> (Arc<Lan>, Controller, [ImageLayer; 2]) {
    let (lan, controller) = (Lan::new(4, |_| 0), Controller::new());
    let layers = [1, 2].map(|number| controller.layer_of(&version(number), compression, "rootfs"));
    let targets = all(&lan, 4);
    for synced in run(planned(of(&layers[0]), &targets), &controller.store, &Unwatched) {
        synced.result.unwrap();
    }
    (lan, controller, layers)
}

/// Syncs version 2; returns what the controller sent and what the hosts had.
fn sync_version_2(lan: &Arc<Lan>, controller: &Controller, brief: Brief) -> (i64, i64) {
    let wanted = brief.images["amd64"][0].layers[0].descriptor.digest.clone();
    let tally = Tally::default();
    for synced in run(planned(brief, &all(lan, 4)), &controller.store, &tally) {
        synced.result.unwrap();
    }
    for number in 0..4 {
        let store = &lan.host(number).store;
        assert!(store.verify_blob(&wanted).unwrap());
        let blobs = std::fs::read_dir(store.layout().join("blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 2, "recipes are removed");
    }
    (tally.from_controller.into_inner(), tally.from_itself.into_inner())
}

#[test]
fn the_next_version_crosses_the_line_once_as_its_differences() {
    for compression in [ZSTD, Compression::None, Compression::Gzip { level: 6 }] {
        let (lan, controller, layers) = with_version_1(compression);
        let whole = layers[1].descriptor.size as i64;
        let (sent, had) = sync_version_2(&lan, &controller, of(&layers[1]));
        assert!(sent * 20 < whole, "{sent} of {whole}");
        assert_eq!(sent + had, whole);
        let fetched: u64 = (0..4).map(|n| lan.host(n).fetched.load(Ordering::Relaxed)).sum();
        assert_eq!(fetched, 3 * (layers[0].descriptor.size + layers[1].descriptor.size));
    }
}

#[test]
fn the_plan_says_what_will_cross_the_line() {
    let (lan, controller, layers) = with_version_1(ZSTD);
    let mut plan = planned(of(&layers[1]), &all(&lan, 4));
    plan.estimate(&|layer, held| controller.store.differing(layer, held));
    let host = &plan.hosts[0];
    let (expected, whole) = (host.expected(&plan), host.bytes(&plan));
    assert!(expected < whole && expected > 0, "{expected} of {whole}");
    assert!(plan.says(host)[0].contains("differ from the layers of the host"), "{plan}");
    assert_eq!(serde_json::to_value(&plan).unwrap()["hosts"][0]["differing"], expected);
    let mut whole = of(&layers[1]);
    whole.delta = Delta::Never;
    let mut plan = planned(whole, &all(&lan, 4));
    plan.estimate(&|layer, held| controller.store.differing(layer, held));
    assert_eq!(plan.hosts[0].expected(&plan), plan.hosts[0].bytes(&plan));
}

#[test]
fn whole_layers_are_sent_where_differences_do_not_work() {
    // Not wanted.
    let (lan, controller, layers) = with_version_1(ZSTD);
    let whole = layers[1].descriptor.size as i64;
    let mut brief = of(&layers[1]);
    brief.delta = Delta::Never;
    assert_eq!(sync_version_2(&lan, &controller, brief), (whole, 0));
    // The hosts' old layer is damaged.
    let (lan, controller, layers) = with_version_1(ZSTD);
    for number in 0..4 {
        let path = lan.host(number).store.blob_path(&layers[0].descriptor.digest);
        let mut bytes = std::fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        bytes[..half].fill(0x55);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    let (sent, _) = sync_version_2(&lan, &controller, of(&layers[1]));
    assert!(sent >= whole, "{sent} of {whole}");
    // The controller no longer has it.
    let (lan, controller, layers) = with_version_1(ZSTD);
    controller.store.discard(&[layers[0].descriptor.digest.clone()]).unwrap();
    std::fs::remove_file(controller.store.blob_path(&layers[0].descriptor.digest)).ok();
    assert_eq!(sync_version_2(&lan, &controller, of(&layers[1])), (whole, 0));
    // Nothing in common.
    let (lan, controller, _) = with_version_1(ZSTD);
    let other: Vec<_> = (100..105).map(|n| (format!("n{n}"), content(n, 300 << 10))).collect();
    let other = controller.layer_of(&other, ZSTD, "rootfs");
    let (sent, _) = sync_version_2(&lan, &controller, of(&other));
    assert!(sent <= other.descriptor.size as i64, "{sent}");
}

#[test]
fn the_smallest_differences_are_smaller() {
    let sent = [Delta::Auto, Delta::Always].map(|delta| {
        let (lan, controller, layers) = with_version_1(ZSTD);
        let mut brief = of(&layers[1]);
        brief.delta = delta;
        sync_version_2(&lan, &controller, brief).0
    });
    assert!(sent[1] <= sent[0], "{sent:?}");
}
