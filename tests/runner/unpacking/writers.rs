//! One tree as every writer of tars writes it, all in one image, a layer each: everybody unpacks the
//! same. Then what `umoci insert` makes, whose layers end without padding and end blocks.

use std::ffi::OsStr;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::common::tree::{self, Tree};
use crate::common::{Ran, TestEnv, repository, tool};
use crate::unpacking::image::{TAG, layout};
use crate::unpacking::readers::{self, Containerd, FILE_TIMES};

/// What every format can say, in `directory`.
fn plain(directory: &Path) {
    let at = |name: &str| directory.join(name);
    fs::create_dir_all(at("d/deep/er")).unwrap();
    for size in [0, 1, 511, 512, 513, 10_240, 1 << 20] {
        let content: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        fs::write(at(&format!("d/{size}")), content).unwrap();
    }
    for (name, mode) in [("setuid", 0o4755), ("none", 0), ("odd name\twith\\ *", 0o640)] {
        fs::write(at(name), name).unwrap();
        fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (name, mode) in [("sticky", 0o1777), ("setgid", 0o2750), ("empty", 0o700)] {
        fs::create_dir(at(name)).unwrap();
        fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::hard_link(at("d/512"), at("d/again")).unwrap();
    fs::hard_link(at("d/512"), at("0-before")).unwrap();
    for (name, target) in
        [("link", "d/1"), ("nowhere", "../../x"), ("up", ".."), ("abs", "/etc/passwd")]
    {
        symlink(target, at(name)).unwrap();
    }
    for (name, kind, device) in [
        ("pipe", FileType::Fifo, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("disk", FileType::BlockDevice, rustix::fs::makedev(7, 200)),
    ] {
        rustix::fs::mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o620), device).unwrap();
    }
    chown(at("d/1"), Some(1000), Some(65_534)).unwrap();
    Ran::new(tool("touch", ["-d", "@1", at("d/511").to_str().unwrap()])).ok();
}

/// What needs PAX or GNU headers: long and odd names, large owners, holes.
fn rich(directory: &Path) {
    plain(directory);
    let at = |name: &str| directory.join(name);
    let long = format!("{0}/{0}/{1}", "long".repeat(50), "n".repeat(255));
    fs::create_dir_all(at(&long).parent().unwrap()).unwrap();
    fs::write(at(&long), "long").unwrap();
    fs::write(at("\u{e9}\u{4e2d}"), "unicode").unwrap();
    fs::write(directory.join(OsStr::from_bytes(b"latin-\xe9")), "bytes").unwrap();
    symlink("t".repeat(300), at("long-target")).unwrap();
    fs::hard_link(at(&long), at("long-linked")).unwrap();
    fs::write(at("large-owner"), "x").unwrap();
    chown(at("large-owner"), Some(3_000_000), Some(4_000_000_000)).unwrap();
    let mut sparse = fs::File::create(at("sparse")).unwrap();
    for offset in [70_000, 3 << 20] {
        sparse.seek(SeekFrom::Start(offset)).unwrap();
        sparse.write_all(b"island").unwrap();
    }
    sparse.set_len(5 << 20).unwrap();
    Ran::new(tool("touch", ["-d", "@5000000000.123456789", at("large-owner").to_str().unwrap()]))
        .ok();
    let attributes: [(&str, &str, &[u8]); 3] = [
        ("d/1", "user.note", b"with = and \n"),
        ("d", "user.of-directory", b"x"),
        // cap_net_bind_service=ep
        ("d/511", "security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    ];
    for (name, attribute, value) in attributes {
        rustix::fs::setxattr(at(name), attribute, value, XattrFlags::empty()).unwrap();
    }
}

type Writer = (&'static str, fn(&Path), &'static str);

/// What containerd and umoci refuse: GNU's own form of sparse files.
const GNU_SPARSE: &[Writer] = &[("tar-gnu-sparse", rich, "tar -cf - --format=gnu --sparse $D")];

/// A name for each layer (its one top directory), what it is of, and the command that writes the
/// tar to standard output.
const WRITERS: &[Writer] = &[
    ("tar-v7", plain_without_devices, "tar -cf - --format=v7 $D"),
    ("tar-ustar", plain, "tar -cf - --format=ustar $D"),
    ("tar-oldgnu", rich, "tar -cf - --format=oldgnu $D"),
    ("tar-gnu", rich, "tar -cf - --format=gnu $D"),
    ("tar-posix", rich, "tar -cf - --format=posix $D"),
    ("tar-posix-xattrs", rich, "tar -cf - --xattrs --xattrs-include='*' $D"),
    ("tar-posix-0.0", rich, "tar -cf - --format=posix --sparse --sparse-version=0.0 $D"),
    ("tar-posix-0.1", rich, "tar -cf - --format=posix --sparse --sparse-version=0.1 $D"),
    ("tar-posix-1.0", rich, "tar -cf - --format=posix --sparse --sparse-version=1.0 $D"),
    ("tar-pipe", plain, "find $D -print0 | sort -rz | tar -cf - --no-recursion --null -T -"),
    ("bsdtar-ustar", plain, "bsdtar -cf - --format ustar $D"),
    ("bsdtar-pax", rich, "bsdtar -cf - --format pax --xattrs $D"),
    ("bsdtar-gnutar", rich, "bsdtar -cf - --format gnutar $D"),
    ("cpio-ustar", plain, "find $D -depth -print0 | cpio --quiet -0 -o -H ustar"),
    ("cpio-tar", plain_without_devices, "find $D -depth -print0 | cpio --quiet -0 -o -H tar"),
    (
        "cpio-newc",
        plain_without_links,
        "find $D -print0 | cpio --quiet -0 -o -H newc | bsdtar -cf - --format pax @-",
    ),
    ("python-ustar", plain, "$PYTHON tree ustar $D"),
    ("python-gnu", rich, "$PYTHON tree gnu $D"),
    ("python-pax", rich, "$PYTHON tree pax $D"),
];

/// The oldest formats have neither devices nor pipes.
fn plain_without_devices(directory: &Path) {
    plain(directory);
    for name in ["pipe", "null", "disk"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
}

/// cpio's newc has a content with the last of its names alone, and bsdtar then loses it.
fn plain_without_links(directory: &Path) {
    plain(directory);
    for name in ["0-before", "d/again"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
}

fn written(env: &TestEnv, writers: &[Writer]) -> (Vec<Vec<u8>>, Tree) {
    let python =
        format!("python3 {}", repository().join("tests/runner/unpacking/layers.py").display());
    let work = env.path("sources");
    let mut layers = Vec::new();
    for (name, make, command) in writers {
        let source = work.join(name);
        fs::create_dir_all(&source).unwrap();
        make(&source);
        let mut shell = tool("sh", ["-c", command]);
        shell.current_dir(&work).env("D", name).env("PYTHON", &python).env("LC_ALL", "C.UTF-8");
        let ran = Ran::new(shell);
        // bsdtar says by its exit code that a name is no UTF-8, and writes it.
        assert!(ran.success() || name.starts_with("bsdtar"), "{}", ran.report());
        assert!(ran.bytes().len() > 1 << 20, "{}", ran.stderr());
        layers.push(ran.bytes().to_vec());
    }
    (layers, tree::list(&work))
}

/// Nothing is missing, and everything but attributes is as in the source.
fn read_by_us(env: &TestEnv, image: &Path, sources: &Tree) -> Tree {
    let ours = readers::imgctl(env, "writers", image).unwrap();
    for (name, source) in sources {
        let found = ours.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        let what = |entry: &tree::Entry| {
            (
                entry.kind,
                entry.mode,
                entry.uid,
                entry.gid,
                entry.size,
                entry.mtime,
                entry.content.clone(),
                entry.same_as.clone(),
            )
        };
        assert_eq!(what(found), what(source), "{name}");
    }
    assert_eq!(ours.len(), sources.len());
    ours
}

#[test]
fn sparse_files_of_gnu_are_read() {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let (layers, sources) = written(&env, GNU_SPARSE);
    read_by_us(&env, &layout(&env.path("image"), &layers), &sources);
}

#[test]
fn what_every_writer_writes_is_read_alike() {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let (layers, sources) = written(&env, WRITERS);
    let image = layout(&env.path("image"), &layers);
    let ours = read_by_us(&env, &image, &sources);
    let containerd = Containerd::start(&env);
    let others = [
        ("umoci", readers::umoci(&env, &image)),
        ("buildah", readers::buildah(&env, &image)),
        ("containerd", containerd.unpack(&env, &image)),
    ];
    for (who, other) in others {
        let other = other.unwrap_or_else(|why| panic!("{who}: {why}"));
        tree::assert_same(who, &ours, &other, FILE_TIMES);
    }
}

/// An empty image of umoci's.
fn new_image(env: &TestEnv) -> (PathBuf, String) {
    let path = env.path("inserted");
    let image = format!("{}:{TAG}", path.display());
    Ran::new(tool("umoci", ["init", "--layout", path.to_str().unwrap()])).ok();
    Ran::new(tool("umoci", ["new", "--image", &image])).ok();
    (path, image)
}

#[test]
fn what_umoci_inserts_is_read_as_umoci_reads_it() {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let (path, image) = new_image(&env);
    let insert = |arguments: &[&str]| {
        let mut command = tool("umoci", ["insert", "--image", &image]);
        command.args(arguments);
        Ran::new(command).ok();
    };
    let source = env.path("source");
    plain(&source);
    let source = source.to_str().unwrap();
    insert(&[source, "/whole"]);
    for size in ["0", "1", "511", "512", "513", "10240"] {
        insert(&[&format!("{source}/d/{size}"), &format!("/sizes/{size}")]);
    }
    for name in ["link", "nowhere", "pipe", "null", "empty", "setuid"] {
        insert(&[&format!("{source}/{name}"), &format!("/kinds/{name}")]);
    }
    insert(&[&format!("{source}/d/1"), &format!("/{}/{}", "p".repeat(120), "n".repeat(120))]);
    insert(&["--opaque", &format!("{source}/d/deep"), "/whole/d"]);
    insert(&["--opaque", &format!("{source}/d/513"), "/whole/sticky"]);
    insert(&["--whiteout", "/whole/link"]);
    insert(&["--whiteout", "/sizes"]);
    insert(&[&format!("{source}/d/1"), "/sizes/new"]);
    insert(&[&format!("{source}/d"), "/kinds/setuid"]);
    insert(&[&format!("{source}/d/513"), "/last"]);
    let ours = readers::imgctl(&env, "umoci insert", &path).unwrap();
    let theirs = readers::umoci(&env, &path).unwrap();
    assert!(theirs.contains_key("sizes/new") && !theirs.contains_key("whole/link"));
    tree::assert_same("umoci", &ours, &theirs, FILE_TIMES);
    let buildah = readers::buildah(&env, &path).unwrap();
    tree::assert_same("buildah", &ours, &buildah, FILE_TIMES);
}

/// The layer's digest is that of the cut tar: only the content says that something is missing.
#[test]
fn a_layer_that_is_cut_inside_a_content_is_refused() {
    if !crate::common::needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let whole = crate::unpacking::image::tar_of(&["f a 1", "f b 0123456789"]);
    let end = 3 * 512 + 10;
    for (cut, is_whole) in [
        (whole.len() - 512, true),
        (end + 502, true),
        (end + 100, true),
        (end, true),
        (end - 1, false),
        (2 * 512 + 100, false),
        (2 * 512, true),
        (512 + 1, true),
        (512, false),
    ] {
        let image = layout(&env.path(format!("cut{cut}")), &[whole[..cut].to_vec()]);
        let read = readers::imgctl(&env, &format!("cut at {cut}"), &image);
        assert_eq!(read.is_ok(), is_whole, "{cut}: {read:?}");
        if let Ok(tree) = read {
            assert_eq!(tree.len(), if cut < end { 1 } else { 2 }, "{cut}");
        }
    }
    // Whole by itself, but not what the image says.
    let image = layout(&env.path("replaced"), std::slice::from_ref(&whole));
    let name = tree::hex(&<sha2::Sha256 as sha2::Digest>::digest(&whole));
    fs::write(image.join("blobs/sha256").join(name), &whole[..end]).unwrap();
    assert!(readers::imgctl(&env, "replaced", &image).is_err());
}
