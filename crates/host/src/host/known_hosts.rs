//! known_hosts files: looks up the keys of known hosts and adds new ones.
//!
//! Reads what OpenSSH writes: plain and hashed names, `[host]:port`, wildcards and negation,
//! `@revoked` and `@cert-authority`. Must not depend on connections.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use russh::keys::{Algorithm, PublicKey};

use crate::host::address::{Address, SSH_PORT};
use crate::host::pattern;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::make_private;
use imgctl_base::fs::lock::{Lock, Mode};

/// Maximum size of a known_hosts file, in bytes. Fleets of thousands of hosts need about a
/// megabyte.
const LARGEST_FILE: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    None,
    /// The key of a certificate authority that signs host keys.
    Authority,
    Revoked,
}

struct Entry {
    file: usize,
    line: usize,
    marker: Marker,
    names: String,
    key: PublicKey,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    /// Counted from 1.
    pub(super) line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Result of looking up a host key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    /// The host is not in any file.
    Unknown,
    /// The host is known with another key.
    Changed(Place),
    Revoked(Place),
}

pub(super) struct KnownHosts {
    files: Vec<PathBuf>,
    entries: Vec<Entry>,
}

/// Returns the name of a host in known_hosts: `name`, or `[name]:port`.
pub(super) fn name_of(address: &Address) -> String {
    match address.port {
        SSH_PORT => address.name.clone(),
        port => format!("[{}]:{port}", address.name),
    }
}

impl KnownHosts {
    /// Reads the files; a missing one counts as empty. Invalid lines are skipped, as in OpenSSH.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self> {
        let mut entries = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let Some(text) = read_text(file)? else {
                continue;
            };
            for (number, line) in text.lines().enumerate() {
                if let Some((marker, names, key)) = parse_line(line) {
                    entries.push(Entry {
                        file: index,
                        line: number + 1,
                        marker,
                        names: names.to_owned(),
                        key,
                    });
                }
            }
        }
        Ok(Self { files: files.to_vec(), entries })
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| matches(&entry.names, name))
    }

    fn place(&self, entry: &Entry) -> Place {
        Place { file: self.files.get(entry.file).cloned().unwrap_or_default(), line: entry.line }
    }

    pub(super) fn check(&self, name: &str, key: &PublicKey) -> Verdict {
        if let Some(place) = self.revoked(key) {
            return Verdict::Revoked(place);
        }
        let mut verdict = Verdict::Unknown;
        for entry in self.of(name).filter(|entry| entry.marker == Marker::None) {
            if entry.key.key_data() == key.key_data() {
                return Verdict::Known;
            }
            // If there are several entries, one with the same key type is the most relevant.
            if verdict == Verdict::Unknown || entry.key.algorithm() == key.algorithm() {
                verdict = Verdict::Changed(self.place(entry));
            }
        }
        verdict
    }

    /// Returns where a key is revoked, for any host.
    /// Returns whether two names have a key in common; `None` if one of them has no key.
    pub(super) fn share_a_key(&self, one: &str, other: &str) -> Option<bool> {
        let keys = |name| -> Vec<&PublicKey> {
            let own = self.of(name).filter(|entry| entry.marker == Marker::None);
            own.map(|entry| &entry.key).collect()
        };
        let (one, other) = (keys(one), keys(other));
        if one.is_empty() || other.is_empty() {
            return None;
        }
        let same = |key: &&PublicKey| other.iter().any(|own| own.key_data() == key.key_data());
        if one.iter().any(same) {
            return Some(true);
        }
        // Keys of different types say nothing about each other.
        let comparable =
            |key: &&PublicKey| other.iter().any(|own| own.algorithm() == key.algorithm());
        one.iter().any(comparable).then_some(false)
    }

    pub(super) fn revoked(&self, key: &PublicKey) -> Option<Place> {
        self.entries
            .iter()
            .find(|entry| entry.marker == Marker::Revoked && entry.key.key_data() == key.key_data())
            .map(|entry| self.place(entry))
    }

    /// Returns the key types known for a host. They are requested first, so that a host with
    /// several keys does not appear to have changed.
    pub(super) fn algorithms(&self, name: &str) -> Vec<Algorithm> {
        self.of(name)
            .filter(|entry| entry.marker == Marker::None)
            .map(|entry| entry.key.algorithm())
            .collect()
    }

    /// Returns the certificate authority keys that are trusted for this host.
    pub(super) fn authorities(&self, name: &str) -> Vec<&PublicKey> {
        self.entries
            .iter()
            .filter(|entry| entry.marker == Marker::Authority && matches(&entry.names, name))
            .map(|entry| &entry.key)
            .collect()
    }
}

/// Adds the key of a new host to the first of `files`, if that file can store keys. Returns the
/// verdict at that moment, because another process may have added a key: [`Verdict::Unknown`] means
/// that there was no entry before.
pub(super) fn learn(files: &[PathBuf], name: &str, key: &PublicKey) -> Result<Verdict> {
    let Some(file) = files.first() else {
        return Ok(Verdict::Unknown);
    };
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    make_private(directory)?;
    // A device such as /dev/null means that no keys are stored.
    if file.metadata().is_ok_and(|data| data.file_type().is_char_device()) {
        return Ok(Verdict::Unknown);
    }
    let _lock = Lock::of_directory(directory, Mode::Exclusive)?;
    let verdict = KnownHosts::read(files)?.check(name, key);
    if verdict != Verdict::Unknown {
        return Ok(verdict);
    }
    let key = key
        .to_openssh()
        .map_err(|error| Error::failed("cannot write the key of a host").caused_by(error))?;
    // Removes the comment.
    let key: Vec<&str> = key.split_whitespace().take(2).collect();
    let mut file_ = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file)
        .path("open", file)?;
    let break_first = ends_within_a_line(&mut file_).path("read", file)?;
    let line = format!("{}{name} {}\n", if break_first { "\n" } else { "" }, key.join(" "));
    file_.write_all(line.as_bytes()).path("write", file)?;
    file_.sync_all().path("sync", file)?;
    Ok(Verdict::Unknown)
}

fn ends_within_a_line(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot open {}", path.display()), error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Error::bad_content(format!(
            "{} is too large to be a known_hosts file",
            path.display()
        )));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the marker, names and key of a line; `None` for comments and invalid lines.
fn parse_line(line: &str) -> Option<(Marker, &str, PublicKey)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut words = line.split_ascii_whitespace();
    let mut names = words.next()?;
    let mut marker = Marker::None;
    if names.starts_with('@') {
        marker = match names {
            "@cert-authority" => Marker::Authority,
            "@revoked" => Marker::Revoked,
            _ => return None,
        };
        names = words.next()?;
    }
    let (kind, data) = (words.next()?, words.next()?);
    let key = PublicKey::from_openssh(&format!("{kind} {data}")).ok()?;
    Some((marker, names, key))
}

/// Returns whether the names of an entry, plain or hashed, match the host `name`.
fn matches(names: &str, name: &str) -> bool {
    match names.strip_prefix("|1|") {
        Some(hashed) => matches_hashed(hashed, name).unwrap_or(false),
        None => pattern::matches_list(names.split(','), name),
    }
}

fn matches_hashed(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let (salt, hash) = (STANDARD.decode(salt).ok()?, STANDARD.decode(hash).ok()?);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    let name = name.to_ascii_lowercase();
    Some(hmac::verify(&key, name.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    const A: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS";
    const B: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIlzuA8AnD3E5lXn2ZHxGjVPpLyBXAiLA8pPwBYOsCS7";

    fn key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).unwrap()
    }

    fn known(text: &str) -> (tempfile::TempDir, KnownHosts, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known");
        std::fs::write(&file, text).unwrap();
        let known = KnownHosts::read(std::slice::from_ref(&file)).unwrap();
        (directory, known, file)
    }

    #[test]
    fn lists_wildcards_negation_and_ports() {
        let text = format!(
            "\n# x\nnonsense\na,10.0.0.*,!10.0.0.9\t{A} comment with words\r\n[b]:2222 {A}\n"
        );
        let (_kept, known, file) = known(&text);
        for (name, expected) in [
            ("A", Verdict::Known),
            ("10.0.0.5", Verdict::Known),
            ("10.0.0.9", Verdict::Unknown),
            ("[b]:2222", Verdict::Known),
            ("b", Verdict::Unknown),
        ] {
            assert_eq!(known.check(name, &key(A)), expected, "{name}");
        }
        let place = Place { file, line: 4 };
        assert_eq!(known.check("a", &key(B)), Verdict::Changed(place));
    }

    #[test]
    fn one_of_several_keys_is_enough_and_a_revoked_one_never_is() {
        let (_kept, both, _) = known(&format!("a {B}\na {A}\n"));
        assert_eq!(both.check("a", &key(A)), Verdict::Known);
        let (_kept, revoked, file) =
            known(&format!("a {A}\n@revoked * {A}\n@cert-authority * {B}\n"));
        assert_eq!(revoked.check("a", &key(A)), Verdict::Revoked(Place { file, line: 2 }));
        // The key of an authority is not a host key.
        assert_eq!(revoked.check("c", &key(B)), Verdict::Unknown);
        assert_eq!(revoked.authorities("c").len(), 1);
    }

    #[test]
    fn two_names_of_one_host_share_a_key() {
        let (_kept, known, _) = known(&format!("a {B}\na {A}\nb {A}\nc {B}\n@revoked d {A}\n"));
        assert_eq!(known.share_a_key("a", "b"), Some(true));
        assert_eq!(known.share_a_key("b", "c"), Some(false));
        assert_eq!(known.share_a_key("a", "nobody"), None);
        assert_eq!(known.share_a_key("a", "d"), None);
    }

    #[test]
    fn learning_mends_the_end_of_the_file_and_sees_what_others_learnt() {
        let (_kept, _, file) = known(&format!("a {A}"));
        let files = [file.clone()];
        assert_eq!(learn(&files, "b", &key(B)).unwrap(), Verdict::Unknown);
        assert_eq!(learn(&files, "b", &key(B)).unwrap(), Verdict::Known);
        let changed = Verdict::Changed(Place { file: file.clone(), line: 2 });
        assert_eq!(learn(&files, "b", &key(A)).unwrap(), changed);
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, format!("a {A}\nb {B}\n"));
    }

    #[test]
    fn any_line_is_an_entry_or_skipped() {
        let valid = format!("@cert-authority h*,!hx,[h]:2200 {A} comment");
        let hashed = format!("|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= {A}");
        bolero::check!().for_each(|input: &[u8]| {
            for line in [
                input.to_vec(),
                damaged(valid.as_bytes(), input),
                damaged(hashed.as_bytes(), input),
            ] {
                let line = String::from_utf8_lossy(&line);
                let Some((_, names, key)) = parse_line(&line) else { continue };
                let _ = matches(names, "h");
                // Behind a marker, names may begin as a comment does.
                let again = format!("@revoked {names} {}", key.to_openssh().unwrap());
                assert_eq!(parse_line(&again).unwrap().2, key);
            }
        });
    }
}
