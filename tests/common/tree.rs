//! A directory tree as a value: every entry with all that an image layer carries, compared line by
//! line. Names and link targets are bytes; what is not UTF-8 is shown as `\xNN`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use sha2::{Digest, Sha256};

/// One file, directory, link or special file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Entry {
    /// `d f l c b p s`, as `ls` and `find` call them, or `?` for what is only listed.
    pub(crate) kind: char,
    /// Permission bits with setuid, setgid and sticky.
    pub(crate) mode: u32,
    /// Numeric owner.
    pub(crate) uid: u32,
    /// Numeric group.
    pub(crate) gid: u32,
    /// Bytes; 0 for what has no content.
    pub(crate) size: u64,
    /// Whole seconds since 1970.
    pub(crate) mtime: i64,
    /// SHA-256 of the content, a link's target, or a device's numbers.
    pub(crate) content: String,
    /// Name and value of each extended attribute, sorted.
    pub(crate) xattrs: Vec<(String, String)>,
    /// The first name, in order, of the file that this is a hard link to; `None` for one name.
    pub(crate) same_as: Option<String>,
}

/// Entries by path, without the root itself.
pub(crate) type Tree = BTreeMap<String, Entry>;

/// What to look at when two trees are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compare {
    /// Times of regular files and links that both sides say are older than this (seconds since 1970);
    /// 0 leaves all times out. Files made during the build have the time of the build.
    pub(crate) times_before: i64,
    /// Times of directories too.
    pub(crate) directory_times: bool,
}

/// Lists everything below `root`.
pub(crate) fn list(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut first_names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    let mut paths = Vec::new();
    while let Some(directory) = pending.pop() {
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in entries {
            let path = entry.unwrap().path();
            let metadata = match path.symlink_metadata() {
                Ok(metadata) => metadata,
                Err(error) => {
                    let name = show(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
                    tree.insert(name, ghost(&error));
                    continue;
                }
            };
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            paths.push((path, metadata));
        }
    }
    paths.sort_by(|a, b| a.0.as_os_str().as_bytes().cmp(b.0.as_os_str().as_bytes()));
    for (path, metadata) in &paths {
        let name = show(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
        let mut entry = entry(path, metadata);
        if metadata.nlink() > 1 && !metadata.is_dir() {
            let first =
                first_names.entry((metadata.dev(), metadata.ino())).or_insert_with(|| name.clone());
            // The first name itself says so too, so that a group of one (the other name lies
            // outside of the tree) does not look like a group.
            entry.same_as = Some(first.clone());
        }
        tree.insert(name, entry);
    }
    drop_groups_of_one(&mut tree);
    tree
}

/// A name that is listed but not there: overlayfs shows whiteouts so that lie where they should not.
fn ghost(error: &std::io::Error) -> Entry {
    Entry {
        kind: '?',
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: 0,
        content: error.to_string(),
        xattrs: Vec::new(),
        same_as: None,
    }
}

fn drop_groups_of_one(tree: &mut Tree) {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for first in tree.values().filter_map(|entry| entry.same_as.as_ref()) {
        *sizes.entry(first.clone()).or_default() += 1;
    }
    for entry in tree.values_mut() {
        if entry.same_as.as_ref().is_some_and(|first| sizes[first] == 1) {
            entry.same_as = None;
        }
    }
}

fn entry(path: &Path, metadata: &Metadata) -> Entry {
    let kind = metadata.file_type();
    let (kind, content) = if kind.is_dir() {
        ('d', String::new())
    } else if kind.is_symlink() {
        ('l', show(std::fs::read_link(path).unwrap().as_os_str().as_bytes()))
    } else if kind.is_file() {
        ('f', digest(path))
    } else if kind.is_char_device() {
        ('c', format!("{:#x}", metadata.rdev()))
    } else if kind.is_block_device() {
        ('b', format!("{:#x}", metadata.rdev()))
    } else if kind.is_fifo() {
        ('p', String::new())
    } else {
        ('s', String::new())
    };
    Entry {
        kind,
        // A symbolic link has no mode of its own.
        mode: if kind == 'l' { 0o777 } else { metadata.mode() & 0o7777 },
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: if kind == 'f' { metadata.size() } else { 0 },
        mtime: metadata.mtime(),
        content,
        xattrs: xattrs(path),
        same_as: None,
    }
}

/// SHA-256 of a file in hex.
pub(crate) fn digest(path: &Path) -> String {
    let mut file =
        std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = std::io::Read::read(&mut file, &mut buffer).unwrap();
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    hex(&hasher.finalize())
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn xattrs(path: &Path) -> Vec<(String, String)> {
    let mut names = vec![0; 1 << 16];
    // A file system without attributes has none.
    let Ok(length) = rustix::fs::llistxattr(path, &mut names[..]) else {
        return Vec::new();
    };
    let mut found: Vec<(String, String)> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !name.starts_with(b"security.selinux"))
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (show(name), show(&value[..length]))
        })
        .collect();
    found.sort();
    found
}

/// Bytes as text: printable ASCII and valid UTF-8 as they are, the rest as `\xNN`.
pub(crate) fn show(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || character == '\\' {
                let mut buffer = [0; 4];
                for byte in character.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(text, "\\x{byte:02x}");
                }
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// One line per entry: what kind, mode, owner, name, and what is in it.
pub(crate) fn line(name: &str, entry: &Entry) -> String {
    let Entry { kind, mode, uid, gid, .. } = entry;
    let mut line = format!("{kind} {mode:04o} {uid}:{gid} {name}");
    match kind {
        'f' => {
            let _ = write!(line, " {} bytes sha256:{:.12}", entry.size, entry.content);
        }
        'l' => {
            let _ = write!(line, " -> {}", entry.content);
        }
        'c' | 'b' => {
            let _ = write!(line, " {}", entry.content);
        }
        _ => {}
    }
    for (name, value) in &entry.xattrs {
        let _ = write!(line, " {name}={value}");
    }
    if let Some(first) = &entry.same_as {
        let _ = write!(line, " same file as {first}");
    }
    line
}

/// The differences, one per line: `-` only or so on the left, `+` on the right. Empty = equal.
pub(crate) fn differences(left: &Tree, right: &Tree, compare: Compare) -> Vec<String> {
    let mut found = Vec::new();
    for (name, entry) in left {
        match right.get(name) {
            None => found.push(format!("- {}", line(name, entry))),
            Some(other) => {
                let (one, two) = (line(name, entry), line(name, other));
                if one != two || entry.content != other.content {
                    found.push(format!("- {one}"));
                    found.push(format!("+ {two}"));
                } else if times_differ(entry, other, compare) {
                    found.push(format!("- {one} mtime {}", entry.mtime));
                    found.push(format!("+ {two} mtime {}", other.mtime));
                }
            }
        }
    }
    for (name, entry) in right {
        if !left.contains_key(name) {
            found.push(format!("+ {}", line(name, entry)));
        }
    }
    found
}

fn times_differ(one: &Entry, two: &Entry, compare: Compare) -> bool {
    if compare.times_before == 0 {
        return false;
    }
    let looked_at = one.kind != 'd' || compare.directory_times;
    let old = one.mtime < compare.times_before && two.mtime < compare.times_before;
    // Both young: made by the build itself, at two times. One old, one young: a time got lost.
    let both_young = one.mtime >= compare.times_before && two.mtime >= compare.times_before;
    looked_at && (old || !both_young) && one.mtime != two.mtime
}

/// Panics with the differences unless the trees are equal.
#[track_caller]
pub(crate) fn assert_same(what: &str, left: &Tree, right: &Tree, compare: Compare) {
    let found = differences(left, right, compare);
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}
