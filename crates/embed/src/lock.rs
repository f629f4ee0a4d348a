//! `imgctl.lock`: the digest that each container image and each address of ADD had when the lock was last
//! updated.
//!
//! A TOML file that is committed next to the Kubefile: sorted, without timestamps, and
//! byte-identical for the same images. Must not depend on the location of the file or on
//! registries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Reference};

/// Default name of the lock file.
pub const LOCK_FILE: &str = "imgctl.lock";
/// Maximum size of a lock file, in bytes.
pub const MAX_LOCK: u64 = 16 << 20;
const VERSION: u32 = 1;
const HEAD: &str = "\
# The container images and the addresses of this image, by digest. Commit this file next to the Kubefile.
# `imgctl build --update-lock` writes it, `imgctl build` uses it, `imgctl build --locked` insists on it.
";

/// One image of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locked {
    /// Digest of the index or manifest that the reference names.
    pub digest: Digest,
    /// The manifest for each platform that was built, by platform name.
    pub platforms: BTreeMap<String, Digest>,
    /// The files that name the image, sorted.
    pub found: Vec<String>,
}

/// What an address gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A file, and its time in seconds since 1970 if the server said one. The time is part of the image.
    File { digest: Digest, modified: Option<i64> },
    /// A commit of a git repository.
    Commit(String),
}

impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { digest, .. } => write!(f, "{digest}"),
            Self::Commit(commit) => write!(f, "commit {commit}"),
        }
    }
}

/// One address of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedAddress {
    pub given: Given,
    /// Platforms whose builds asked for it.
    pub platforms: BTreeSet<String>,
}

/// A packed chart of the context that came from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedChart {
    /// Its address, with the version.
    pub from: String,
    /// In a registry: the digest of its manifest.
    pub manifest: Option<Digest>,
    /// Digest of the file.
    pub digest: Digest,
}

/// All locked images, charts by their files, and all locked addresses, which have no passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pub images: BTreeMap<Reference, Locked>,
    pub charts: BTreeMap<String, LockedChart>,
    pub addresses: BTreeMap<String, LockedAddress>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    image: Vec<Entry>,
    #[serde(default)]
    chart: Vec<ChartEntry>,
    #[serde(default)]
    address: Vec<AddressEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChartEntry {
    file: String,
    from: String,
    manifest: Option<Digest>,
    digest: Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressEntry {
    url: String,
    digest: Option<Digest>,
    modified: Option<String>,
    commit: Option<String>,
    #[serde(default)]
    platforms: BTreeSet<String>,
}

impl AddressEntry {
    /// Returns what the address gave; `None` if the entry says neither or both.
    fn given(&self) -> Option<Given> {
        match (&self.digest, &self.commit, &self.modified) {
            (Some(digest), None, modified) => {
                let modified = match modified {
                    Some(text) => Some(text.parse::<jiff::Timestamp>().ok()?.as_second()),
                    None => None,
                };
                Some(Given::File { digest: digest.clone(), modified })
            }
            (None, Some(commit), None) if is_commit(commit) => Some(Given::Commit(commit.clone())),
            _ => None,
        }
    }
}

/// Whether `text` is the whole ID of a commit.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    digest: Digest,
    #[serde(default)]
    platforms: BTreeMap<String, Digest>,
    #[serde(default)]
    found: Vec<String>,
}

impl Lock {
    /// Parses the text of the file called `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::usage(format!("cannot use {name}: {why}"))
                .hint("run `imgctl build --update-lock` to write it again")
        };
        let file: File =
            toml::from_str(text).map_err(|error| wrong("it is malformed").caused_by(error))?;
        if file.version != VERSION {
            let why = format!("it has version {}, not {VERSION}", file.version);
            return Err(wrong(&why));
        }
        let mut images = BTreeMap::new();
        for entry in file.image {
            let reference = Reference::parse(&entry.name)?;
            let locked =
                Locked { digest: entry.digest, platforms: entry.platforms, found: entry.found };
            if images.insert(reference, locked).is_some() {
                return Err(wrong(&format!("it lists {} twice", entry.name)));
            }
        }
        let mut addresses = BTreeMap::new();
        for entry in file.address {
            let given = entry
                .given()
                .ok_or_else(|| wrong(&format!("the entry of {} is malformed", entry.url)))?;
            let locked = LockedAddress { given, platforms: entry.platforms };
            if addresses.insert(entry.url.clone(), locked).is_some() {
                return Err(wrong(&format!("it lists {} twice", entry.url)));
            }
        }
        let mut charts = BTreeMap::new();
        for ChartEntry { file, from, manifest, digest } in file.chart {
            let locked = LockedChart { from, manifest, digest };
            if charts.insert(file.clone(), locked).is_some() {
                return Err(wrong(&format!("it lists {file} twice")));
            }
        }
        Ok(Self { images, charts, addresses })
    }

    /// Returns the locked digest of a reference.
    pub fn digest(&self, reference: &Reference) -> Option<&Digest> {
        self.images.get(reference).map(|locked| &locked.digest)
    }

    /// Returns the text of the lock file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}version = {VERSION}\n");
        for (reference, locked) in &self.images {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n[[image]]\nname = {}\ndigest = \"{}\"\n",
                quoted(&reference.to_string()),
                locked.digest
            );
            let platforms: Vec<String> = locked
                .platforms
                .iter()
                .map(|(platform, digest)| format!("{} = \"{digest}\"", quoted(platform)))
                .collect();
            if !platforms.is_empty() {
                let _ = writeln!(text, "platforms = {{ {} }}", platforms.join(", "));
            }
            let found: Vec<String> = locked.found.iter().map(|file| quoted(file)).collect();
            let _ = writeln!(text, "found = [{}]", found.join(", "));
        }
        for (file, locked) in &self.charts {
            let (file, from) = (quoted(file), quoted(&locked.from));
            let _ = write!(text, "\n[[chart]]\nfile = {file}\nfrom = {from}\n");
            if let Some(manifest) = &locked.manifest {
                let _ = writeln!(text, "manifest = \"{manifest}\"");
            }
            let _ = writeln!(text, "digest = \"{}\"", locked.digest);
        }
        for (url, locked) in &self.addresses {
            let _ = write!(text, "\n[[address]]\nurl = {}\n", quoted(url));
            match &locked.given {
                Given::File { digest, modified } => {
                    let _ = writeln!(text, "digest = \"{digest}\"");
                    let time = modified.and_then(|time| jiff::Timestamp::from_second(time).ok());
                    if let Some(time) = time {
                        let _ = writeln!(text, "modified = \"{time}\"");
                    }
                }
                Given::Commit(commit) => {
                    let _ = writeln!(text, "commit = \"{commit}\"");
                }
            }
            let platforms: Vec<String> = locked.platforms.iter().map(|name| quoted(name)).collect();
            if !platforms.is_empty() {
                let _ = writeln!(text, "platforms = [{}]", platforms.join(", "));
            }
        }
        text
    }

    /// Returns the errors that `--locked` reports: references missing from the lock, and entries
    /// that are no longer named.
    pub fn check<'a>(&self, name: &str, wanted: impl Iterator<Item = &'a Reference>) -> Result<()> {
        let mut unused: BTreeMap<&Reference, ()> =
            self.images.keys().map(|key| (key, ())).collect();
        let mut lines = Vec::new();
        for reference in wanted {
            if unused.remove(reference).is_none() && !self.images.contains_key(reference) {
                lines.push(format!("{reference} is new"));
            }
        }
        lines.extend(unused.keys().map(|reference| format!("{reference} is no longer used")));
        if lines.is_empty() {
            return Ok(());
        }
        let error = Error::usage(format!("{name} is out of date: {}", lines.join("; ")));
        Err(error.hint("run `imgctl build --update-lock` to update it"))
    }
}

/// Returns a TOML basic string; JSON strings are a subset of them.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn lock(names: &[&str]) -> Lock {
        let entry = |name: &&str| {
            let locked = Locked {
                digest: Digest::of(name.as_bytes()),
                platforms: BTreeMap::from([("linux/amd64".to_owned(), Digest::of(b"p"))]),
                found: vec!["charts/x: \"odd\"\u{7f}\\.yaml".to_owned()],
            };
            (Reference::parse(name).unwrap(), locked)
        };
        let address = |url: &str, given| {
            let platforms = BTreeSet::from(["linux/amd64".to_owned()]);
            (url.to_owned(), LockedAddress { given, platforms })
        };
        let digest = Digest::of(b"file");
        let addresses = BTreeMap::from([
            address(
                "https://a.io/x?q=\"1\"",
                Given::File { digest: digest.clone(), modified: None },
            ),
            address("https://a.io/y", Given::File { digest, modified: Some(1_756_291_200) }),
            address("https://a.io/z.git#v1", Given::Commit("0f".repeat(20))),
        ]);
        let chart = |from: &str, manifest| {
            let locked =
                LockedChart { from: from.to_owned(), manifest, digest: Digest::of(b"chart") };
            (format!("charts/{}.tgz", from.len()), locked)
        };
        let charts = BTreeMap::from([
            chart("oci://a.io/web:1.0.0", Some(Digest::of(b"manifest"))),
            chart("https://a.io/web.tgz", None),
        ]);
        Lock { images: names.iter().map(entry).collect(), charts, addresses }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let lock = lock(&["quay.io/b/c:1", "docker.io/library/a:latest"]);
        let text = lock.to_text();
        assert!(text.find("library/a").unwrap() < text.find("b/c").unwrap());
        assert_eq!(Lock::parse(&text, "imgctl.lock").unwrap(), lock);
    }

    #[test]
    fn other_files_are_refused() {
        let digest = Digest::of(b"");
        let entry = format!("[[image]]\nname = \"a.b/c:1\"\ndigest = \"{digest}\"\n");
        for text in [
            "",
            "version = 2",
            "version = 1\nmore = 1",
            "version = 1\n[[image]]\nname = \"a\"\ndigest = \"sha256:12\"",
            &format!("version = 1\n{entry}{entry}"),
            "version = 1\n[[chart]]\nfile = \"charts/a.tgz\"\nfrom = \"oci://a.io/a:1\"",
            &format!(
                "version = 1\n{0}{0}",
                format!("[[chart]]\nfile = \"f\"\nfrom = \"x\"\ndigest = \"{digest}\"\n")
            ),
            "version = 1\n[[address]]\nurl = \"https://a.io/x\"",
            "version = 1\n[[address]]\nurl = \"https://a.io/x.git\"\ncommit = \"--upload-pack\"",
            &format!(
                "version = 1\n[[address]]\nurl = \"u\"\ndigest = \"{digest}\"\nmodified = \"now\""
            ),
        ] {
            assert!(Lock::parse(text, "x").is_err(), "{text}");
        }
        assert!(Lock::parse(&format!("version = 1\n{entry}"), "x").is_ok());
    }

    #[test]
    fn drift_is_told_in_both_directions() {
        let lock = lock(&["a.io/a:1", "a.io/b:1"]);
        let wanted = |names: &[&str]| -> Vec<Reference> {
            let names = names.iter();
            names.map(|name| Reference::parse(name).unwrap()).collect()
        };
        lock.check("l", wanted(&["a.io/a:1", "a.io/b:1"]).iter()).unwrap();
        let drifted = wanted(&["a.io/a:1", "a.io/c:1"]);
        let error = lock.check("l", drifted.iter()).unwrap_err().to_string();
        assert!(error.contains("a.io/c:1 is new"), "{error}");
        assert!(error.contains("a.io/b:1 is no longer used"), "{error}");
    }

    #[test]
    fn any_text_is_a_lock_or_refused() {
        let valid = lock(&["quay.io/b/c:1", "docker.io/library/a:latest"]).to_text();
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                if let Ok(read) = Lock::parse(&String::from_utf8_lossy(&text), "l") {
                    assert_eq!(Lock::parse(&read.to_text(), "l").unwrap(), read);
                }
            }
        });
    }
}
