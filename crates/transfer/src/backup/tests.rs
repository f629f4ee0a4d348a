//! Backups are packed, kept and read; what was cut, edited or belongs to somebody else is refused.

use std::path::Path;

use serde_json::{Map, json};

use super::{Found, Packed, Packer};
use crate::backup::directory::BackupDirectory;
use crate::backup::document::Kept;
use crate::backup::pack::Expected;
use crate::backup::place::Place;
use crate::transfer::arbiter::Arbiter;
use crate::transfer::layout::{LayoutSink, LayoutSource};
use crate::transfer::location::Archived;
use imgctl_age::{Identities, Recipients};
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::{Digest, Verdict};

const IDENTITY: &str = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
/// Maximum number of bytes in a frame.
const LONGEST: usize = 100_000;
const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

fn pack(directory: &Path, recipients: Option<Recipients>, snapshot: &[u8]) -> Packed {
    let created = "2026-11-23T16:00:00Z";
    let mut packer = Packer::begin(directory, "prod", created, recipients).unwrap();
    let own: Expected<'_> = Box::new(|| Ok(Digest::of(snapshot)));
    let frames = |content: &[u8]| -> Vec<_> {
        content.chunks(LONGEST).map(|part| zstd::bulk::compress(part, 1)).collect()
    };
    let longest = LONGEST as u64;
    packer
        .add_frames("snapshot.db", &mut frames(snapshot).into_iter(), longest, Some(own))
        .unwrap();
    packer.add("Clusterfile", &mut &b"kind: Cluster\n"[..]).unwrap();
    packer.add_frames("empty", &mut std::iter::empty(), longest, None).unwrap();
    for wrong in ["", "../x", ".x", "a b", "Clusterfile"] {
        assert!(packer.add(wrong, &mut &b""[..]).is_err(), "{wrong}");
    }
    let others: [fn() -> Result<Digest>; 2] =
        [|| Ok(Digest::of(b"other")), || Err(imgctl_base::error::Error::failed("gone"))];
    for other in others {
        let mut content = frames(b"content").into_iter();
        assert!(packer.add_frames("moved", &mut content, longest, Some(Box::new(other))).is_err());
    }
    let long = zstd::bulk::compress(&vec![0; LONGEST + 1], 1).unwrap();
    for wrong in [Ok(b"no frame".to_vec()), Ok(long), Err(std::io::Error::other("lost"))] {
        let mut content = frames(b"content").into_iter().chain([wrong]).chain(frames(b"more"));
        assert!(packer.add_frames("moved", &mut content, longest, None).is_err());
    }
    let about: Map<_, _> = [("hosts".to_owned(), json!(["secret-host"]))].into_iter().collect();
    packer.finish(about, "x").unwrap()
}

fn source(directory: &Path) -> Result<LayoutSource> {
    let place = Archived { path: directory.to_owned(), name: Some("x".to_owned()) };
    LayoutSource::oci(&place, &Arbiter::everything())
}

fn read(directory: &Path, identities: &Identities) -> Result<Vec<u8>> {
    let source = source(directory)?;
    let found = Found::read(&source)?;
    let opened = found.open(&source, identities)?;
    assert_eq!(opened.details.about["hosts"], json!(["secret-host"]));
    assert_eq!(opened.bytes(&source, "empty")?, b"");
    opened.bytes(&source, "snapshot.db")
}

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

#[test]
fn every_cut_and_every_change_is_found() {
    let identity = || Identities::parse(&imgctl_base::secret::Secret::new(IDENTITY), "i").unwrap();
    let content = content();
    for recipients in [None, Some(Recipients::parse(RECIPIENT, "r").unwrap())] {
        let identity = || match recipients {
            None => Identities::default(),
            Some(_) => identity(),
        };
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("backup");
        let is_encrypted = recipients.is_some();
        let packed = pack(&directory, recipients.clone(), &content);
        assert_eq!(read(&directory, &identity()).unwrap(), content);
        let blobs = directory.join("blobs/sha256");
        let mut texts = String::new();
        for entry in std::fs::read_dir(&blobs).unwrap() {
            let path = entry.unwrap().path();
            let whole = std::fs::read(&path).unwrap();
            texts.push_str(&String::from_utf8_lossy(&whole));
            let mut edited = whole.clone();
            edited[whole.len() / 2] ^= 1;
            for damaged in [&whole[..whole.len() - 1], &whole[..whole.len() / 2], &[], &edited] {
                std::fs::write(&path, damaged).unwrap();
                if let Err(error) = read(&directory, &identity()) {
                    assert_eq!(error.kind(), Kind::BadContent, "{error}");
                } else {
                    // The Clusterfile was not read.
                    let found = Found::read(&source(&directory).unwrap()).unwrap();
                    let identity = identity();
                    let source = source(&directory).unwrap();
                    let opened = found.open(&source, &identity).unwrap();
                    let error = opened.bytes(&source, "Clusterfile").unwrap_err();
                    assert_eq!(error.kind(), Kind::BadContent, "{error}");
                    let mut written = Vec::new();
                    opened.write_frames(&source, "Clusterfile", &mut written).unwrap_err();
                }
            }
            std::fs::write(&path, &whole).unwrap();
        }
        assert_eq!(texts.contains("secret-host"), !is_encrypted);
        assert_eq!(texts.contains("snapshot.db"), !is_encrypted);
        assert!(texts.contains("prod"));
        if is_encrypted {
            let error = read(&directory, &Identities::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{error}");
        } else {
            // The same content gives the same artifact.
            let again = pack(&scratch.path().join("again"), None, &content);
            assert_eq!(again.root.digest, packed.root.digest);
        }
    }
}

#[test]
fn a_key_demands_an_encrypted_backup() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("backup");
    pack(&directory, None, b"forged");
    let secret = |text: &str| imgctl_base::secret::Secret::new(text);
    for identities in [
        Identities::parse(&secret(IDENTITY), "i").unwrap(),
        Identities::passphrase(secret("only the owner knows it")),
    ] {
        let error = read(&directory, &identities).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.chain().join(" ").contains("is not encrypted"), "{error}");
    }
    assert_eq!(read(&directory, &Identities::default()).unwrap(), b"forged");
}

#[test]
fn what_is_no_backup_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes = br#"{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}"#;
    use crate::transfer::sink::ImageSink as _;
    use imgctl_base::image::{Descriptor, media_type};
    let root = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(bytes), bytes.len() as u64);
    let directory = scratch.path().join("layout");
    LayoutSink::open(&directory, Some("x"))
        .unwrap()
        .finish(&root, bytes, &Verdict::not_asked("a test"))
        .unwrap();
    let error = Found::read(&source(&directory).unwrap()).err().unwrap();
    assert!(error.chain().join(" ").contains("no backup"), "{error}");
}

#[test]
fn old_backups_go_and_nothing_that_others_need() {
    let scratch = tempfile::tempdir().unwrap();
    let place = scratch.path().join("place");
    drop(BackupDirectory::prepare(&place).unwrap());
    let put = |name: &str, snapshot: &[u8]| -> Digest {
        use crate::transfer::sink::ImageSink as _;
        use crate::transfer::source::ImageSource as _;
        let from = scratch.path().join(name);
        let packed = pack(&from, None, snapshot);
        let source = source(&from).unwrap();
        let sink = LayoutSink::open(&place, Some(name)).unwrap();
        for entry in std::fs::read_dir(from.join("blobs/sha256")).unwrap() {
            let entry = entry.unwrap();
            let to = place.join("blobs/sha256").join(entry.file_name());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(entry.path(), to).unwrap();
        }
        let root = source.root().unwrap();
        sink.finish(&root.descriptor, &root.bytes, &Verdict::not_asked("a test")).unwrap();
        packed.root.digest
    };
    let (one, two) = (put("one", b"1"), put("two", b"2"));
    let directory = BackupDirectory::open(&place).unwrap();
    let listed: Vec<Kept> = directory.list().unwrap();
    assert_eq!(listed.iter().map(|kept| &kept.digest).collect::<Vec<_>>(), [&one, &two]);
    let count = || std::fs::read_dir(place.join("blobs/sha256")).unwrap().count();
    let before = count();
    directory.remove(&[one]).unwrap();
    // Manifest, details and snapshot; the config and the Clusterfile are those of the other, too.
    assert_eq!(count(), before - 3);
    let root = source_root(&place, "two");
    directory.verify(&root, "two").unwrap();
    directory.remove(&[two]).unwrap();
    assert_eq!(count(), 0);
}

fn source_root(place: &Path, name: &str) -> imgctl_base::image::Descriptor {
    use crate::transfer::source::ImageSource as _;
    let place = Archived { path: place.to_owned(), name: Some(name.to_owned()) };
    LayoutSource::oci(&place, &Arbiter::everything()).unwrap().root().unwrap().descriptor
}

#[test]
fn places_are_written_as_those_of_images() {
    for (text, shown) in [
        ("oci:/b", "oci:/b"),
        ("oci:/b:x", "oci:/b:x"),
        ("/srv/backups", "oci:/srv/backups"),
        ("Backups Of Mine", "oci:Backups Of Mine"),
        ("docker://reg.io/a/b", "docker://reg.io/a/b"),
        ("docker://reg.io/a/b:x", "docker://reg.io/a/b:x"),
    ] {
        assert_eq!(Place::parse(text).unwrap().to_string(), shown);
    }
    for wrong in [
        "",
        "oci:",
        "dir:/x",
        "oci-archive:/x",
        "docker-archive:/x",
        "docker://a@sha256:0",
        "s3://b/x",
    ] {
        assert!(Place::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_backup_in_the_clear_is_not_put_where_others_read() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let open = scratch.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
    BackupDirectory::check(&open, false).unwrap();
    drop(BackupDirectory::prepare(&open).unwrap());
    BackupDirectory::check(&open, false).unwrap();
    std::fs::set_permissions(open.join("blobs"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(BackupDirectory::check(&open, false).unwrap_err().kind(), Kind::Denied);
    BackupDirectory::check(&open, true).unwrap();
    BackupDirectory::check(&scratch.path().join("none"), false).unwrap();
}
