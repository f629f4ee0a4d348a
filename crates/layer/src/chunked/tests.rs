//! What is written is read again, versions share their frames, and a table that lies has no effect
//! but an error or bytes of another digest.

mod agreement;

use std::io::{Read as _, Write as _};

use proptest::prelude::*;

use super::*;
use crate::decompress::decompress;
use crate::writer::Layer;
use crate::writer::tests::{noise, read_all, write_layer};
use crate::{Compression, Entry, EntryKind, LayerPath};
use imgctl_base::image::Digest;

type Files = Vec<(Entry, Vec<u8>)>;

fn file(name: &str, content: Vec<u8>) -> (Entry, Vec<u8>) {
    let size = content.len() as u64;
    let path = LayerPath::parse(name.as_bytes()).unwrap();
    (Entry::new(path, EntryKind::File { size }, 0o644), content)
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

/// Forty small files, a large one and some without content.
fn version() -> Files {
    let mut files: Files = (0..40)
        .map(|number| file(&format!("bin/file{number:02}"), content(number, 20_000)))
        .collect();
    files.push(file("empty", Vec::new()));
    files.push((
        Entry::new(
            LayerPath::parse(b"link").unwrap(),
            EntryKind::Symlink { target: b"empty".to_vec() },
            0o777,
        ),
        Vec::new(),
    ));
    files.push(file("large", content(99, 9 << 20)));
    files.push(file("last", b"the end".to_vec()));
    files
}

fn written(files: &[(Entry, Vec<u8>)]) -> (Vec<u8>, Layer) {
    write_layer(files, Compression::default(), 2)
}

fn table(blob: &[u8], layer: &Layer) -> Table {
    let position = Position::of_annotations(&layer.annotations, layer.size).unwrap();
    let footer = &blob[blob.len() - usize::try_from(FOOTER).unwrap()..];
    let other = Position::of_footer(footer, layer.size).unwrap();
    assert_eq!(other, Position { digest: None, ..position.clone() });
    let start = usize::try_from(position.offset).unwrap();
    let end = start + usize::try_from(position.compressed).unwrap();
    position.read(&blob[start..end]).unwrap()
}

/// Puts a blob together again; returns it and the number of bytes that are not in `known`.
fn assembled(wanted: &[u8], parts: &[Part], known: &[&[u8]]) -> (Vec<u8>, u64) {
    let mut blob = Vec::new();
    let mut missing = 0;
    for part in parts {
        match part {
            Part::Missing(range) => {
                assert_eq!(range.start, blob.len() as u64);
                blob.extend_from_slice(&wanted[range.start as usize..range.end as usize]);
                missing += part.length();
            }
            Part::Known { length, source, start } => {
                let start = *start as usize;
                blob.extend_from_slice(&known[*source][start..start + *length as usize]);
            }
        }
    }
    (blob, missing)
}

fn fetched(old: &[(Entry, Vec<u8>)], new: &[(Entry, Vec<u8>)]) -> (u64, u64) {
    let ((old_blob, old), (new_blob, new)) = (written(old), written(new));
    let wanted = table(&new_blob, &new);
    let parts = parts(&wanted, new.size, &[table(&old_blob, &old)]);
    let (blob, missing) = assembled(&new_blob, &parts, &[&old_blob]);
    assert_eq!(Digest::of(&blob), new.digest);
    (missing, new.size - wanted.end)
}

#[test]
fn the_table_says_where_the_frames_are() {
    let files = version();
    let (blob, layer) = written(&files);
    let table = table(&blob, &layer);
    let mut frames = table.frames.iter();
    for (entry, content) in &files {
        let mut rest = &content[..];
        while !rest.is_empty() {
            let frame = frames.next().unwrap();
            let (start, end) = (frame.start as usize, frame.end as usize);
            let bytes = zstd::bulk::decompress(&blob[start..end], 4 << 20).unwrap();
            let (now, later) = rest.split_at(bytes.len());
            assert!(bytes == now, "{}", entry.path);
            assert_eq!((frame.length, &frame.digest), (now.len() as u64, &Digest::of(now)));
            rest = later;
        }
    }
    assert!(frames.next().is_none());
    assert!(table.frames.len() > 45, "{}", table.frames.len());
}

#[test]
fn versions_share_what_did_not_change() {
    let old = version();
    let (missing, list) = fetched(&old, &old);
    assert_eq!(missing, list);

    let mut changed = old.clone();
    changed[7] = file("bin/file07", content(1000, 20_000));
    let (missing, list) = fetched(&old, &changed);
    assert!(missing < list + 15_000, "{missing} {list}");

    let mut inserted = old.clone();
    inserted.insert(3, file("bin/file02a", content(1001, 5000)));
    let (missing, list) = fetched(&old, &inserted);
    assert!(missing < list + 5000, "{missing} {list}");

    let mut shifted = old.clone();
    shifted[42].1.splice(4_000_000..4_000_000, *b"inserted");
    shifted[42] = file("large", shifted[42].1.clone());
    let (missing, list) = fetched(&old, &shifted);
    assert!(missing < list + (3 << 20), "{missing} {list}");

    let (missing, _) = fetched(&[file("other", content(5, 300_000))], &old);
    assert!(missing > 5_000_000, "{missing}");
}

/// Files as small as manifests are, and one large among them.
fn small_files() -> Files {
    let words = |seed: u64| -> Vec<u8> {
        let numbers = content(seed, 400);
        numbers.iter().flat_map(|number| format!("word{number} ").into_bytes()).collect()
    };
    let mut files: Files =
        (0..2500).map(|number| file(&format!("m/{number:04}.yaml"), words(number))).collect();
    files.insert(1200, file("m/1199.large", content(7, 5 << 20)));
    files
}

#[test]
fn small_files_share_frames_and_versions_share_those() {
    let old = small_files();
    let (blob, layer) = written(&old);
    assert!(layer.annotations.contains_key(RUNS_POSITION), "{:?}", layer.annotations);
    assert!(!layer.annotations.contains_key(POSITION));
    let listed = table(&blob, &layer);
    let mut position = 0;
    for frame in &listed.frames {
        assert_eq!(frame.start, position);
        let bytes = &blob[frame.start as usize..frame.end as usize];
        let bytes = zstd::bulk::decompress(bytes, 4 << 20).unwrap();
        assert_eq!((frame.length, &frame.digest), (bytes.len() as u64, &Digest::of(&bytes)));
        position = frame.end;
    }
    assert_eq!(position, listed.end);
    assert!((10..60).contains(&listed.frames.len()), "{}", listed.frames.len());

    let mut tar = Vec::new();
    let (_, mut reader) = decompress(&blob[..]).unwrap();
    reader.read_to_end(&mut tar).unwrap();
    let blocks: usize =
        tar.chunks(4 << 20).map(|block| zstd::bulk::compress(block, 3).unwrap().len()).sum();
    assert!(blob.len() < blocks + blocks / 50, "{} {blocks}", blob.len());

    let mut new = old.clone();
    new[300] = file("m/0300.yaml", content(9999, 3000));
    new.insert(2000, file("m/1998-new.yaml", content(9998, 3000)));
    let (missing, list) = fetched(&old, &new);
    assert!(missing > list && missing < layer.size / 3, "{missing} {list} {}", layer.size);
    let (missing, list) = fetched(&new, &new);
    assert_eq!(missing, list);
}

#[test]
fn a_changed_header_is_fetched() {
    let old = version();
    for change in [
        (|entry: &mut Entry| entry.mode = 0o755) as fn(&mut Entry),
        |entry| entry.uid = 1000,
        |entry| entry.mtime.seconds = 5,
        |entry| drop(entry.xattrs.insert(b"user.a".to_vec(), b"b".to_vec())),
        |entry| entry.path = LayerPath::parse(b"bin/file07x").unwrap(),
    ] {
        let mut new = old.clone();
        change(&mut new[7].0);
        let (missing, list) = fetched(&old, &new);
        assert!(missing > list && missing < list + 1000, "{missing} {list}");
    }
}

#[test]
fn what_json_cannot_express_and_small_layers_have_no_list() {
    let mut wrong = version();
    wrong[3].0.path = LayerPath::parse(b"bin/\xff").unwrap();
    assert!(written(&wrong).1.annotations.is_empty());
    let mut late = version();
    late[3].0.mtime.seconds = 253_402_300_800;
    assert!(written(&late).1.annotations.is_empty());
    assert!(written(&[file("small", noise(1000))]).1.annotations.is_empty());
    for compression in [Compression::None, Compression::Gzip { level: 1 }] {
        assert!(write_layer(&version(), compression, 2).1.annotations.is_empty());
    }
}

#[test]
fn positions_that_make_no_sense_are_none() {
    let (blob, layer) = written(&version());
    let of = |position: &str| {
        let mut annotations = layer.annotations.clone();
        annotations.insert(POSITION.to_owned(), position.to_owned());
        Position::of_annotations(&annotations, layer.size)
    };
    assert!(of("10:10:10:1").is_some());
    for wrong in [
        "",
        "1:2:3",
        "1:2:3:2",
        "-1:2:3:1",
        "18446744073709551615:2:3:1",
        "0:99999999999:3:1",
        "0:10:999999999999:1",
        "0:a:3:1",
    ] {
        assert_eq!(of(wrong), None, "{wrong}");
    }
    let mut annotations = layer.annotations.clone();
    annotations.remove(CHECKSUM);
    assert_eq!(Position::of_annotations(&annotations, layer.size), None);
    assert_eq!(Position::of_footer(&blob[..72], layer.size), None);
    assert_eq!(Position::of_footer(b"short", layer.size), None);
}

#[test]
fn a_table_must_match_its_digest_and_length() {
    let (blob, layer) = written(&version());
    let position = Position::of_annotations(&layer.annotations, layer.size).unwrap();
    let range = position.offset as usize..(position.offset + position.compressed) as usize;
    let mut bytes = blob[range].to_vec();
    let bomb = Position { uncompressed: 100, digest: None, ..position.clone() };
    assert!(bomb.read(&bytes).unwrap_err().to_string().contains("another length"));
    bytes[20] ^= 1;
    assert!(position.read(&bytes).unwrap_err().to_string().contains("its digest"));
}

#[test]
fn tables_that_lie_are_refused() {
    let digest = Digest::of(b"x");
    let reg = |offset: u64, end: u64, size: u64| {
        format!(
            "{{\"type\":\"reg\",\"name\":\"a\",\"size\":{size},\"digest\":\"{digest}\",\
             \"offset\":{offset},\"endOffset\":{end}}}"
        )
    };
    let read = |entries: &str| {
        let json = format!("{{\"version\":1,\"entries\":[{entries}]}}");
        let compressed = zstd::bulk::compress(json.as_bytes(), 3).unwrap();
        let uncompressed = json.len() as u64;
        let (digest, plain) = (None, None);
        let position = Position { offset: 1008, compressed: 0, uncompressed, digest, plain };
        position.read(&compressed)
    };
    assert_eq!(read(&reg(10, 20, 5)).unwrap().frames.len(), 1);
    let chunk = format!(
        "{{\"type\":\"chunk\",\"name\":\"a\",\"offset\":15,\"chunkSize\":3,\"chunkOffset\":2,\
         \"chunkDigest\":\"{digest}\"}}"
    );
    let first =
        reg(10, 20, 5).replace('}', &format!(",\"chunkSize\":2,\"chunkDigest\":\"{digest}\"}}"));
    assert_eq!(read(&format!("{first},{chunk}")).unwrap().frames.len(), 2);
    for (wrong, why) in [
        (format!("{},{}", reg(10, 20, 5), reg(19, 30, 5)), "overlap"),
        (reg(20, 20, 5), "overlap"),
        (reg(20, 10, 5), "overlap"),
        (reg(990, 1001, 5), "behind the last"),
        (reg(10, 20, 5).replace("digest", "userName"), "lacks a digest"),
        (reg(10, 20, 5).replace(&digest.to_string(), "sha256:abc"), "malformed"),
        (format!("{first},{}", chunk.replace(":15", ":9")), "overlap"),
        (format!("{first},{}", chunk.replace(":15", ":20")), "overlap"),
        (format!("{first},{}", chunk.replace("\"chunkOffset\":2", "\"chunkOffset\":1")), "follow"),
        (format!("{first},{}", chunk.replace("\"chunkSize\":3", "\"chunkSize\":9")), "add up"),
        ("7".to_owned(), "JSON"),
    ] {
        let error = read(&wrong).unwrap_err().to_string();
        assert!(error.contains(why) || why == "malformed", "{wrong}: {error}");
    }
}

fn runs(blob: &[u8]) -> Option<Runs> {
    let file = tempfile::tempfile().unwrap();
    (&file).write_all(blob).unwrap();
    runs_of(&file).unwrap()
}

fn plain(files: &[(Entry, Vec<u8>)]) -> Vec<u8> {
    write_layer(files, Compression::None, 1).0
}

/// Number of bytes of `new` that `old` lacks, after checking the others.
fn lacking(old: &[u8], new: &[u8]) -> u64 {
    let mut index = Index::default();
    index.add(0, &runs(old).unwrap());
    let parts = index.parts(&runs(new).unwrap(), new.len() as u64);
    let (blob, missing) = assembled(new, &parts, &[old]);
    assert!(blob == new);
    missing
}

/// Before containers/storage 1.44, footer and annotations were others.
#[test]
fn older_footers_and_annotations_are_read() {
    let (blob, layer) = written(&version());
    let position = Position::of_annotations(&layer.annotations, layer.size).unwrap();
    assert_eq!(blob.last_chunk(), Some(b"GnUlInUx"), "containers/storage, ZstdChunkedFrameMagic");
    let mut old = blob[..blob.len() - 72].to_vec();
    old.extend([0x50, 0x2a, 0x4d, 0x18, 40, 0, 0, 0]);
    old.extend(&blob[blob.len() - 64..blob.len() - 32]);
    old.extend(&blob[blob.len() - 8..]);
    let size = old.len() as u64;
    let found = Position::of_footer(&old[old.len() - 72..], size).unwrap();
    assert_eq!(found, Position { digest: None, ..position.clone() });
    assert_eq!(runs(&old).unwrap().count(), runs(&blob).unwrap().count());
    let renamed = |name: &str| name.replace("io.github.containers", "io.containers");
    let annotations = layer.annotations.iter().map(|(k, v)| (renamed(k), v.clone())).collect();
    assert_eq!(Position::of_annotations(&annotations, layer.size), Some(position));
}

#[test]
fn a_plain_tar_has_a_list_of_runs_behind_its_end() {
    let mut files = version();
    let old = plain(&files);
    let runs = runs(&old).unwrap();
    // The list, the padding and the footer are not listed.
    let list = old.len() as u64 - runs.end();
    assert_eq!(list % 512, 0);
    assert!(list >= runs.count() as u64 * 40 + 64 && list < runs.count() as u64 * 40 + 576);
    assert!(read_all(&old) == files, "readers ignore the list");
    assert_eq!(lacking(&old, &old), list);
    files.insert(3, file("bin/file02a", content(1234, 30_000)));
    files[20].1[7] ^= 1;
    let missing = lacking(&old, &plain(&files));
    assert!((50_000..70_000).contains(&missing), "{missing}");
}

/// Small files share runs, whose cuts do not move when one is added.
#[test]
fn runs_of_small_files_are_cut_by_their_paths() {
    let mut files: Files =
        (0..1000).map(|n| file(&format!("etc/file{n:04}"), content(n, 300))).collect();
    let old = plain(&files);
    let count = runs(&old).unwrap().count();
    assert!((30..130).contains(&count), "{count}");
    files.insert(500, file("etc/file0499a", content(4999, 300)));
    let new = plain(&files);
    let missing = lacking(&old, &new);
    assert!(missing < new.len() as u64 / 10, "{missing} of {}", new.len());
}

#[test]
fn small_layers_and_other_blobs_have_no_list() {
    assert_eq!(runs(&plain(&[file("a", content(1, 1000))])), None);
    assert_eq!(runs(b""), None);
    assert_eq!(runs(&content(1, 1 << 20)), None);
    let gzip = write_layer(&version(), Compression::Gzip { level: 1 }, 1).0;
    assert_eq!(runs(&gzip), None);
    assert!(runs(&written(&version()).0).is_some());
}

#[test]
fn lists_of_runs_that_lie_are_refused() {
    let good = plain(&version());
    let end = usize::try_from(runs(&good).unwrap().end()).unwrap();
    let refused = |blob: &[u8], why: &str| {
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(blob).unwrap();
        let error = runs_of(&file).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    // With a checksum that holds.
    let listed = |records: &[(u64, u8)], offset: u64| {
        let mut list: Vec<u8> = Vec::new();
        for (length, byte) in records {
            list.extend(length.to_le_bytes());
            list.extend([*byte; 32]);
        }
        let mut blob = good[..end].to_vec();
        let checksum = *blake3::hash(&list).as_bytes();
        let length = list.len() as u64;
        blob.extend(list);
        for word in [offset, length] {
            blob.extend(word.to_le_bytes());
        }
        blob.extend(checksum);
        blob.extend(1_u64.to_le_bytes());
        blob.extend(b"imgctlRL");
        blob
    };
    let offset = end as u64;
    let whole = listed(&[(offset - 5, 1), (5, 2)], offset);
    assert_eq!(runs(&whole).unwrap().count(), 2);
    for records in [
        &[(offset - 5, 1)][..],
        &[(offset - 5, 1), (6, 2)],
        &[(offset - 5, 1), (0, 2), (5, 3)],
        &[(offset - 5, 1), (u64::MAX, 2)],
        &[],
    ] {
        refused(&listed(records, offset), "cover");
    }
    // Beyond the end, there is no list.
    assert_eq!(runs(&listed(&[(offset, 1)], offset + 1_000_000)), None);
    assert_eq!(runs(&listed(&[(offset, 1)], u64::MAX)), None);
    refused(&listed(&[(offset - 8, 1)], offset - 8), "checksum");
    let mut torn = whole;
    torn[end + 50] ^= 1;
    refused(&torn, "checksum");
}

/// Changes some bytes.
fn changed(bytes: &mut [u8], edits: &[(u16, u8)]) {
    for (place, byte) in edits {
        let length = bytes.len();
        if let Some(at) = usize::from(*place).checked_rem(length) {
            bytes[length - 1 - at] ^= byte;
        }
    }
}

/// The parts of what a list says cover the blob, or the list is refused.
fn is_bounded(runs: &Runs, size: u64) {
    let mut index = Index::default();
    index.add(0, runs);
    let parts = index.parts(runs, size);
    assert_eq!(parts.iter().map(Part::length).sum::<u64>(), size.max(runs.end()));
}

#[test]
fn any_end_of_a_blob_is_a_list_or_none() {
    let ends = [plain(&version()), written(&version()).0, written(&small_files()).0]
        .map(|blob| blob[blob.len().saturating_sub(20_000)..].to_vec());
    let input = bolero::check!().with_type::<(u8, Vec<(u16, u8)>)>().with_iterations(1000);
    input.for_each(|(which, edits)| {
        let mut blob = ends[usize::from(*which) % ends.len()].clone();
        changed(&mut blob, edits);
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(&blob).unwrap();
        if let Ok(Some(runs)) = runs_of(&file) {
            is_bounded(&runs, blob.len() as u64);
        }
    });
}

#[test]
fn any_json_is_a_table_or_refused() {
    let (blob, layer) = written(&version());
    let position = Position::of_annotations(&layer.annotations, layer.size).unwrap();
    let range = position.offset as usize..(position.offset + position.compressed) as usize;
    let good = zstd::stream::decode_all(&blob[range]).unwrap();
    let input = bolero::check!().with_type::<Vec<(u16, u8)>>().with_iterations(2000);
    input.for_each(|edits| {
        let mut json = good.clone();
        for (place, digit) in edits {
            let at = usize::from(*place) % json.len();
            // Other numbers are what matters; other bytes end the parser early.
            if json[at].is_ascii_digit() {
                json[at] = b'0' + digit % 10;
            }
        }
        let compressed = zstd::bulk::compress(&json, 1).unwrap();
        let uncompressed = json.len() as u64;
        let position = Position { uncompressed, digest: None, ..position.clone() };
        if let Ok(table) = position.read(&compressed) {
            is_bounded(&Runs::from(&table), layer.size);
        }
    });
}

proptest! {
    /// Whatever a table of another blob says, the parts cover the blob and nothing else.
    #[test]
    fn parts_cover_the_blob(old in any_files(), new in any_files()) {
        let ((old_blob, old), (new_blob, new)) = (written(&old), written(&new));
        let wanted = table(&new_blob, &new);
        let parts = parts(&wanted, new.size, &[table(&old_blob, &old)]);
        prop_assert_eq!(parts.iter().map(Part::length).sum::<u64>(), new.size);
        let (blob, _) = assembled(&new_blob, &parts, &[&old_blob]);
        prop_assert_eq!(Digest::of(&blob), new.digest);
    }
}

/// Files of which some are the same in every value, enough for a list.
fn any_files() -> impl Strategy<Value = Files> {
    let some = proptest::collection::btree_map(0..12_u64, 0..4_u64, 0..10);
    some.prop_map(|files| {
        let mut all: Files = files
            .into_iter()
            .map(|(name, seed)| {
                file(&format!("f{name:02}"), content(seed, 700 * usize::try_from(seed).unwrap()))
            })
            .collect();
        all.push(file("z", content(77, 400_000)));
        all
    })
}
