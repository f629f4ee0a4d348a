//! Whatever two layers have in common, the recipe of one yields its bytes from the other; a recipe
//! that lies, or meets another base, yields an error and never other bytes.

use std::fs::File;
use std::io::{Cursor, Seek, Write};
use std::process::Command;
use std::sync::Mutex;

use proptest::prelude::*;

use super::format::{Encoding, Form, Group, Instruction, Origin, Reference};
use super::*;
use crate::Compression;
use crate::writer::Layer;
use crate::writer::tests::{noise, write_layer};
use imgctl_base::error::{Error, Kind};

mod damage;

type Files = Vec<(Entry, Vec<u8>)>;

const ZSTD: Compression = Compression::Zstd { level: 3 };
const GZIP: Compression = Compression::Gzip { level: 6 };
const ALL: [Compression; 4] = [Compression::None, GZIP, ZSTD, Compression::Zstd { level: 7 }];

fn path(text: &str) -> LayerPath {
    LayerPath::parse(text.as_bytes()).unwrap()
}

fn file(name: &str, content: Vec<u8>) -> (Entry, Vec<u8>) {
    let size = content.len() as u64;
    (Entry::new(path(name), EntryKind::File { size }, 0o644), content)
}

/// Bytes that differ for each `seed` and compress to about half.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; length];
    hasher.finalize_xof().fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte &= 15);
    bytes
}

/// Changes about one of 100 bytes in places, and inserts some.
fn edited(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let places = content(seed, 64);
    for (index, place) in places.iter().enumerate() {
        let at = bytes.len() * index / places.len();
        let end = (at + usize::from(*place)).min(bytes.len());
        bytes[at..end].fill(0xee);
    }
    let middle = bytes.len() / 2;
    bytes.splice(middle..middle, content(seed, 100));
    bytes
}

/// A layer on disk.
struct Made {
    file: File,
    layer: Layer,
}

impl Made {
    fn new(files: &[(Entry, Vec<u8>)], compression: Compression) -> Self {
        let (bytes, layer) = write_layer(files, compression, 2);
        Self { file: on_disk(&bytes), layer }
    }

    fn base(&self) -> Base {
        let toc = Arc::new(self.layer.toc.unpack().unwrap());
        Base::layer(self.layer.digest.clone(), self.file.try_clone().unwrap(), toc)
    }
}

fn on_disk(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn bytes_of(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The blobs of the other side, and which of them were opened.
#[derive(Default)]
struct There {
    blobs: Vec<(Digest, Vec<u8>)>,
    opened: Mutex<Vec<Digest>>,
}

impl There {
    fn with(bases: &[&Made]) -> Self {
        let blobs = bases.iter().map(|made| (made.layer.digest.clone(), bytes_of(&made.file)));
        Self { blobs: blobs.collect(), ..Self::default() }
    }
}

impl Sources for There {
    fn open(&self, blob: &SourceBlob) -> Result<Box<dyn Source>> {
        self.opened.lock().unwrap().push(blob.digest.clone());
        match self.blobs.iter().find(|(digest, _)| *digest == blob.digest) {
            Some((_, bytes)) => Ok(Box::new(Cursor::new(bytes.clone()))),
            None => Err(Error::not_found(format!("blob {} is missing", blob.digest))),
        }
    }

    fn size(&self, blob: &SourceBlob) -> Result<u64> {
        let found = self.blobs.iter().find(|(digest, _)| *digest == blob.digest);
        Ok(found.map_or(0, |(_, bytes)| bytes.len() as u64))
    }
}

fn make(new: &Made, bases: &[Base], level: i32) -> (Vec<u8>, Created) {
    let out = tempfile::tempfile().unwrap();
    let options = Options { level, threads: 2, advance: &|_| {} };
    let layer = &new.layer;
    let toc = layer.toc.unpack().unwrap();
    let created = create(&layer.digest, &new.file, &toc, bases, &options, &out).unwrap();
    let recipe = bytes_of(&out);
    assert_eq!(recipe.len() as u64, created.size);
    (recipe, created)
}

fn applied(mut recipe: &[u8], there: &There) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let length = recipe.len() as u64;
    apply(&mut recipe, length, there, 2, &mut out)?;
    Ok(out)
}

/// Makes the recipe, applies it, and returns its size.
fn passed(new: &Made, old: &[&Made]) -> u64 {
    let bases: Vec<Base> = old.iter().map(|made| made.base()).collect();
    let (recipe, created) = make(new, &bases, 5);
    assert!(applied(&recipe, &There::with(old)).unwrap() == bytes_of(&new.file));
    created.size
}

fn version() -> Files {
    let mut files: Files = (0..30)
        .map(|number| file(&format!("bin/file{number:02}"), content(number, 20_000)))
        .collect();
    files.push(file("empty", Vec::new()));
    files.push(file("noise", noise(300_000)));
    files.push(file("large", content(99, 5 << 20)));
    files.push(file("last", b"the end".to_vec()));
    files
}

fn next_version() -> Files {
    let mut files = version();
    for (number, name) in [(3, "bin/file03"), (32, "large"), (7, "bin/other-7")] {
        let bytes = edited(&files[number].1, 5);
        files[number] = file(name, bytes);
    }
    files.remove(20);
    files.insert(10, file("bin/added", content(1000, 50_000)));
    files
}

#[test]
fn a_changed_file_costs_what_changed_in_every_compression() {
    let before = ALL.map(|old| Made::new(&version(), old));
    let after = ALL.map(|new| Made::new(&next_version(), new));
    for (old, before) in ALL.iter().zip(&before) {
        for (new, after) in ALL.iter().zip(&after) {
            let size = passed(after, &[before]);
            // The new file and the edits are about 30 kB.
            assert!(size < 60_000, "{old:?} to {new:?}: {size} of {}", after.layer.size);
        }
    }
}

#[test]
fn what_did_not_change_costs_almost_nothing() {
    for compression in ALL {
        let before = Made::new(&version(), compression);
        let mut files = version();
        files.push(file("zzz", b"one more".to_vec()));
        let after = Made::new(&files, compression);
        let size = passed(&after, &[&before]);
        assert!(size < 4000, "{compression:?}: {size}");
        assert!(passed(&before, &[&before]) < 1000);
    }
}

#[test]
fn without_anything_in_common_all_of_it_is_there() {
    for compression in ALL {
        let after = Made::new(&version(), compression);
        let empty = Made::new(&[], compression);
        let size = passed(&after, &[&empty]);
        assert!(size < after.layer.size + after.layer.size / 50, "{compression:?}: {size}");
        assert!(passed(&after, &[]) < after.layer.size + after.layer.size / 50);
        assert!(passed(&empty, &[&after]) < 3000);
    }
}

#[test]
fn foreign_blobs_travel_as_they_are() {
    let plain = bytes_of(&Made::new(&version(), Compression::None).file);
    let mut foreign = vec![zstd::bulk::compress(&plain, 5).unwrap()];
    foreign.push(zstd::stream::encode_all(&plain[..], 3).unwrap());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    gzip.write_all(&plain).unwrap();
    foreign.push(gzip.finish().unwrap());
    foreign.push(b"no tar at all".repeat(1000));
    // Ours, but damaged in the middle.
    let mut ours = bytes_of(&Made::new(&version(), ZSTD).file);
    let middle = ours.len() / 2;
    ours.splice(middle..middle, [0; 100]);
    foreign.push(ours);
    let old = Made::new(&version(), ZSTD);
    for bytes in foreign {
        let made = Made {
            layer: Layer {
                digest: Digest::of(&bytes),
                size: bytes.len() as u64,
                ..old.layer.clone()
            },
            file: on_disk(&bytes),
        };
        assert!(passed(&made, &[&old]) < made.layer.size + made.layer.size / 50 + 1000);
        // As a base, too.
        passed(&old, &[&made]);
    }
}

#[test]
fn files_are_bases_too() {
    let after = Made::new(&next_version(), Compression::None);
    let compressed = Made::new(&next_version(), ZSTD);
    let mut there = There::default();
    let mut bases = Vec::new();
    for (entry, bytes) in version().into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let digest = Digest::of(&bytes);
        let hash = Some(*blake3::hash(&bytes).as_bytes());
        let size = bytes.len() as u64;
        bases.push(Base::file(digest.clone(), on_disk(&bytes), entry.path, size, hash));
        there.blobs.push((digest, bytes));
    }
    for made in [&after, &compressed] {
        let (recipe, created) = make(made, &bases, 5);
        assert!(applied(&recipe, &there).unwrap() == bytes_of(&made.file));
        assert!(created.size < 70_000, "{}", created.size);
    }
    let (_, created) = make(&after, &bases, 5);
    assert!(created.copied > 800_000, "{}", created.copied);
    // Bases that are not needed are not opened.
    let named = created.sources.len();
    assert!(named < bases.len(), "{named} of {}", bases.len());
}

#[test]
fn a_large_file_is_patched_in_windows() {
    let bytes = content(1, 70 << 20);
    let (old, new) = (file("big", bytes.clone()), file("big", edited(&bytes, 2)));
    let (before, after) = (Made::new(&[old], ZSTD), Made::new(&[new], ZSTD));
    let (recipe, created) = make(&after, &[before.base()], 3);
    assert!(created.size < 200_000, "{}", created.size);
    assert!(applied(&recipe, &There::with(&[&before])).unwrap() == bytes_of(&after.file));
}

/// A made-up layer and its next version, by numbers.
fn version_of(numbers: &[(u8, u16)]) -> Files {
    let mut files: Files = Vec::new();
    for (name, seed) in numbers {
        let path = format!("d{}/f{name}", name % 3);
        if files.iter().any(|(entry, _)| entry.path.as_bytes() == path.as_bytes()) {
            continue;
        }
        let length = usize::from(*seed % 97) * 1000;
        let bytes = match seed % 4 {
            0 => noise(length),
            1 => edited(&content(u64::from(seed % 5), length), u64::from(*seed)),
            _ => content(u64::from(seed % 50), length),
        };
        files.push(file(&path, bytes));
    }
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_two_layers(
        old in prop::collection::vec((0..20_u8, any::<u16>()), 0..20),
        new in prop::collection::vec((0..20_u8, any::<u16>()), 0..20),
        (from, to) in (0..ALL.len(), 0..ALL.len()),
        level in 1..20,
    ) {
        let before = Made::new(&version_of(&old), ALL[from]);
        let after = Made::new(&version_of(&new), ALL[to]);
        let (recipe, _) = make(&after, &[before.base()], level);
        prop_assert!(applied(&recipe, &There::with(&[&before])).unwrap() == bytes_of(&after.file));
    }

    #[test]
    fn damage_anywhere_is_an_error(at in any::<prop::sample::Index>(), with in 1..=255_u8) {
        let before = Made::new(&version_of(&[(1, 11), (2, 22), (3, 33)]), ZSTD);
        let after = Made::new(&version_of(&[(1, 12), (2, 22), (4, 35)]), ZSTD);
        let (mut recipe, _) = make(&after, &[before.base()], 3);
        let there = There::with(&[&before]);
        let at = at.index(recipe.len());
        prop_assert!(applied(&recipe[..at], &there).is_err());
        recipe[at] ^= with;
        // A change that yields the same bytes is none.
        if let Ok(bytes) = applied(&recipe, &there) {
            prop_assert!(bytes == bytes_of(&after.file));
        }
    }
}

#[test]
fn another_base_is_an_error_that_names_it() {
    let (before, after) = (Made::new(&version(), ZSTD), Made::new(&next_version(), ZSTD));
    let (recipe, _) = make(&after, &[before.base()], 3);
    let error = applied(&recipe, &There::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains(before.layer.digest.hex()), "{error}");
    // Damaged where it is copied, where it is referred to, and cut off.
    let good = bytes_of(&before.file);
    for at in (0..good.len()).step_by(good.len() / 7) {
        let mut there = There::with(&[&before]);
        there.blobs[0].1[at] ^= 1;
        if let Ok(bytes) = applied(&recipe, &there) {
            assert!(bytes == bytes_of(&after.file), "{at}");
        }
        there.blobs[0].1.truncate(at / 4);
        let Err(error) = applied(&recipe, &there) else { panic!("{at}") };
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
    }
}

/// A recipe with these groups, of a blob with this content.
fn recipe_of(groups: &[Group], result: &[u8], level: i32, sources: &[&Made]) -> Vec<u8> {
    let mut header = Header::new(Digest::of(result), result.len() as u64);
    header.level = level;
    header.zstd = if level == 0 { 0 } else { zstd::zstd_safe::version_number() };
    header.sources = sources
        .iter()
        .map(|made| SourceBlob { digest: made.layer.digest.clone(), size: made.layer.size })
        .collect();
    let mut recipe = Vec::new();
    header.write(&mut recipe).unwrap();
    for group in groups {
        group.write(&mut recipe).unwrap();
    }
    Group::write_end(&mut recipe).unwrap();
    recipe
}

#[test]
fn hostile_recipes_are_refused() {
    let base = Made::new(&version(), ZSTD);
    let there = There::with(&[&base]);
    let verbatim =
        |length| Instruction::Emit { encoding: Encoding::Verbatim, origin: Origin::Patch, length };
    let group = |content: u64, patch: &[u8], instructions: &[Instruction]| Group {
        content,
        patch: zstd::bulk::compress(patch, 1).unwrap(),
        instructions: instructions.to_vec(),
        ..Group::default()
    };
    let good = group(5, b"hello", &[verbatim(5)]);
    let recipe = recipe_of(std::slice::from_ref(&good), b"hello", 0, &[&base]);
    assert_eq!(applied(&recipe, &there).unwrap(), b"hello");
    let reference = |source, start, length, content| Group {
        references: vec![Reference { source, form: Form::Plain, start, length, content }],
        ..good.clone()
    };
    let frames = |length, content| Group {
        references: vec![Reference { source: 0, form: Form::Frames, start: 0, length, content }],
        ..good.clone()
    };
    let copy = |source, start, length| Instruction::Copy { source, start, length };
    let emit = |encoding, origin, length| Instruction::Emit { encoding, origin, length };
    let taken = |offset, length| emit(Encoding::Verbatim, Origin::Reference(offset), length);
    let huge = 1 << 60;
    for (name, group, level) in [
        ("a source that is not named", group(0, b"", &[copy(1, 0, 1)]), 0),
        ("an endless copy", group(0, b"", &[copy(0, 0, u64::MAX)]), 0),
        ("a copy that wraps", group(0, b"", &[copy(0, u64::MAX, 2)]), 0),
        ("a copy behind the end", group(0, b"", &[copy(0, huge, 5)]), 0),
        ("an empty copy", group(0, b"", &[copy(0, 0, 0)]), 0),
        ("more than it says", group(6, b"hello!", &[verbatim(6)]), 0),
        ("less than it says", group(4, b"hell", &[verbatim(4)]), 0),
        ("other content", group(5, b"hallo", &[verbatim(5)]), 0),
        ("a patch that is not used up", group(6, b"hello!", &[verbatim(5)]), 0),
        ("a patch that is too short", group(6, b"hello", &[verbatim(6)]), 0),
        ("a patch that is too long", group(5, b"hello!", &[verbatim(5)]), 0),
        ("an endless patch", group(huge, b"hello", &[verbatim(huge)]), 0),
        ("no instruction", group(0, b"", &[]), 0),
        (
            "a level without a compressor",
            group(5, b"hello", &[emit(Encoding::Frame, Origin::Patch, 5)]),
            0,
        ),
        (
            "a compressor that is not its own",
            group(5, b"hello", &[emit(Encoding::Deflate, Origin::Patch, 5)]),
            3,
        ),
        ("a level that there is not", good.clone(), 99),
        ("a level below all", good.clone(), -7),
        (
            "a list that is none",
            group(11, b"\"offset\":xy", &[emit(Encoding::List, Origin::Patch, 11)]),
            3,
        ),
        ("a reference without a source", reference(1, 0, 5, 5), 0),
        ("a reference that wraps", reference(0, u64::MAX, 5, 5), 0),
        ("an endless reference", reference(0, 0, huge, huge), 0),
        ("a plain reference that expands", reference(0, 0, 5, 500), 0),
        ("a reference behind the end", reference(0, huge, 5, 5), 0),
        ("frames that expand to more", frames(base.layer.size, 5), 0),
        ("frames that expand to less", frames(100, 30 << 20), 0),
        ("frames that expand to far too much", frames(100, 127 << 20), 0),
        (
            "a range behind the reference",
            Group { instructions: vec![taken(3, 3), verbatim(5)], ..reference(0, 0, 5, 5) },
            0,
        ),
        (
            "a range that wraps",
            Group { instructions: vec![taken(u64::MAX, 3), verbatim(5)], ..reference(0, 0, 5, 5) },
            0,
        ),
    ] {
        let recipe = recipe_of(&[group], b"hello", level, &[&base]);
        let error = applied(&recipe, &there).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{name}: {error}");
    }
    // A frame that grows without end as it is emitted again and again.
    let zeros = Made::new(&[file("zeros", vec![0; 4 << 20])], Compression::None);
    let frame = emit(Encoding::Frame, Origin::Reference(0), 4 << 20);
    let bomb = Group {
        references: vec![Reference {
            source: 0,
            form: Form::Plain,
            start: 512,
            length: 4 << 20,
            content: 4 << 20,
        }],
        instructions: vec![frame; 1000],
        ..Group::default()
    };
    let recipe = recipe_of(&[bomb], b"hello", 3, &[&zeros]);
    let error = applied(&recipe, &There::with(&[&zeros])).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent, "{error}");
}

/// What a recipe promises is bounded by what it is made of, whatever it says of that, and nothing is read or
/// written before.
#[test]
fn promises_are_bounded_by_recipe_and_bases() {
    let base = Made::new(&version(), ZSTD);
    let recipe = |size: u64, sources: Vec<SourceBlob>| {
        let mut header = Header::new(Digest::of(b"never"), size);
        header.sources = sources;
        let copy = |_| Instruction::Copy { source: 0, start: 0, length: base.layer.size };
        let instructions = (0..200_000).map(copy).collect();
        let patch = zstd::bulk::compress(b"", 1).unwrap();
        let mut recipe = Vec::new();
        header.write(&mut recipe).unwrap();
        Group { instructions, patch, ..Group::default() }.write(&mut recipe).unwrap();
        Group::write_end(&mut recipe).unwrap();
        recipe
    };
    let source = |size| SourceBlob { digest: base.layer.digest.clone(), size };
    let missing = SourceBlob { digest: Digest::of(b"missing"), size: 1 << 60 };
    for (name, size, sources) in [
        ("a base again and again", 600 << 30, vec![source(base.layer.size)]),
        ("just above", (65 << 20) + 64 * base.layer.size, vec![source(base.layer.size)]),
        ("a base that says it is large", 1 << 50, vec![source(1 << 60)]),
        ("a base that is named often", 1 << 30, vec![source(base.layer.size); 10_000]),
        ("a base that is not here", 1 << 50, vec![source(base.layer.size), missing]),
        ("nothing", 1 << 30, Vec::new()),
    ] {
        let there = There::with(&[&base]);
        let error = applied(&recipe(size, sources), &there).unwrap_err();
        assert!(error.to_string().contains("it promises"), "{name}: {error}");
        assert!(there.opened.lock().unwrap().is_empty(), "{name}");
    }
}

/// Time is bounded by what is yielded: the same content costs a hundred times more at the highest level.
#[test]
fn work_is_bounded_by_what_it_yields() {
    let zeros = Made::new(&[file("zeros", vec![0; 4 << 20])], Compression::None);
    let there = There::with(&[&zeros]);
    let frame = Instruction::Emit {
        encoding: Encoding::Frame,
        origin: Origin::Reference(0),
        length: 4 << 20,
    };
    let whole =
        Reference { source: 0, form: Form::Plain, start: 512, length: 4 << 20, content: 4 << 20 };
    let group = |frames| Group {
        references: vec![whole.clone()],
        instructions: vec![frame.clone(); frames],
        patch: zstd::bulk::compress(b"", 1).unwrap(),
        ..Group::default()
    };
    // Each frame of zeros is some hundred bytes.
    for (level, groups) in [(22, vec![group(21)]), (22, vec![group(1); 21]), (17, vec![group(82)])]
    {
        let recipe = recipe_of(&groups, &vec![0; 1 << 20], level, &[&zeros]);
        let error = applied(&recipe, &there).unwrap_err();
        assert!(error.to_string().contains("more time"), "{level}: {error}");
    }
}

#[test]
fn any_instructions_are_followed_or_refused() {
    let base = Made::new(&version(), ZSTD);
    let there = There::with(&[&base]);
    let header = recipe_of(&[], b"hello", 0, &[&base]);
    let patch = zstd::bulk::compress(b"hello", 1).unwrap();
    bolero::check!().with_iterations(3000).for_each(|instructions: &[u8]| {
        let packed = zstd::bulk::compress(instructions, 1).unwrap();
        // Without the end, a group, and the end.
        let mut recipe = header[..header.len() - 1].to_vec();
        recipe.push(1);
        for length in [instructions.len(), packed.len(), patch.len()] {
            crate::leb128::put(&mut recipe, length as u64);
        }
        recipe.extend(packed);
        recipe.extend(&patch);
        recipe.push(0);
        if let Ok(bytes) = applied(&recipe, &there) {
            assert_eq!(bytes, b"hello");
        }
    });
}

#[test]
fn other_formats_are_told_apart() {
    let there = There::default();
    for bytes in [&b""[..], b"imgctl", b"this is not a delta, but text"] {
        let error = applied(bytes, &there).unwrap_err();
        assert!(error.to_string().contains("not a delta"), "{error}");
    }
    let recipe = recipe_of(&[], b"", 0, &[]);
    assert_eq!(applied(&recipe, &there).unwrap(), b"");
    let changed = |from: &str, to: &str| {
        let at = recipe.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut changed = recipe.clone();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        changed
    };
    let error = applied(&changed("\"version\":1", "\"version\":2"), &there).unwrap_err();
    assert!(error.to_string().contains("of version 2"), "{error}");
    let error = applied(&changed("\"zstd\":0", "\"zstd\":7"), &there).unwrap_err();
    assert!(error.to_string().contains("another version of the compressor"), "{error}");
}

/// zstd's own tool reads the patches.
#[test]
fn patches_are_those_of_zstd() {
    let reference = content(1, 3 << 20);
    let new = edited(&reference, 2);
    let patch = patch::make(&new, &reference, 19).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("old"), &reference).unwrap();
    std::fs::write(at("new"), &new).unwrap();
    std::fs::write(at("patch"), &patch).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new("zstd")
            .args(arguments)
            .arg(format!("--patch-from={}", at("old").display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let patch_path = at("patch").display().to_string();
    let new_path = at("new").display().to_string();
    assert!(run(&["-d", "--long=28", "-c", &patch_path]) == new);
    let theirs = run(&["-19", "-c", &new_path]);
    assert!(patch.len() <= theirs.len() + theirs.len() / 5, "{} {}", patch.len(), theirs.len());
}
