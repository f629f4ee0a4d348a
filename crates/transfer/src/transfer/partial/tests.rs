//! Copies from a source in memory with ranges into a store: what is asked for, what arrives, and what
//! happens when lists, ranges or blobs lie.

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;

use super::*;
use crate::transfer::engine::{Copied, CopyOptions};
use crate::transfer::plan::{Platforms, Selection};
use crate::transfer::store::StoreSink;
use crate::transfer::testing::{Fixture, config, copy, fixture};
use crate::transfer::tree::TreeSink;
use imgctl_base::image::Manifest;
use imgctl_base::progress::Silent;
use imgctl_layer::chunked::{CHECKSUM, POSITION};
use imgctl_layer::writer::Layer;
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter, decompress};
use imgctl_registry::layout::Layout;

/// How a source answers ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranges {
    Right,
    /// Whole blobs only.
    None,
    /// The right number of other bytes, except for the list.
    Other,
    /// They end early, except for the list.
    Short,
}

struct Remote {
    blobs: HashMap<Digest, Vec<u8>>,
    root: Descriptor,
    name: Reference,
    ranges: Ranges,
    /// Number of bytes given, as a whole and by ranges.
    given: Mutex<(u64, u64)>,
}

impl Remote {
    /// An image with one layer.
    fn of(name: &str, layer: &[u8], descriptor: Descriptor) -> Self {
        let mut blobs = HashMap::new();
        let mut put = |media: &str, bytes: Vec<u8>| {
            let descriptor = Descriptor::new(media, Digest::of(&bytes), bytes.len() as u64);
            blobs.insert(descriptor.digest.clone(), bytes);
            descriptor
        };
        let mut tar = Vec::new();
        decompress::decompress(layer).unwrap().1.read_to_end(&mut tar).unwrap();
        let config = put(media_type::OCI_CONFIG, config(&[&tar], "linux/amd64"));
        put(&descriptor.media_type, layer.to_vec());
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.to_owned()),
            artifact_type: None,
            config,
            layers: vec![descriptor],
            subject: None,
            annotations: BTreeMap::new(),
        };
        let root = put(media_type::OCI_MANIFEST, serde_json::to_vec(&manifest).unwrap());
        let name = Reference::parse(name).unwrap();
        Self { blobs, root, name, ranges: Ranges::Right, given: Mutex::default() }
    }

    fn given(&self) -> (u64, u64) {
        std::mem::take(&mut *self.given.lock().unwrap())
    }

    fn layer(&self) -> Descriptor {
        let manifest: Manifest = serde_json::from_slice(&self.blobs[&self.root.digest]).unwrap();
        manifest.layers[0].clone()
    }

    fn to(&self, fixture: &Fixture) -> Result<Copied> {
        let options = CopyOptions {
            selection: Selection { platforms: Platforms::All, keep_index: true },
            ..CopyOptions::default()
        };
        copy(
            self,
            &StoreSink::new(&fixture.store, std::slice::from_ref(&self.name)),
            &options,
            &Silent,
        )
    }
}

impl ImageSource for Remote {
    fn describe(&self) -> String {
        "a registry".to_owned()
    }

    fn root(&self) -> Result<SourceDocument> {
        let bytes = self.blobs[&self.root.digest].clone();
        Ok(SourceDocument { bytes, descriptor: self.root.clone() })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.blobs[&descriptor.digest].clone())
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send>> {
        let bytes = self.blobs[&descriptor.digest][offset as usize..].to_vec();
        if descriptor.size > 100_000 {
            self.given.lock().unwrap().0 += bytes.len() as u64;
        }
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn admit(&self, _: &Digest, _: &[Digest]) -> Result<Verdict> {
        Ok(Verdict::not_asked("a test"))
    }

    fn has_ranges(&self) -> bool {
        true
    }

    fn open_ranges(
        &self,
        descriptor: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send>> {
        if self.ranges == Ranges::None {
            return Err(Error::bad_content("everything"));
        }
        let blob = &self.blobs[&descriptor.digest];
        let is_list = ranges.iter().any(|range| range.end == descriptor.size);
        let mut bytes: Vec<u8> = ranges
            .iter()
            .flat_map(|range| &blob[range.start as usize..range.end as usize])
            .copied()
            .collect();
        match self.ranges {
            Ranges::Other if !is_list => bytes.reverse(),
            Ranges::Short if !is_list => bytes.truncate(bytes.len() / 2),
            _ => {}
        }
        self.given.lock().unwrap().1 += bytes.len() as u64;
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn reference(&self) -> Option<&Reference> {
        Some(&self.name)
    }
}

/// Bytes that differ for each `seed`.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A layer of 6 MB, of which `changed` files are of another version.
fn layer(compression: Compression, changed: u64) -> (Vec<u8>, Layer) {
    let mut writer = LayerWriter::start(Vec::new(), compression, 1).unwrap();
    for number in 0..60 {
        let seed = if number * 7 % 60 < changed { 1000 + number } else { number };
        let bytes = content(seed, 100_000);
        let path = LayerPath::parse(format!("bin/{number:02}").as_bytes()).unwrap();
        let entry = Entry::new(path, EntryKind::File { size: 100_000 }, 0o755);
        writer.add(entry, &mut &bytes[..]).unwrap();
    }
    writer.finish().unwrap()
}

fn remote(name: &str, compression: Compression, changed: u64) -> Remote {
    let (bytes, layer) = layer(compression, changed);
    let media = compression.media_type(false).unwrap();
    let mut descriptor = Descriptor::new(media, layer.digest, layer.size);
    descriptor.annotations = layer.annotations;
    Remote::of(name, &bytes, descriptor)
}

const FORMS: [Compression; 2] = [Compression::None, Compression::Zstd { level: 3 }];

#[test]
fn only_what_changed_is_asked_for() {
    for compression in FORMS {
        let fixture = fixture();
        let old = remote("reg.io/a/app:1", compression, 0);
        let moved = old.to(&fixture).unwrap().moved;
        assert_eq!(old.given(), (old.layer().size, 0), "an empty store asks for nothing");
        assert_eq!((moved.reused, moved.bytes), (0, moved.total));
        // The image has another host and another tag.
        let new = remote("other.io/app:2", compression, 3);
        let moved = new.to(&fixture).unwrap().moved;
        let (whole, ranges) = new.given();
        assert_eq!(whole, 0, "{compression:?}");
        assert!((300_000..400_000).contains(&ranges), "{compression:?}: {ranges}");
        let config = moved.total - new.layer().size;
        assert_eq!(moved.bytes, ranges + config, "{compression:?}");
        assert!(moved.reused > 5_600_000, "{moved:?}");
        fixture.store.verify_blob(&new.layer().digest).unwrap();
    }
}

#[test]
fn without_annotations_the_footer_is_asked() {
    let fixture = fixture();
    remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
    let (bytes, layer) = layer(FORMS[1], 3);
    let descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, layer.digest, layer.size);
    let new = Remote::of("reg.io/app:2", &bytes, descriptor);
    new.to(&fixture).unwrap();
    let (whole, ranges) = new.given();
    assert!(whole == 0 && ranges < 400_000, "{whole} {ranges}");
}

#[test]
fn where_most_changed_or_nothing_is_known_the_whole_is_read() {
    let fixture = fixture();
    remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
    let new = remote("reg.io/app:2", FORMS[1], 40);
    let moved = new.to(&fixture).unwrap().moved;
    let (whole, ranges) = new.given();
    assert_eq!(whole, new.layer().size);
    assert!(ranges < 30_000 && moved.reused == 0, "{ranges}");
    // The frames of another form are other bytes.
    let plain = remote("reg.io/app:3", FORMS[0], 0);
    plain.to(&fixture).unwrap();
    assert_eq!(plain.given().0, plain.layer().size);
}

#[test]
fn other_images_of_the_store_are_used_too() {
    let fixture = fixture();
    remote("reg.io/first:1", FORMS[1], 0).to(&fixture).unwrap();
    let new = remote("reg.io/second:1", FORMS[1], 3);
    new.to(&fixture).unwrap();
    assert_eq!(new.given().0, 0);
}

#[test]
fn sources_without_ranges_or_with_other_ones_give_the_whole() {
    for ranges in [Ranges::None, Ranges::Other, Ranges::Short] {
        let fixture = fixture();
        remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
        let mut new = remote("reg.io/app:2", FORMS[1], 3);
        new.ranges = ranges;
        new.to(&fixture).unwrap();
        let (whole, _) = new.given();
        assert!(whole > 0, "{ranges:?}");
        assert!(fixture.store.verify_blob(&new.layer().digest).unwrap());
    }
}

#[test]
fn a_damaged_blob_here_costs_a_whole_download_and_no_more() {
    let fixture = fixture();
    let old = remote("reg.io/app:1", FORMS[1], 0);
    old.to(&fixture).unwrap();
    let path = fixture.store.blob_path(&old.layer().digest);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2_000_000] ^= 1;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let new = remote("reg.io/app:2", FORMS[1], 3);
    new.to(&fixture).unwrap();
    assert_eq!(new.given().0, new.layer().size);
    assert!(fixture.store.verify_blob(&new.layer().digest).unwrap());
}

#[test]
fn lists_that_lie_give_the_whole() {
    let wrong_checksum = (CHECKSUM, Digest::of(b"other").to_string());
    let cases = [
        wrong_checksum,
        (POSITION, "0:10:10:1".to_owned()),
        (POSITION, "5000000:1000:100000000:1".to_owned()),
        (POSITION, format!("{}:72:72:1", u64::MAX)),
    ];
    for (key, value) in cases {
        let fixture = fixture();
        remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
        let (bytes, layer) = layer(FORMS[1], 3);
        let mut descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, layer.digest, layer.size);
        descriptor.annotations = layer.annotations;
        descriptor.annotations.insert(key.to_owned(), value.clone());
        let new = Remote::of("reg.io/app:2", &bytes, descriptor);
        new.to(&fixture).unwrap();
        assert!(fixture.store.verify_blob(&new.layer().digest).unwrap());
        // An impossible position is none: the footer is asked instead.
        let is_none = value.starts_with("184");
        assert_eq!(new.given().0 == 0, is_none, "{key} {value}");
    }
}

/// A layer that names the same file again and again could fill the disk out of a few kilobytes.
#[test]
fn a_list_that_repeats_what_is_here_gives_the_whole() {
    for (times, is_refused) in [(MOST_REPEATS - 4, false), (2 * MOST_REPEATS, true)] {
        let fixture = fixture();
        remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
        let mut writer = LayerWriter::start(Vec::new(), FORMS[1], 1).unwrap();
        for number in 0..times {
            let path = LayerPath::parse(format!("bin/{number:03}").as_bytes()).unwrap();
            let entry = Entry::new(path, EntryKind::File { size: 100_000 }, 0o755);
            writer.add(entry, &mut &content(1, 100_000)[..]).unwrap();
        }
        let (bytes, layer) = writer.finish().unwrap();
        let media = FORMS[1].media_type(false).unwrap();
        let mut descriptor = Descriptor::new(media, layer.digest, layer.size);
        descriptor.annotations = layer.annotations;
        let new = Remote::of("reg.io/app:2", &bytes, descriptor);
        new.to(&fixture).unwrap();
        assert_eq!(new.given().0 == new.layer().size, is_refused, "{times} times");
        assert!(fixture.store.verify_blob(&new.layer().digest).unwrap());
    }
}

/// A list whose frames are another image's: the digest notices.
#[test]
fn a_list_of_another_blob_is_noticed() {
    let fixture = fixture();
    remote("reg.io/app:1", FORMS[1], 0).to(&fixture).unwrap();
    // Same shape, other content, and the list of the old layer.
    let (old, _) = layer(FORMS[1], 0);
    let (mut bytes, _) = layer(FORMS[1], 3);
    let list = Position::of_footer(&old[old.len() - 72..], old.len() as u64).unwrap().begins();
    let own = Position::of_footer(&bytes[bytes.len() - 72..], bytes.len() as u64).unwrap();
    assert_eq!(own.begins(), list, "content does not compress");
    bytes.truncate(list as usize);
    bytes.extend(&old[list as usize..]);
    let media = media_type::OCI_LAYER_ZSTD;
    let descriptor = Descriptor::new(media, Digest::of(&bytes), bytes.len() as u64);
    let new = Remote::of("reg.io/app:2", &bytes, descriptor);
    new.to(&fixture).unwrap();
    assert_eq!(new.given().0, new.layer().size);
    assert!(fixture.store.verify_blob(&new.layer().digest).unwrap());
}

#[test]
fn trees_of_registries_reuse_the_blobs_of_the_repository() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::create(directory.path(), false).unwrap();
    let options = CopyOptions {
        selection: Selection { platforms: Platforms::All, keep_index: true },
        ..CopyOptions::default()
    };
    let old = remote("reg.io/app:1", FORMS[0], 0);
    copy(&old, &TreeSink::new(&layout, "app", Some("1")), &options, &Silent).unwrap();
    let new = remote("reg.io/app:2", FORMS[0], 3);
    let other = TreeSink::new(&layout, "other", Some("2"));
    copy(&new, &other, &options, &Silent).unwrap();
    assert_eq!(new.given().0, new.layer().size);
    let newer = remote("reg.io/app:3", FORMS[0], 5);
    copy(&newer, &TreeSink::new(&layout, "app", Some("3")), &options, &Silent).unwrap();
    let (whole, ranges) = newer.given();
    assert!(whole == 0 && ranges < 600_000, "{whole} {ranges}");
}

#[test]
fn reading_can_begin_anywhere_and_short_gaps_are_fetched_along() {
    let file = tempfile::tempfile().unwrap();
    let known: Vec<u8> = content(1, 100_000);
    std::os::unix::fs::FileExt::write_all_at(&file, &known, 0).unwrap();
    let file = Arc::new(file);
    let local = |length, start| pieces::Piece::Local { length, file: Arc::clone(&file), start };
    let parts = || {
        vec![
            local(10, 0),
            pieces::Piece::Missing(10..20),
            local(30_000, 5),
            pieces::Piece::Missing(30_020..30_030),
            local(40_000, 1000),
            pieces::Piece::Missing(70_030..70_040),
        ]
    };
    let tail = || Tail { start: 70_035, bytes: content(2, 100).into() };
    let pieces = Pieces::new(parts(), tail()).unwrap();
    assert_eq!(pieces.missing().collect::<Vec<_>>(), [10..30_030, 70_030..70_035]);
    let source = content(3, 71_000);
    let read = |offset: u64| {
        let pieces = pieces.from(offset);
        let missing: Vec<u8> = pieces
            .missing()
            .flat_map(|range| source[range.start as usize..range.end as usize].to_vec())
            .collect();
        let reused = Arc::new(AtomicU64::new(0));
        let rest = Box::new(Cursor::new(missing.clone()));
        let mut bytes = Vec::new();
        Assembled::new(pieces, rest, Arc::clone(&reused)).read_to_end(&mut bytes).unwrap();
        assert_eq!(reused.load(Ordering::Relaxed), (bytes.len() - missing.len()) as u64);
        bytes
    };
    let whole = read(0);
    assert_eq!(whole.len(), 70_135);
    for offset in [1, 10, 15, 30_029, 30_030, 50_000, 70_034, 70_035, 70_134, 70_135] {
        assert!(read(offset) == whole[offset as usize..], "{offset}");
    }
    assert_eq!(pieces.reused(), (40_010, 40_010));
    let again = (0..1000).map(|_| local(50, 7)).chain([local(20, 0)]);
    let again = Pieces::new(again, Tail { start: 50_020, bytes: Arc::new([]) }).unwrap();
    assert_eq!(again.reused(), (50_020, 70));
    // A list that ends too early.
    assert!(Pieces::new(parts(), Tail { start: 80_000, bytes: Arc::new([]) }).is_err());
}
