//! Compares the addresses of a lock with what their publishers say about them: checksum files beside the
//! file, and signed statements (sigstore bundles). Must not change the lock.

use std::collections::BTreeMap;

use reqwest::Url;

use crate::build::download::{file_name, read_small};
use crate::build::mirrors::Mirrors;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_embed::lock::{Given, Lock};
use imgctl_trust::blob::{self, MAX_BUNDLE};
use imgctl_trust::verify::Trust;

/// Maximum size of a checksum file, in bytes.
const MAX_SUMS: u64 = 4 << 20;
/// Endings of the names of files with the checksum of one file.
const ENDINGS: [&str; 3] = [".sha256", ".sha256sum", ".sha256.txt"];
/// Names of files with the checksums of their folder.
const LISTS: [&str; 6] = [
    "SHA256SUMS",
    "SHA256SUMS.txt",
    "sha256sum.txt",
    "sha256sums.txt",
    "checksums.txt",
    "checksums.sha256",
];
/// Ending of the name of a bundle about a file.
const BUNDLE: &str = ".sigstore.json";

/// What the publisher says about one address.
#[derive(Debug)]
pub struct Verdict {
    pub address: String,
    pub locked: String,
    pub outcome: Outcome,
}

/// The result of comparing the lock with the publisher's statement.
#[derive(Debug)]
pub enum Outcome {
    /// The file at this address has the same digest.
    Same(String),
    /// The file at this address has another digest.
    Differs { file: String, stated: Digest },
    /// The statement at this address is signed by the requested identity.
    Signed(String),
    /// The statement at this address is not valid.
    NotSigned { file: String, error: Error },
    /// There is no file that says something about the address.
    Unstated,
    /// The address is a repository: its commit is its own checksum.
    Commit,
}

impl Outcome {
    /// Returns whether the lock must not be used.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Differs { .. } | Self::NotSigned { .. })
    }
}

/// Asks the publishers of all addresses. With `trust`, a signed statement counts where there is one.
pub fn verify(lock: &Lock, mirrors: &Mirrors, trust: Option<&Trust>) -> Result<Vec<Verdict>> {
    let mut asked = Asked { mirrors, texts: BTreeMap::new() };
    let mut verdicts = Vec::new();
    for (address, locked) in &lock.addresses {
        let outcome = match &locked.given {
            Given::Commit(_) => Outcome::Commit,
            Given::File { digest, .. } => asked.about(address, digest, trust)?,
        };
        verdicts.push(Verdict {
            address: address.clone(),
            locked: locked.given.to_string(),
            outcome,
        });
    }
    Ok(verdicts)
}

/// Files read so far. Addresses in one folder share its checksum list.
struct Asked<'a> {
    mirrors: &'a Mirrors,
    texts: BTreeMap<String, Option<String>>,
}

impl Asked<'_> {
    fn about(&mut self, address: &str, digest: &Digest, trust: Option<&Trust>) -> Result<Outcome> {
        let url = Url::parse(address)
            .map_err(|error| Error::usage(format!("`{address}` is not a URL")).caused_by(error))?;
        if let Some(trust) = trust {
            let file = beside(&url, &format!("{}{BUNDLE}", last(&url)));
            if let Some(bundle) = read_small(&file, self.mirrors, MAX_BUNDLE)? {
                let files = [(last(&url).to_owned(), digest.clone())];
                let file = file.to_string();
                return Ok(match blob::verify_statement(&bundle, trust, None, &files) {
                    Ok(_) => Outcome::Signed(file),
                    Err(error) => Outcome::NotSigned { file, error },
                });
            }
        }
        let name = file_name(url.path());
        let name = String::from_utf8_lossy(&name);
        for ending in ENDINGS {
            let file = beside(&url, &format!("{}{ending}", last(&url)));
            if let Some(stated) = self.text(&file)?.and_then(|text| stated_alone(text, &name)) {
                return Ok(compared(&file, stated, digest));
            }
        }
        let lists = LISTS.iter().map(|name| (*name).to_owned()).chain(release_list(&url));
        for list in lists {
            let file = beside(&url, &list);
            if let Some(stated) = self.text(&file)?.and_then(|text| stated(text, &name)) {
                return Ok(compared(&file, stated, digest));
            }
        }
        Ok(Outcome::Unstated)
    }

    fn text(&mut self, file: &Url) -> Result<Option<&str>> {
        let key = file.to_string();
        if !self.texts.contains_key(&key) {
            let bytes = read_small(file, self.mirrors, MAX_SUMS)?;
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            self.texts.insert(key.clone(), text);
        }
        Ok(self.texts.get(&key).and_then(|text| text.as_deref()))
    }
}

fn compared(file: &Url, stated: Digest, locked: &Digest) -> Outcome {
    let file = file.to_string();
    if stated == *locked { Outcome::Same(file) } else { Outcome::Differs { file, stated } }
}

/// Returns the last part of a URL's path, as it is encoded.
fn last(url: &Url) -> &str {
    url.path().rsplit('/').next().unwrap_or_default()
}

/// Returns the address of the file `name` in the folder of `url`.
fn beside(url: &Url, name: &str) -> Url {
    let mut file = url.clone();
    let folder = url.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    file.set_path(&format!("{folder}/{name}"));
    file.set_query(None);
    file.set_fragment(None);
    file
}

/// Returns the name that goreleaser gives to the checksums of a release on GitHub:
/// `/OWNER/NAME/releases/download/vVERSION/…` has `NAME_VERSION_checksums.txt`.
fn release_list(url: &Url) -> Option<String> {
    let parts: Vec<&str> = url.path().trim_start_matches('/').split('/').collect();
    match parts[..] {
        [_, name, "releases", "download", version, _] => {
            Some(format!("{name}_{}_checksums.txt", version.trim_start_matches('v')))
        }
        _ => None,
    }
}

/// Returns the digest that a checksum file has for `name`: lines as sha256sum writes them, with or without
/// `--tag`.
fn stated(text: &str, name: &str) -> Option<Digest> {
    let is_it = |listed: &str| listed.rsplit('/').next() == Some(name);
    entries(text).find(|(_, listed)| listed.is_some_and(is_it)).map(|(digest, _)| digest)
}

/// Returns the digest that the checksum file of one file has, which need not name it.
fn stated_alone(text: &str, name: &str) -> Option<Digest> {
    if let Some(digest) = stated(text, name) {
        return Some(digest);
    }
    let mut all = entries(text);
    match (all.next(), all.next()) {
        (Some((digest, _)), None) => Some(digest),
        _ => None,
    }
}

fn entries(text: &str) -> impl Iterator<Item = (Digest, Option<&str>)> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let (hex, name) =
            match line.strip_prefix("SHA256 (").and_then(|rest| rest.rsplit_once(") = ")) {
                Some((name, hex)) => (hex, Some(name)),
                None => match line.split_once(char::is_whitespace) {
                    Some((hex, name)) => (hex, Some(name.trim_start().trim_start_matches('*'))),
                    None => (line, None),
                },
            };
        let digest = format!("sha256:{}", hex.trim().to_ascii_lowercase()).parse().ok()?;
        Some((digest, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        Digest::of(text.as_bytes()).hex().to_owned()
    }

    #[test]
    fn checksum_files_are_read_in_every_usual_form() {
        let (a, b) = (hex("a"), hex("b"));
        let (wanted, upper) = (Digest::of(b"a"), a.to_uppercase());
        for text in [
            format!("{a}  tool\n"),
            format!("{b}  other\r\n{a} *./bin/tool\r\n"),
            format!("SHA256 (other) = {b}\nSHA256 (tool) = {upper}\n"),
        ] {
            assert_eq!(stated(&text, "tool").as_ref(), Some(&wanted), "{text}");
            assert_eq!(stated_alone(&text, "tool").as_ref(), Some(&wanted), "{text}");
        }
        // The file of one checksum may name nothing, or what the file was called when it was built.
        for text in [a.clone(), format!("{a}\n"), format!("{a}  tool-linux-amd64\n")] {
            assert_eq!(stated(&text, "tool"), None, "{text}");
            assert_eq!(stated_alone(&text, "tool").as_ref(), Some(&wanted), "{text}");
        }
        for text in ["", "Not Found", "abc  tool", &format!("{a}  x\n{b}  y\n")] {
            assert_eq!(stated_alone(text, "tool"), None, "{text}");
        }
    }

    #[test]
    fn files_beside_an_address_have_no_query() {
        let url = Url::parse("https://x.io/o/n/releases/download/v1.2/f%20g?raw=1#top").unwrap();
        let file = beside(&url, &format!("{}.sha256", last(&url)));
        assert_eq!(file.as_str(), "https://x.io/o/n/releases/download/v1.2/f%20g.sha256");
        assert_eq!(release_list(&url).as_deref(), Some("n_1.2_checksums.txt"));
        assert_eq!(release_list(&Url::parse("https://x.io/a/b").unwrap()), None);
    }
}
