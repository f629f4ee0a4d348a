//! Lists that say something else than their archive, in the forms that other programs read.

use std::fs::File;
use std::io::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::scan::{Expected, Scanned, scan_file};
use crate::{Limits, Mtime};
use imgctl_base::error::Result;

type Change<'a> = &'a dyn Fn(&mut Value);

fn stored(blob: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(blob).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

fn scan(blob: &[u8]) -> Result<Scanned> {
    scan_file(stored(blob), Expected::default(), Limits::default())
}

/// Puts another list in the place of the one of a blob, with a footer of four numbers or of seven.
fn relisted(blob: &[u8], list: &str, numbers: usize) -> Vec<u8> {
    let position = Position::of_footer(blob, blob.len() as u64).unwrap();
    let mut blob = blob[..position.begins() as usize].to_vec();
    let frame = |content: &[u8], blob: &mut Vec<u8>| {
        blob.extend(SKIPPABLE);
        blob.extend((content.len() as u32).to_le_bytes());
        blob.extend(content);
    };
    let packed = zstd::bulk::compress(list.as_bytes(), 1).unwrap();
    let offset = blob.len() as u64 + 8;
    frame(&packed, &mut blob);
    let mut footer = Vec::new();
    for number in [offset, packed.len() as u64, list.len() as u64, 1, 0, 0, 0].iter().take(numbers)
    {
        footer.extend(number.to_le_bytes());
    }
    footer.extend(FOOTER_MAGIC);
    frame(&footer, &mut blob);
    blob
}

fn list_of(blob: &[u8]) -> Value {
    let position = Position::of_footer(blob, blob.len() as u64).unwrap();
    let packed = &blob[position.offset as usize..][..position.compressed as usize];
    let text = zstd::bulk::decompress(packed, position.uncompressed as usize).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn everything() -> Files {
    let mut files = version();
    let mut add = |name: &str, kind, change: &dyn Fn(&mut Entry)| {
        let mut entry = Entry::new(LayerPath::parse(name.as_bytes()).unwrap(), kind, 0o755);
        change(&mut entry);
        files.push((entry, Vec::new()));
    };
    let target = |name: &str| LayerPath::parse(name.as_bytes()).unwrap();
    add("d", EntryKind::Directory, &|_| {});
    add("hard", EntryKind::HardLink { target: target("empty") }, &|entry| entry.mode = 0o644);
    add("null", EntryKind::CharDevice { major: 1, minor: 3 }, &|_| {});
    add("fifo", EntryKind::Fifo, &|entry| entry.mtime = Mtime { seconds: -5, nanoseconds: 7 });
    add("capable", EntryKind::File { size: 0 }, &|entry| {
        drop(entry.xattrs.insert(b"security.capability".to_vec(), vec![1, 0, 0xff]));
    });
    files
}

#[test]
fn a_list_says_what_the_archive_says() {
    let (blob, _) = written(&everything());
    let list = list_of(&blob);
    scan(&blob).unwrap();
    let entry = |name: &str| {
        let entries = list["entries"].as_array().unwrap();
        let is_it = |entry: &Value| entry["name"] == name && entry["type"] != "chunk";
        entries.iter().position(is_it).unwrap()
    };
    for numbers in [4, 7] {
        scan(&relisted(&blob, &list.to_string(), numbers)).unwrap();
    }
    // Other spellings of names, other times, members without a meaning, and the end of a chunk.
    let mut same = list.clone();
    same["tarSplitDigest"] = json!("x");
    same["entries"][entry("bin/file07")]["name"] = json!("./bin//file07");
    same["entries"][entry("hard")]["linkName"] = json!("/empty");
    same["entries"][entry("fifo")]["modtime"] = json!("2020-01-01T00:00:00+02:00");
    same["entries"][entry("fifo")]["userName"] = json!("root");
    same["entries"][entry("fifo")]["mode"] = json!(0o10755);
    same["entries"][entry("fifo")]["xattrs"] = Value::Null;
    scan(&relisted(&blob, &same.to_string(), 7)).unwrap();

    let large = entry("large");
    let other = json!(Digest::of(b"other").to_string());
    let changes: [(&str, Change<'_>); 20] = [
        ("`/bin/evil` in the place of `/bin/file07`", &|list| {
            list["entries"][entry("bin/file07")]["name"] = json!("bin/evil");
        }),
        ("another mode to `/bin/file07`", &|list| {
            list["entries"][entry("bin/file07")]["mode"] = json!(0o4755);
        }),
        ("another owner to `/d`", &|list| list["entries"][entry("d/")]["uid"] = json!(1)),
        ("another type to `/empty`", &|list| {
            list["entries"][entry("empty")]["type"] = json!("fifo");
        }),
        ("another target to `/link`", &|list| {
            list["entries"][entry("link")]["linkName"] = json!("last");
        }),
        ("another target to `/hard`", &|list| {
            list["entries"][entry("hard")]["linkName"] = json!("last");
        }),
        ("another device to `/null`", &|list| {
            list["entries"][entry("null")]["devMinor"] = json!(4);
        }),
        ("another size to `/last`", &|list| list["entries"][entry("last")]["size"] = json!(6)),
        ("another extended attribute to `/capable`", &|list| {
            list["entries"][entry("capable")]["xattrs"] = json!({});
        }),
        ("another content for `/bin/file07`", &|list| {
            list["entries"][entry("bin/file07")]["digest"] = other.clone();
        }),
        // A chunk of another frame.
        ("another content for `/large`", &|list| {
            list["entries"][large + 1]["chunkDigest"] = other.clone();
        }),
        ("another content for `/large`", &|list| {
            list["entries"][large]["chunkDigest"] = other.clone();
        }),
        // The file of another layer, by the digest of the whole.
        ("another content for `/large`", &|list| {
            list["entries"][large]["digest"] = other.clone();
        }),
        ("another content for `/large`", &|list| {
            list["entries"][large + 1]["chunkType"] = json!("zeros");
            list["entries"][large + 1].as_object_mut().unwrap().remove("chunkDigest");
        }),
        ("chunks without order or digest for `/large`", &|list| {
            list["entries"][large]["chunkType"] = json!("holes");
        }),
        ("chunks without order or digest for `/large`", &|list| {
            list["entries"][large + 1]["chunkOffset"] = json!(5);
        }),
        ("has, and the archive has not, `/more`", &|list| {
            let mut more = list["entries"][entry("empty")].clone();
            more["name"] = json!("more");
            list["entries"].as_array_mut().unwrap().push(more);
        }),
        ("lacks `/capable`", &|list| drop(list["entries"].as_array_mut().unwrap().pop())),
        ("in the place of `/bin/file00`", &|list| {
            drop(list["entries"].as_array_mut().unwrap().remove(0));
        }),
        ("another version", &|list| list["version"] = json!(2)),
    ];
    for (why, change) in changes {
        let mut list = list.clone();
        change(&mut list);
        let error = scan(&relisted(&blob, &list.to_string(), 7)).unwrap_err();
        let told = error.chain().join(": ");
        assert!(told.contains(why), "{why}: {told}");
    }
    // What programs in Go take for one of the members that they know.
    let text = list.to_string();
    for (from, to) in [
        ("\"entries\":", "\"Entries\":[],\"entries\":"),
        ("\"entries\":", "\"entries\":[],\"entries\":"),
        ("\"name\":\"bin/file07\"", "\"Name\":\"bin/evil\",\"name\":\"bin/file07\""),
        ("\"name\":\"bin/file07\"", "\"name\":\"bin/file07\",\"name\":\"bin/file07\""),
        ("\"name\":\"bin/file07\"", "\"later\":1,\"name\":\"bin/file07\""),
        ("\"name\":\"bin/file07\"", "\"lin\u{212a}Name\":\"x\",\"name\":\"bin/file07\""),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let error = scan(&relisted(&blob, &changed, 7)).unwrap_err().chain().join(": ");
        assert!(error.contains("read differently"), "{to}: {error}");
    }
    // A footer that leads elsewhere.
    for wrong in [
        &blob[8..],
        &[&blob[..], &FOOTER_MAGIC].concat(),
        &[&blob[..blob.len() - 72 + 8], &u64::MAX.to_le_bytes(), &blob[blob.len() - 56..]].concat(),
    ] {
        assert!(scan(wrong).is_err());
    }
}

#[test]
fn frames_that_no_list_names_are_nothing() {
    let files = [file("a", content(1, 300_000))];
    let (blob, _) = written(&files);
    let position = Position::of_footer(&blob, blob.len() as u64).unwrap();
    let frames = &blob[..position.begins() as usize];
    // pzstd and seekable formats write skippable frames in front, between and behind.
    let skippable = |magic: u8, content: &[u8]| {
        let length = (content.len() as u32).to_le_bytes();
        [&[magic, 0x2a, 0x4d, 0x18][..], &length, content].concat()
    };
    let sized = skippable(0x50, &(frames.len() as u32).to_le_bytes());
    let table = skippable(0x5e, b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\xb1\xea\x92\x8f");
    let scanned = scan(&[&sized, frames, &table].concat()).unwrap();
    assert_eq!(scanned.toc.entries.len(), 1);
}

#[test]
fn annotations_name_the_list_at_the_end_and_no_other() {
    let (blob, layer) = written(&everything());
    let check = |blob: &[u8], annotations: &_| check_annotations(&stored(blob), annotations);
    check(&blob, &layer.annotations).unwrap();
    let hidden = zstd::bulk::compress(br#"{"version":1,"entries":[]}"#, 1).unwrap();
    let mut longer = blob.clone();
    longer.splice(0..0, [&SKIPPABLE[..], &(hidden.len() as u32).to_le_bytes(), &hidden].concat());
    for names in [[CHECKSUM, POSITION], [OLD_CHECKSUM, OLD_POSITION]] {
        let mut annotations = layer.annotations.clone();
        let position = format!("8:{}:26:1", hidden.len());
        annotations.insert(names[0].to_owned(), Digest::of(&hidden).to_string());
        annotations.insert(names[1].to_owned(), position);
        let error = check(&longer, &annotations).unwrap_err().to_string();
        assert!(error.contains(names[1]), "{error}");
        // Of another blob, as of a layer that was compressed again: nobody can use it.
        annotations.insert(names[0].to_owned(), Digest::of(b"").to_string());
        check(&longer, &annotations).unwrap();
        annotations.insert(names[1].to_owned(), "9999999999:1:1:1".to_owned());
        check(&longer, &annotations).unwrap();
    }
}

/// A layer in the form of eStargz: each entry is a gzip member, and so is the list, the last entry.
fn estargz(tar: &[u8], list: &str, legacy: bool) -> Vec<u8> {
    let member = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let (mut own, _) = write_layer(&[file("stargz.index.json", list.into())], Compression::None, 1);
    own.resize(own.len().next_multiple_of(512), 0);
    let mut blob = member(tar);
    let offset = blob.len();
    blob.extend(member(&own));
    let mut field = format!("{offset:016x}STARGZ").into_bytes();
    if !legacy {
        field.splice(0..0, *b"SG\x16\0");
    }
    blob.extend([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, field.len() as u8, 0]);
    blob.extend(field);
    blob.extend([1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    blob
}

#[test]
fn lists_of_estargz_are_compared_as_well() {
    let text = content(3, 1000);
    let files = [file("a", text.clone()), file("b", b"b".to_vec())];
    let (mut tar, _) = write_layer(&files, Compression::None, 1);
    let end = tar.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    tar.truncate(end.next_multiple_of(512));
    let digest = |bytes: &[u8]| Digest::of(bytes).to_string();
    let list = json!({"version": 1, "entries": [
        {"name": "a", "type": "reg", "size": 1000, "modtime": "1970-01-01T00:00:00Z", "mode": 0o644,
         "NumLink": 0, "digest": digest(&text), "chunkSize": 400, "chunkDigest": digest(&text[..400])},
        {"name": "a", "type": "chunk", "offset": 9, "chunkOffset": 400, "chunkDigest": digest(&text[400..])},
        {"name": "b", "type": "reg", "size": 1, "mode": 0o644, "digest": digest(b"b"), "chunkDigest": digest(b"b")},
    ]});
    let entries: Vec<_> = scan(&estargz(&tar, &list.to_string(), false)).unwrap().toc.entries;
    assert_eq!(entries.len(), 3);
    scan(&estargz(&tar, &list.to_string(), true)).unwrap();
    for (pointer, value, why) in [
        ("/entries/0/mode", json!(0o4755), "another mode to `/a`"),
        ("/entries/0/chunkDigest", json!(digest(b"")), "another content for `/a`"),
        ("/entries/1/chunkDigest", json!(digest(b"")), "another content for `/a`"),
        ("/entries/2/name", json!("c"), "`/c` in the place of `/b`"),
    ] {
        let mut list = list.clone();
        *list.pointer_mut(pointer).unwrap() = value;
        for legacy in [false, true] {
            let error = scan(&estargz(&tar, &list.to_string(), legacy)).unwrap_err();
            let told = error.chain().join(": ");
            assert!(told.contains(why), "{why}: {told}");
        }
    }
    // The footer names the list inside a file.
    let mut blob = estargz(&tar, &list.to_string(), false);
    let at = blob.len() - 51 + 16;
    blob[at..at + 16].copy_from_slice(format!("{:016x}", 0).as_bytes());
    let told = scan(&blob).unwrap_err().chain().join(": ");
    assert!(told.contains("stargz.index.json"), "{told}");
}
