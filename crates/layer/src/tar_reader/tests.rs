//! Archives written by other tools.

use std::process::Command;

use super::*;
use crate::pax::Records;

mod hostile;

/// Builds raw headers, valid or invalid.
struct Raw([u8; BLOCK]);

impl Raw {
    fn new(flag: u8, name: &str, size: u64) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().mtime = [0; 12];
        header.set_mode(0o644);
        header.set_size(size);
        header.as_old_mut().linkflag = [flag];
        Self(*header.as_bytes()).with(Field::NAME, name.as_bytes())
    }

    fn with(mut self, field: Field, bytes: &[u8]) -> Self {
        self.0[field.range()][..bytes.len()].copy_from_slice(bytes);
        self
    }

    fn octal(self, field: Field, number: u64) -> Self {
        self.with(field, format!("{number:0width$o}", width = field.len() - 1).as_bytes())
    }

    fn block(self) -> Vec<u8> {
        with_checksum(&self.0).to_vec()
    }

    fn and(self, content: impl AsRef<[u8]>) -> Vec<u8> {
        let mut bytes = self.block();
        bytes.extend_from_slice(&padded(content));
        bytes
    }
}

fn with_checksum(block: &[u8]) -> [u8; BLOCK] {
    let mut header = tar::Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    header.set_cksum();
    *header.as_bytes()
}

fn padded(content: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = content.as_ref().to_vec();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    Raw::new(b'0', name, content.len() as u64).and(content)
}

fn special(flag: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    Raw::new(flag, "special", body.as_ref().len() as u64).and(body)
}

fn records(pairs: &[(&str, &str)]) -> Vec<u8> {
    let one = |(key, value): &(&str, &str)| {
        let pair = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        pax::serialize(&Records::from([pair]))
    };
    pairs.iter().flat_map(one).collect()
}

fn pax(pairs: &[(&str, &str)]) -> Vec<u8> {
    special(b'x', records(pairs))
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), vec![0; 1024]].concat()
}

fn read(tar: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>> {
    read_with(tar, Limits::default())
}

fn read_with(tar: &[u8], limits: Limits) -> Result<Vec<(Entry, Vec<u8>)>> {
    read_names(tar, limits, Names::Plain)
}

fn read_names(tar: &[u8], limits: Limits, names: Names) -> Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = TarReader::new(tar, limits, names);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let mut content = Vec::new();
        reader.read_to_end(&mut content).map_err(|error| Error::io("content", error))?;
        assert_eq!(content.len() as u64, entry.size());
        if let Some(offset) = reader.content_offset() {
            assert!(tar[offset as usize..].starts_with(&content));
        }
        entries.push((entry, content));
    }
    Ok(entries)
}

/// Returns `name=content` of every entry, shortened.
fn listing(tar: &[u8]) -> Result<String> {
    let line = |(entry, content): (Entry, Vec<u8>)| {
        let name = entry.path.as_bytes().escape_ascii().to_string();
        match &entry.kind {
            EntryKind::File { .. } => format!("{name}={}", content.escape_ascii()),
            EntryKind::Directory => format!("{name}/"),
            EntryKind::Symlink { target } => format!("{name}>{}", target.escape_ascii()),
            EntryKind::HardLink { target } => {
                format!("{name}@{}", target.as_bytes().escape_ascii())
            }
            kind => format!("{name} {kind:?}"),
        }
    };
    Ok(read(tar)?.into_iter().map(line).collect::<Vec<_>>().join(" "))
}

#[test]
fn what_is_well_formed_is_read() {
    let inner = file("inner", "smuggled");
    let inner_size = inner.len().to_string();
    let smuggled = format!("a={}", inner.escape_ascii());
    let full_name = format!("{}=", "n".repeat(100));
    let gnu = |raw: Raw| raw.with(Field::MAGIC, b"ustar  \0");
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", archive(&[]), ""),
        ("nothing at all", Vec::new(), ""),
        ("no end", file("a", "x"), "a=x"),
        ("half an end", [file("a", "x"), vec![0; 512]].concat(), "a=x"),
        ("leading slash and dots", archive(&[file("/./a//b", "")]), "a/b="),
        (
            "PAX size over ustar size 0",
            archive(&[
                pax(&[("size", &inner_size)]),
                [Raw::new(b'0', "a", 0).block(), inner.clone()].concat(),
            ]),
            &smuggled,
        ),
        (
            "PAX size 3 over a larger ustar size",
            archive(&[pax(&[("size", "3")]), Raw::new(b'0', "a", 2048).and("abc"), file("b", "")]),
            "a=abc b=",
        ),
        (
            "PAX path and linkpath",
            archive(&[
                pax(&[("path", "p"), ("linkpath", "t")]),
                Raw::new(b'2', "a", 0).with(Field::LINK, b"b").block(),
                file("c", ""),
            ]),
            "p>t c=",
        ),
        (
            "unknown PAX records",
            archive(&[pax(&[("comment", "x"), ("LIBARCHIVE.x", "y")]), file("a", "")]),
            "a=",
        ),
        ("newline in a PAX path", archive(&[pax(&[("path", "a\nb")]), file("c", "")]), "a\\nb="),
        (
            "GNU long name and link",
            archive(&[
                special(b'L', "long\0"),
                special(b'K', "target\0"),
                Raw::new(b'1', "a", 0).block(),
                file("c", ""),
            ]),
            "long@target c=",
        ),
        (
            "PAX size is not the long name's",
            archive(&[
                pax(&[("size", "1")]),
                special(b'L', "name\0"),
                Raw::new(b'0', "a", 9).and("z"),
            ]),
            "name=z",
        ),
        (
            "global headers",
            archive(&[special(b'g', records(&[("comment", "x"), ("atime", "1")])), file("a", "")]),
            "a=",
        ),
        (
            "before POSIX",
            archive(&[
                Raw::new(0, "d/", 0).with(Field::MAGIC, &[0; 8]).block(),
                Raw::new(0, "f", 1).with(Field::MAGIC, &[0; 8]).and("y"),
            ]),
            "d/ f=y",
        ),
        (
            "times in GNU's header of a sparse file",
            archive(&[gnu(Raw::new(b'S', "a", 0))
                .with(Field::PREFIX, b"00000000001\0")
                .with(Field::GNU_REAL_SIZE, b"00000000002\0")
                .block()]),
            "a=\\x00\\x00",
        ),
        (
            "prefix",
            archive(&[Raw::new(b'0', "a", 0).with(Field::PREFIX, b"x/y").block()]),
            "x/y/a=",
        ),
        (
            "star's prefix",
            archive(&[Raw::new(b'0', "a", 0)
                .with(Field::PREFIX, b"x")
                .with(Field::new(476, 12), b"12345670123")
                .with(Field::STAR_TRAILER, b"tar\0")
                .block()]),
            "x/a=",
        ),
        (
            "base-256 size",
            archive(&[Raw::new(b'0', "a", 0)
                .with(Field::SIZE, b"\x80\0\0\0\0\0\0\0\0\0\0\x01")
                .and("x")]),
            "a=x",
        ),
        ("full-length name", archive(&[file(&"n".repeat(100), "")]), &full_name),
        ("the root", archive(&[Raw::new(b'5', "./", 0).block()]), "/"),
    ];
    for (name, tar, expected) in cases {
        match listing(&tar) {
            Ok(found) => assert_eq!(found, *expected, "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn metadata_of_every_spelling() {
    let mut tar = pax(&[
        ("uid", "70000"),
        ("mtime", "-1.5"),
        ("SCHILY.xattr.user.a", "b=c\n"),
        ("SCHILY.xattr.user.e", "\0"),
    ]);
    let raw = Raw::new(b'0', "a", 0)
        .with(Field::MODE, b"0104755\0")
        .with(Field::GID, b"\x80\0\0\0\0\x01\0\0");
    tar.extend_from_slice(&raw.block());
    let raw = Raw::new(b'3', "b", 0).with(Field::MAJOR, b"10\0").with(Field::MINOR, b"7");
    tar.extend_from_slice(&raw.block());
    let entries = read(&archive(&[special(b'g', records(&[("comment", "5")])), tar])).unwrap();
    let [(a, _), (b, _)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((a.mode, a.uid, a.gid), (0o4755, 70_000, 65_536));
    assert_eq!((a.mtime.seconds, a.mtime.nanoseconds), (-2, 500_000_000));
    assert_eq!(a.xattrs[&b"user.a"[..]], b"b=c\n");
    assert_eq!(a.xattrs[&b"user.e"[..]], b"\0");
    assert_eq!(b.kind, EntryKind::CharDevice { major: 8, minor: 7 });
    assert_eq!((b.uid, b.gid), (0, 0));
    assert!(b.xattrs.is_empty());
}

/// Sparse files, long names, unusual names and links as GNU tar writes them in each of its formats.
#[test]
fn gnu_tar_is_understood() {
    let directory = tempfile::tempdir().unwrap();
    let script = r"
        set -e; cd $0; mkdir tree; cd tree
        truncate -s 3M sparse; printf start | dd of=sparse conv=notrunc status=none
        for at in 100 300 500 700 900 1100 1300 1500 1700 1900 2100; do
            printf $at | dd of=sparse bs=1024 seek=$at conv=notrunc status=none
        done
        long=$(printf 'd%.0s' $(seq 120)); mkdir $long; echo deep > $long/$long; ln -s $long/$long link
        ln $long/$long hard; printf x > $(printf 'bad\377name'); mkfifo fifo; cd ..
        tar -cf ustar.tar --format=ustar --exclude=$long --exclude=hard --exclude=link -C tree .
        for format in gnu oldgnu pax; do tar -cSf $format.tar --format=$format --sort=name -C tree . ; done
        for v in 0.0 0.1 1.0; do tar -cSf pax$v.tar --format=pax --sparse-version=$v --sort=name -C tree .; done
    ";
    let mut shell = Command::new("bash");
    let done = shell.arg("-c").arg(script).arg(directory.path()).status().unwrap();
    assert!(done.success());
    let content = std::fs::read(directory.path().join("tree/sparse")).unwrap();
    let long = "d".repeat(120);
    for name in ["gnu", "oldgnu", "pax", "pax0.0", "pax0.1", "pax1.0"] {
        let tar = std::fs::read(directory.path().join(format!("{name}.tar"))).unwrap();
        assert!(tar.len() < 1 << 20, "{name} is not sparse");
        let entries = read(&tar).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(entries.len(), 8, "{name}");
        for (entry, found) in entries {
            let last = entry.path.file_name().unwrap_or_default();
            match (last, &entry.kind) {
                (b"sparse", EntryKind::File { .. }) => assert!(found == content, "{name}"),
                (b"bad\xffname", EntryKind::File { .. }) => assert_eq!(found, b"x"),
                (b"link", EntryKind::Symlink { target }) => {
                    assert_eq!(*target, format!("{long}/{long}").into_bytes());
                }
                (b"hard", EntryKind::File { .. }) | (b"fifo", EntryKind::Fifo) => {}
                (b"hard", EntryKind::HardLink { target }) => {
                    assert_eq!(target.as_bytes().len(), 241);
                }
                (_, EntryKind::Directory) => {}
                (_, EntryKind::File { .. }) => assert_eq!(found, b"deep\n"),
                (_, EntryKind::HardLink { target }) => assert_eq!(target.as_bytes(), b"hard"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    let tar = std::fs::read(directory.path().join("ustar.tar")).unwrap();
    assert_eq!(read(&tar).unwrap().len(), 4);
}

/// Like Go's archive/tar, accepts an archive that its writer did not close.
#[test]
fn an_archive_may_end_with_its_last_content() {
    let files = [file("a", "x"), file("b", "content"), file("c", "")].concat();
    let whole = file("a", "x").len() + BLOCK + "content".len();
    for (end, count) in
        [(whole, 2), (whole + 100, 2), (2 * BLOCK, 1), (files.len() - BLOCK, 2), (files.len(), 3)]
    {
        for names in [Names::Plain, Names::Archive, Names::Layer] {
            let read = read_names(&files[..end], Limits::default(), names).unwrap();
            assert_eq!(read.len(), count, "{end}");
        }
    }
    for end in [whole - 1, BLOCK, files.len() - 1] {
        assert!(read(&files[..end]).is_err(), "{end}");
    }
}

#[test]
fn names_are_taken_as_they_unpack() {
    let link = |name: &str, target: &str| {
        Raw::new(b'2', name, 0).with(Field::LINK, target.as_bytes()).block()
    };
    let hard = |name: &str, target: &str| {
        Raw::new(b'1', name, 0).with(Field::LINK, target.as_bytes()).block()
    };
    let tar = archive(&[
        link("lib", "/usr/lib"),
        file("lib/x", "content"),
        link("", "skipped"),
        link("./", "etc"),
        file("a/../b", ""),
        hard("y", "lib/../lib/x"),
        link("usr/up", "../.."),
        file("usr/up/etc/z", ""),
    ]);
    let expected = ["lib", "usr/lib/x", "b", "y", "usr/up", "etc/z"];
    for names in [Names::Archive, Names::Layer] {
        let found = read_names(&tar, Limits::default(), names).unwrap();
        let paths: Vec<&[u8]> = found.iter().map(|(e, _)| e.path.as_bytes()).collect();
        assert_eq!(paths, expected.map(str::as_bytes));
        let target = LayerPath::parse(b"usr/lib/x").unwrap();
        assert_eq!(found[3].0.kind, EntryKind::HardLink { target });
    }
    assert!(read(&tar).is_err());
    let tar = archive(&[file("../../etc/passwd", ""), hard("../x", "../../etc/passwd")]);
    let found = read_names(&tar, Limits::default(), Names::Layer).unwrap();
    assert_eq!(found[0].0.path.as_bytes(), b"etc/passwd");
    assert_eq!(found[1].0.path.as_bytes(), b"x");
    assert!(read_names(&tar, Limits::default(), Names::Archive).is_err());
}

#[test]
fn the_rest_of_the_stream_is_read() {
    let (zeros, junk) = (vec![0; 100_000], vec![7; 100_000]);
    let cases = [(Names::Layer, zeros), (Names::Archive, junk.clone()), (Names::Plain, junk)];
    for (names, rest) in cases {
        let tar = [archive(&[file("a", "x")]), rest].concat();
        let mut reader = TarReader::new(io::Cursor::new(&tar), Limits::default(), names);
        while reader.next_entry().unwrap().is_some() {}
        assert!(reader.next_entry().unwrap().is_none());
        assert_eq!(reader.into_inner().into_inner().position(), tar.len() as u64);
    }
}
