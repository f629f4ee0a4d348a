//! The cluster's block in /etc/hosts: the lines between two marks. All other content stays
//! unchanged byte for byte, including a missing final line break.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::agent::protocol::{HostsBlock, HostsEntry};
use crate::agent::wire::HostsSet;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};

/// The file that every resolver reads.
pub(super) const HOSTS_FILE: &str = "/etc/hosts";
/// Maximum size of the file, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Beginning of the first and of the last line of a block.
const BEGIN: &str = "# imgctl begin ";
const END: &str = "# imgctl end ";

/// Writes the block to the file at `path`, or removes it if it has no entries.
pub(super) fn set(path: &Path, block: &HostsBlock) -> Result<HostsSet> {
    check(block)?;
    // Follows a symlink: the name is the system's, but the file may be elsewhere.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().unwrap_or(Path::new("/"));
    // Locks the directory: all clusters share the file, and there is no place for a lock file.
    let _lock = Lock::of_directory(directory, Mode::Exclusive)?;
    let old = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(Error::failed(format!("{} is too large to be changed", path.display())));
        }
        metadata => {
            let metadata = metadata.path("look at", path)?;
            Some((std::fs::read(path).path("read", path)?, metadata))
        }
    };
    let text = old.as_ref().map_or(&[][..], |(text, _)| text);
    let new = rewrite(text, block);
    let notes = contradictions(&new, block)
        .into_iter()
        .map(|note| format!("{}: {note}", path.display()))
        .collect();
    let changed = new != text;
    if changed {
        replace(path, &new, old.as_ref().map(|(_, metadata)| metadata))?;
    }
    Ok(HostsSet { changed, notes })
}

/// Returns the entries of all blocks of the file at `path`; `None` if it cannot be read. A missing file
/// has none.
pub(super) fn blocks(path: &Path) -> Option<BTreeMap<String, Vec<HostsEntry>>> {
    let text = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        opened => {
            let mut text = Vec::new();
            opened.ok()?.take(MAX_FILE).read_to_end(&mut text).ok()?;
            text
        }
    };
    let mut blocks = BTreeMap::new();
    let mut open: Option<(String, Vec<HostsEntry>)> = None;
    for line in lines(&text) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if let Some(cluster) = line.strip_prefix(BEGIN) {
            open = Some((cluster.to_owned(), Vec::new()));
        } else if let Some(cluster) = line.strip_prefix(END) {
            // A block without its end is damaged, and is written again.
            if let Some((_, entries)) = open.take().filter(|(own, _)| own == cluster) {
                blocks.insert(cluster.to_owned(), entries);
            }
        } else if let Some((_, entries)) = &mut open
            && let Some((address, name)) = line.split_once(' ')
        {
            entries.push((address.to_owned(), name.to_owned()));
        }
    }
    Some(blocks)
}

/// Replaces the file's content; mode and owner stay. A file that is itself a mount point (as in
/// containers) cannot be replaced and is written in place.
fn replace(path: &Path, new: &[u8], old: Option<&std::fs::Metadata>) -> Result<()> {
    let mode = old.map_or(0o644, |old| old.mode() & 0o7777);
    match atomic::write(path, new, mode, Durability::Durable) {
        Err(error) if error.kind() == Kind::Busy => {
            let mut file = std::fs::File::options().write(true).open(path).path("open", path)?;
            file.write_all(new).path("write", path)?;
            file.set_len(new.len() as u64).path("write", path)?;
            return file.sync_all().path("sync", path);
        }
        written => written?,
    }
    let Some(old) = old else { return Ok(()) };
    let now = std::fs::metadata(path).path("look at", path)?;
    if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
        std::os::unix::fs::chown(path, Some(old.uid()), Some(old.gid()))
            .path("restore the owner of", path)?;
    }
    Ok(())
}

/// Rejects entries that could start another line or a comment.
fn check(block: &HostsBlock) -> Result<()> {
    let is_word = |text: &str| {
        !text.is_empty()
            && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
    };
    let names = block.entries.iter().flat_map(|(ip, name)| [ip, name]);
    for word in names.chain([&block.cluster]) {
        if !is_word(word) {
            return Err(Error::usage(format!("{word:?} is not allowed in {HOSTS_FILE}")));
        }
    }
    Ok(())
}

fn begin(cluster: &str) -> String {
    format!("{BEGIN}{cluster}")
}

fn end(cluster: &str) -> String {
    format!("{END}{cluster}")
}

/// Splits the text into lines, including their line breaks.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn is_line(line: &[u8], expected: &str) -> bool {
    line.trim_ascii() == expected.as_bytes()
}

/// Returns `old` with its existing block replaced, or with the block appended.
fn rewrite(old: &[u8], block: &HostsBlock) -> Vec<u8> {
    let (begin, end) = (begin(&block.cluster), end(&block.cluster));
    let fresh = if block.entries.is_empty() {
        String::new()
    } else {
        let entries = block.entries.iter();
        let entries = entries.map(|(address, name)| format!("{address} {name}\n"));
        format!("{begin}\n{}{end}\n", entries.collect::<String>())
    };
    let all = lines(old);
    let mut new: Vec<u8> = Vec::with_capacity(old.len() + fresh.len());
    let mut is_placed = false;
    let mut at = 0;
    while let Some(line) = all.get(at) {
        if !is_line(line, &begin) {
            new.extend_from_slice(line);
            at += 1;
            continue;
        }
        let rest = all.get(at..).unwrap_or_default();
        let last = rest.iter().position(|line| is_line(line, &end));
        // The end mark has been removed: only the begin mark certainly belongs to the block.
        let length = last.map_or(1, |last| last + 1);
        let ended = rest.get(length - 1).is_some_and(|line| line.ends_with(b"\n"));
        if !is_placed && !fresh.is_empty() {
            new.extend_from_slice(fresh.as_bytes());
            if !ended {
                new.pop();
            }
        } else if !ended {
            // The preceding line had no line break before the block was added.
            new.pop();
        }
        is_placed = true;
        at += length;
    }
    if !is_placed && !fresh.is_empty() {
        let ended = old.is_empty() || old.ends_with(b"\n");
        if !ended {
            new.push(b'\n');
        }
        new.extend_from_slice(fresh.as_bytes());
        if !ended {
            new.pop();
        }
    }
    new
}

/// Returns the lines outside of all imgctl blocks that map one of the block's names to another
/// address.
fn contradictions(text: &[u8], block: &HostsBlock) -> Vec<String> {
    let mut ours: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (address, name) in &block.entries {
        ours.entry(name).or_default().push(address);
    }
    let mut notes = Vec::new();
    let mut is_inside = false;
    for (number, line) in lines(text).into_iter().enumerate() {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if line.starts_with(BEGIN) || line.starts_with(END) {
            is_inside = line.starts_with(BEGIN);
            continue;
        }
        let entry = line.split('#').next().unwrap_or_default();
        let mut words = entry.split_whitespace();
        let Some(address) = words.next().filter(|_| !is_inside) else {
            continue;
        };
        for name in words {
            let Some(wanted) = ours.get(name).filter(|ours| !ours.contains(&address)) else {
                continue;
            };
            notes.push(format!(
                "line {} maps {name} to {address}, but the cluster maps it to {}",
                number + 1,
                wanted.join(" and ")
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use imgctl_base::testing::damaged;

    #[test]
    fn blocks_are_read_back_and_damaged_ones_are_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hosts");
        assert_eq!(blocks(&file), Some(BTreeMap::new()));
        std::fs::write(&file, "127.0.0.1 localhost\n").unwrap();
        set(&file, &block("a", &[("10.0.0.1", "hub"), ("10.0.0.2", "hub")])).unwrap();
        set(&file, &block("b", &[("10.0.0.3", "api")])).unwrap();
        let found = blocks(&file).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found["a"], block("a", &[("10.0.0.1", "hub"), ("10.0.0.2", "hub")]).entries);
        let text = std::fs::read_to_string(&file).unwrap().replace("# imgctl end a\n", "");
        std::fs::write(&file, text).unwrap();
        assert_eq!(blocks(&file).unwrap().keys().collect::<Vec<_>>(), ["b"]);
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(blocks(&file), None);
    }

    fn block(cluster: &str, entries: &[(&str, &str)]) -> HostsBlock {
        HostsBlock {
            cluster: cluster.to_owned(),
            entries: entries
                .iter()
                .map(|(address, name)| ((*address).to_owned(), (*name).to_owned()))
                .collect(),
        }
    }

    const ONE: &str = "# imgctl begin c\n10.0.0.1 a.b\n# imgctl end c\n";

    #[test]
    fn the_block_comes_changes_and_goes() {
        let one = block("c", &[("10.0.0.1", "a.b")]);
        let two = block("c", &[("10.0.0.2", "a.b"), ("fd00::1", "x")]);
        let two_text = "# imgctl begin c\n10.0.0.2 a.b\nfd00::1 x\n# imgctl end c\n";
        for (old, entry, new) in [
            ("", &one, ONE.to_owned()),
            ("127.0.0.1 l\n", &one, format!("127.0.0.1 l\n{ONE}")),
            (&format!("x\n{ONE}y\n"), &one, format!("x\n{ONE}y\n")),
            (&format!("x\n{ONE}y\n"), &two, format!("x\n{two_text}y\n")),
            (&format!("x\n{ONE}y"), &two, format!("x\n{two_text}y")),
            // Two blocks become one; a block without an end loses its mark.
            (&format!("{ONE}y\n{ONE}z\n"), &two, format!("{two_text}y\nz\n")),
            ("x\n# imgctl begin c\n1 y\n", &one, format!("x\n{ONE}1 y\n")),
            // Another cluster's block stays.
            (
                "# imgctl begin d\n1 y\n# imgctl end d\n",
                &one,
                format!("# imgctl begin d\n1 y\n# imgctl end d\n{ONE}"),
            ),
        ] {
            let got = String::from_utf8(rewrite(old.as_bytes(), entry)).unwrap();
            assert_eq!(got, new, "{old:?}");
        }
    }

    #[test]
    fn the_rest_stays_byte_for_byte() {
        let one = block("c", &[("10.0.0.1", "a.b")]);
        let none = block("c", &[]);
        for old in [
            &b""[..],
            b"\n",
            b"127.0.0.1 localhost",
            b"127.0.0.1 localhost\n\n\n# x\xff\xfe\n",
            b"a\r\nb\r\n",
            b"\xef\xbb\xbf127.0.0.1\tl # imgctl begin c",
        ] {
            let with = rewrite(old, &one);
            assert_ne!(with, old);
            assert_eq!(rewrite(&with, &one), with);
            assert_eq!(rewrite(&with, &none), old, "{:?}", String::from_utf8_lossy(old));
            assert_eq!(rewrite(old, &none), old);
        }
    }

    #[test]
    fn entries_cannot_break_out_and_contradictions_are_told() {
        for (cluster, address, name) in [
            ("c", "1", "a\n2 b"),
            ("c", "1 x", "a"),
            ("c\n", "1", "a"),
            ("c", "1", "#a"),
            ("c", "", "a"),
        ] {
            assert!(check(&block(cluster, &[(address, name)])).is_err());
        }
        let text = format!("9.9.9.9 a.b other # sealos\n10.0.0.1 a.b\n{ONE}# 8.8.8.8 a.b\n");
        let notes = contradictions(text.as_bytes(), &block("c", &[("10.0.0.1", "a.b")]));
        assert_eq!(notes, ["line 1 maps a.b to 9.9.9.9, but the cluster maps it to 10.0.0.1"]);
    }

    #[test]
    fn mode_and_link_stay_and_nothing_is_written_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("real"), directory.path().join("hosts"));
        std::fs::write(&file, "x\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let one = block("c", &[("10.0.0.1", "a.b")]);
        assert!(set(&link, &one).unwrap().changed);
        let inode = file.metadata().unwrap().ino();
        assert!(!set(&link, &one).unwrap().changed);
        assert_eq!(file.metadata().unwrap().ino(), inode);
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert!(set(&link, &block("c", &[])).unwrap().changed);
        assert_eq!(std::fs::read(&file).unwrap(), b"x\n");
    }

    #[test]
    fn several_clusters_at_once_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        std::fs::write(&path, "first").unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let name = format!("n{number}");
                    set(path, &block(&format!("c{number}"), &[("10.0.0.1", &name)])).unwrap()
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        for number in 0..8 {
            assert!(text.contains(&format!("10.0.0.1 n{number}\n")), "{text}");
        }
        for number in 0..8 {
            set(&path, &block(&format!("c{number}"), &[])).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    }

    /// Whatever a file holds: the block is written once, and what others wrote stays when it goes.
    #[test]
    fn any_file_takes_the_block_and_gives_it_back() {
        let (one, none) = (block("c", &[("10.0.0.1", "a")]), block("c", &[]));
        let valid = rewrite(b"127.0.0.1 localhost\n", &block("d", &[("10.0.0.2", "a")]));
        bolero::check!().for_each(|input: &[u8]| {
            for old in [input.to_vec(), damaged(&rewrite(&valid, &one), input)] {
                let new = rewrite(&old, &one);
                assert_eq!(rewrite(&new, &one), new);
                let _ = contradictions(&new, &one);
                let marks = |text: &[u8]| {
                    lines(text)
                        .iter()
                        .any(|line| is_line(line, &begin("c")) || is_line(line, &end("c")))
                };
                if !marks(&old) {
                    assert!(marks(&new));
                    assert_eq!(rewrite(&new, &none), old);
                }
            }
        });
    }
}
