//! Our reader and other readers return what was written, and the bytes never vary.

use std::io;
use std::process::Command;
use std::sync::Arc;

use imgctl_base::fs::xattr::Xattrs;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::{Limits, Mtime, Names, Table as _, TarReader, decompress};

const ALL: [Compression; 3] =
    [Compression::None, Compression::Gzip { level: 6 }, Compression::Zstd { level: 3 }];

type Files = Vec<(Entry, Vec<u8>)>;

fn path(text: impl AsRef<[u8]>) -> LayerPath {
    LayerPath::parse(text.as_ref()).unwrap()
}

fn file(name: impl AsRef<[u8]>, content: impl Into<Vec<u8>>) -> (Entry, Vec<u8>) {
    let content = content.into();
    let size = content.len() as u64;
    (Entry::new(path(name), EntryKind::File { size }, 0o644), content)
}

fn other(name: &str, kind: EntryKind) -> (Entry, Vec<u8>) {
    (Entry::new(path(name), kind, 0o755), Vec::new())
}

pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn write_layer(
    files: &[(Entry, Vec<u8>)],
    compression: Compression,
    threads: usize,
) -> (Vec<u8>, Layer) {
    let mut writer = LayerWriter::start(Vec::new(), compression, threads).unwrap();
    let sizes = || files.iter().map(|(_, content)| content.len() as u64);
    writer.expect(sizes().filter(|size| *size > 0).count() as u64, sizes().sum());
    for (entry, content) in files {
        writer.add(entry.clone(), &mut &content[..]).unwrap();
    }
    writer.finish().unwrap()
}

pub(crate) fn read_all(tar: &[u8]) -> Files {
    let mut reader = TarReader::new(tar, Limits::default(), Names::Layer);
    let mut files = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        files.push((entry, content));
    }
    files
}

fn unpacked(blob: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    let (_, mut reader) = decompress::decompress(blob).unwrap();
    reader.read_to_end(&mut tar).unwrap();
    tar
}

/// Every kind of entry, every field at its limits, compressible and incompressible content.
fn everything() -> Files {
    let mut files = vec![
        other("", EntryKind::Directory),
        other("dir", EntryKind::Directory),
        file("dir/empty", ""),
        file("dir/text", "all work and no play\n".repeat(300_000)),
        file("dir/noise", noise(5 << 20)),
        file("dir/block", noise(512)),
        file(format!("dir/{}", "n".repeat(99)), "long"),
        file(format!("{}/{}", "p".repeat(150), "n".repeat(100)), "split"),
        file(format!("{}/{}", "p/".repeat(90), "n".repeat(200)), "longest"),
        file(format!("dir/{}", "m".repeat(97)), "exactly 101"),
        file(&b"dir/\xff\xfe"[..], "not UTF-8"),
        file([&b"dir/\xff"[..], &[b'l'; 200]].concat(), "long and not UTF-8"),
        file("dir/größe", "UTF-8"),
        file("dir/new\nline", "newline"),
        other("link", EntryKind::Symlink { target: b"../dir/text".to_vec() }),
        other("long-link", EntryKind::Symlink { target: vec![b't'; 300] }),
        other("hard", EntryKind::HardLink { target: path("dir/text") }),
        other("hard-long", EntryKind::HardLink { target: path("h/".repeat(80) + "x") }),
        other("char", EntryKind::CharDevice { major: 1, minor: 3 }),
        other("block", EntryKind::BlockDevice { major: 4095, minor: 1_048_575 }),
        other("fifo", EntryKind::Fifo),
        other(&"d".repeat(100), EntryKind::Directory),
    ];
    for (index, (mode, id, seconds, nanoseconds)) in [
        (0o7777, 2_097_151, 0, 0),
        (0o4755, 2_097_152, 1_600_000_000, 0),
        (0, u32::MAX - 1, -1, 500_000_000),
        (0o600, 1000, 0o77_777_777_777, 0),
        (0o600, 1000, 0o100_000_000_000, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut entry, content) = file(format!("meta{index}"), "x");
        entry.mode = mode;
        (entry.uid, entry.gid) = (id, id);
        entry.mtime = Mtime { seconds, nanoseconds };
        files.push((entry, content));
    }
    let (mut entry, content) = file("xattrs", "x");
    entry.xattrs = Xattrs::from([
        (b"security.capability".to_vec(), b"\x01\0\0\x02\0\n=\0".to_vec()),
        (b"user.big".to_vec(), noise(60_000)),
    ]);
    files.push((entry, content));
    files
}

#[test]
fn everything_survives_and_no_thread_count_shows() {
    let files = everything();
    for compression in ALL {
        let (blob, layer) = write_layer(&files, compression, 1);
        assert_eq!(layer.digest, Digest::of(&blob));
        assert_eq!(layer.size, blob.len() as u64);
        let tar = unpacked(&blob);
        assert_eq!(layer.diff_id, Digest::of(&tar));
        assert_eq!(layer.diff_size, tar.len() as u64);
        assert!(read_all(&tar) == files, "{compression:?} changes something");
        for listed in layer.toc.entries() {
            let listed = listed.unwrap();
            let start = listed.offset as usize;
            let end = start + listed.entry.size() as usize;
            if let Some(hash) = listed.content {
                assert_eq!(blake3::hash(&tar[start..end]), hash, "{:?}", listed.entry);
            }
        }
        for threads in [0, 2, 3, 50] {
            let (again, other) = write_layer(&files, compression, threads);
            assert!(again == blob, "{compression:?} with {threads} threads");
            assert_eq!(other.toc, layer.toc);
        }
    }
}

/// A change here gives every layer of every user a new digest: upgrade a codec or change the
/// framing only intentionally.
#[test]
fn the_bytes_are_these_for_ever() {
    let mut files = everything();
    // The digests are older than the rule that no layer has an attribute without a value.
    let attributes = files.iter_mut().map(|(entry, _)| &mut entry.xattrs);
    for xattrs in attributes.filter(|xattrs| !xattrs.is_empty()) {
        xattrs.insert(b"user.empty".to_vec(), Vec::new());
    }
    files.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    let digests = ALL.map(|compression| {
        let (_, layer) = write_layer(&files, compression, 2);
        layer.digest.to_string()
    });
    assert_eq!(
        digests,
        [
            "sha256:29ca909298b7653d9d14e5842c05e2fb7107753aa25f3d280cb15791be76036f",
            "sha256:a029cb74b752eb431e3193ddf0430625f5ce546eebeb5a072d56e4bf1c85118d",
            "sha256:525edab4b37db21cc0f20d45a762cfe4c5226a4cee844e639f9d8124bc279dbd",
        ]
    );
}

/// `tar`, `bsdtar` and Python list the names and return the contents that were written.
#[test]
fn other_readers_agree() {
    let directory = tempfile::tempdir().unwrap();
    let files = everything();
    for (compression, name) in ALL.into_iter().zip(["l.tar", "l.tar.gz", "l.tar.zst"]) {
        let (blob, _) = write_layer(&files, compression, 2);
        let archive = directory.path().join(name);
        std::fs::write(&archive, blob).unwrap();
        let readers: [&[&str]; 2] = [&["tar"], &["bsdtar"]];
        for reader in readers {
            let output = Command::new(reader[0])
                .arg("-xOf")
                .arg(&archive)
                .arg("dir/text")
                .env("LC_ALL", "C.UTF-8")
                .output()
                .expect("scripts/setup installs tar and bsdtar");
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{reader:?} {name}: {message}");
            assert!(output.stdout == files[3].1, "{reader:?} {name}");
            let listing = Command::new(reader[0]).arg("-tf").arg(&archive).output().unwrap();
            assert!(listing.status.success(), "{reader:?} cannot list {name}");
            let lines = listing.stdout.iter().filter(|b| **b == b'\n').count();
            // GNU tar and bsdtar escape the newline in a name.
            assert_eq!(lines, files.len(), "{reader:?} {name}");
        }
    }
}

#[test]
fn python_reads_every_field() {
    let script = r#"
import sys, tarfile, hashlib
for m in (t := tarfile.open(sys.argv[1], errors="surrogateescape")):
    name = m.name.encode("utf-8", "surrogateescape")
    link = m.linkname.encode("utf-8", "surrogateescape")
    body = t.extractfile(m).read() if m.isreg() else b""
    print(name.hex(), m.type.decode(), oct(m.mode), m.uid, m.gid, float(m.mtime), link.hex(),
          m.devmajor if m.isdev() else 0, len(body), hashlib.sha256(body).hexdigest()[:8],
          sum(1 for k in m.pax_headers if k.startswith("SCHILY.xattr.")))
"#;
    let archive = tempfile::NamedTempFile::new().unwrap();
    let files = everything();
    let (blob, _) = write_layer(&files, Compression::None, 1);
    std::fs::write(archive.path(), blob).unwrap();
    let mut python = Command::new("python3");
    python.arg("-c").arg(script).arg(archive.path());
    let output = python.output().expect("scripts/setup installs python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).unwrap();
    let mut lines = listing.lines();
    for (entry, content) in &files {
        let (flag, link, major) = match &entry.kind {
            EntryKind::File { .. } => ("0", &b""[..], 0),
            EntryKind::HardLink { target } => ("1", target.as_bytes(), 0),
            EntryKind::Symlink { target } => ("2", &target[..], 0),
            EntryKind::CharDevice { major, .. } => ("3", &b""[..], *major),
            EntryKind::BlockDevice { major, .. } => ("4", &b""[..], *major),
            EntryKind::Directory => ("5", &b""[..], 0),
            EntryKind::Fifo => ("6", &b""[..], 0),
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let name = if entry.path.is_root() { b"." } else { entry.path.as_bytes() };
        let time = entry.mtime.seconds as f64 + f64::from(entry.mtime.nanoseconds) / 1e9;
        let expected = format!(
            "{} {flag} {:#o} {} {} {time:?} {} {major} {} {} {}",
            hex(name),
            entry.mode,
            entry.uid,
            entry.gid,
            hex(link),
            content.len(),
            &Digest::of(content).hex()[..8],
            entry.xattrs.len(),
        );
        assert_eq!(lines.next(), Some(&*expected), "{:?}", entry.path);
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn a_file_that_changed_is_named() {
    for (declared, content) in [(4, "abc"), (2, "abc"), (0, "a")] {
        let mut writer = LayerWriter::start(Vec::new(), Compression::default(), 2).unwrap();
        let entry = Entry::new(path("a/b"), EntryKind::File { size: declared }, 0o644);
        let error = writer.add(entry, &mut content.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("/a/b"), "{error}");
    }
}

/// A sink that fails after a given number of bytes and reports when it is dropped.
struct Full(usize, #[allow(dead_code, reason = "held until the drop")] Arc<()>);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_everything_with_one_error() {
    for compression in ALL {
        for room in [0, 3 << 20, 30 << 20] {
            let alive = Arc::new(());
            let sink = Full(room, Arc::clone(&alive));
            let mut writer = LayerWriter::start(sink, compression, 2).unwrap();
            let content = noise(8 << 20);
            let added = (0..8).try_for_each(|index| {
                let (entry, _) = file(format!("f{index}"), &content[..]);
                writer.add(entry, &mut &content[..]).map(drop)
            });
            let error = match added {
                Ok(()) => writer.finish().map(|_| ()).unwrap_err(),
                Err(error) => {
                    drop(writer);
                    error
                }
            };
            assert_eq!(error.kind(), imgctl_base::error::Kind::NoSpace, "{error}");
            assert_eq!(Arc::strong_count(&alive), 1, "a thread still holds the sink");
        }
    }
}

#[test]
fn a_dropped_writer_leaves_nothing_running() {
    let alive = Arc::new(());
    let sink = Full(usize::MAX, Arc::clone(&alive));
    let mut writer = LayerWriter::start(sink, Compression::default(), 4).unwrap();
    let (entry, content) = file("a", noise(9 << 20));
    writer.add(entry, &mut &content[..]).unwrap();
    drop(writer);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_reader_that_fails_is_reported_with_its_file() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(5))
        }
    }
    let mut writer = LayerWriter::start(Vec::new(), Compression::default(), 1).unwrap();
    let (entry, _) = file("a", "abc");
    let error = writer.add(entry, &mut Broken).unwrap_err();
    assert_eq!(error.message(), "cannot read `/a`");
}

#[test]
fn names_that_tar_cannot_hold_are_refused() {
    let mut bad = Vec::new();
    for name in [&b"user.a=b"[..], b"", b"user.\0"] {
        let (mut entry, _) = file("a", "");
        entry.xattrs.insert(name.to_vec(), Vec::new());
        bad.push(entry);
    }
    for target in [&b""[..], b"a\0b"] {
        bad.push(other("a", EntryKind::Symlink { target: target.to_vec() }).0);
    }
    bad.push(other("a", EntryKind::CharDevice { major: 1 << 24, minor: 0 }).0);
    for entry in bad {
        let mut writer = LayerWriter::start(Vec::new(), Compression::None, 1).unwrap();
        assert!(writer.add(entry.clone(), &mut io::empty()).is_err(), "{entry:?}");
    }
}

fn any_file() -> impl Strategy<Value = (Entry, Vec<u8>)> {
    let name = prop_oneof!["[a-z]{1,8}(/[a-z]{1,60}){0,6}", "\\PC{1,40}"];
    let name = name.prop_filter_map("no path", |name| {
        LayerPath::parse(name.as_bytes()).ok().filter(|path| !path.is_root())
    });
    let bytes = || vec(any::<u8>(), 1..300);
    let kind = prop_oneof![
        3 => (0..3000_u64).prop_map(|size| EntryKind::File { size }),
        1 => Just(EntryKind::Directory),
        1 => bytes().prop_map(|mut target| {
            target.retain(|b| *b != 0);
            target.push(b'x');
            EntryKind::Symlink { target }
        }),
        1 => name.clone().prop_map(|target| EntryKind::HardLink { target }),
        1 => (0..4096_u32, 0..1_048_576_u32)
            .prop_map(|(major, minor)| EntryKind::CharDevice { major, minor }),
        1 => Just(EntryKind::Fifo),
    ];
    let mtime = (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanoseconds)| Mtime {
        seconds: seconds.max(i64::MIN + 2),
        nanoseconds,
    });
    let xattrs = btree_map("user\\.[a-z]{1,9}".prop_map(String::into_bytes), bytes(), 0..3);
    let ids = (0..u32::MAX, 0..u32::MAX, 0..0o10000_u32);
    (name, kind, mtime, xattrs, ids).prop_map(|(path, kind, mtime, xattrs, ids)| {
        let mut entry = Entry::new(path, kind, ids.2);
        (entry.uid, entry.gid) = (ids.0, ids.1);
        entry.mtime = mtime;
        entry.xattrs = xattrs.into();
        let content = noise(entry.size() as usize);
        (entry, content)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_written_is_read(mut files in vec(any_file(), 0..20), zstd in any::<bool>()) {
        // Reading follows the layer's own symlinks: `a/b` has another path if `a` is one.
        let is_link = |entry: &Entry| matches!(entry.kind, EntryKind::Symlink { .. });
        let links = files.iter().map(|(entry, _)| entry).filter(|entry| is_link(entry));
        let links: Vec<LayerPath> = links.map(|entry| entry.path.clone()).collect();
        let below = |path: &LayerPath, link| path != link && path.starts_with(link);
        files.retain(|(entry, _)| !links.iter().any(|link| below(&entry.path, link)));
        let compression = ALL[1 + usize::from(zstd)];
        let (blob, layer) = write_layer(&files, compression, 2);
        let tar = unpacked(&blob);
        prop_assert_eq!(&layer.diff_id, &Digest::of(&tar));
        prop_assert!(read_all(&tar) == files);
        let mut stored = Vec::new();
        layer.toc.write_to(&layer.toc.restarts, &mut stored).unwrap();
        prop_assert_eq!(Toc::read_from(&mut &stored[..]).unwrap(), layer.toc.unpack().unwrap());
    }
}
