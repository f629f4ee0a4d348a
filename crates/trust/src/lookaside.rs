//! Where to find an image's signatures: registries.d (containers-registries.d(5)).
//!
//! Must not depend on the meaning of signatures.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::gpg::MAX_MESSAGE;
use crate::payload::expanded;
use crate::policy::scopes;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::directory::list;
use imgctl_base::image::{Digest, Reference};

/// Maximum size of a registries.d file, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of simple signatures read for one image.
const MAX_SIGNATURES: usize = 100;

/// The merged configuration files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookasides {
    default: Option<Section>,
    scopes: BTreeMap<String, Section>,
    /// Location of simple signatures if no section specifies one.
    directory: Option<PathBuf>,
}

/// Settings of one registry, namespace or image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Section {
    lookaside: Option<String>,
    /// Name of `lookaside` until 2022.
    sigstore: Option<String>,
    use_sigstore_attachments: Option<bool>,
    #[serde(rename = "lookaside-staging")]
    _lookaside_staging: Option<String>,
    #[serde(rename = "sigstore-staging")]
    _sigstore_staging: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    default_docker: Option<Section>,
    docker: Option<BTreeMap<String, Section>>,
}

impl Lookasides {
    /// Reads the `*.yaml` files of the first of `directories` that exists. `directory` is the
    /// location of simple signatures if no section specifies one.
    pub(crate) fn read(directories: &[PathBuf], directory: Option<PathBuf>) -> Result<Self> {
        let mut all = Self { directory, ..Self::default() };
        for directory in directories {
            if !directory.try_exists().path("list", directory)? {
                continue;
            }
            for file in list(directory)? {
                if file.extension().is_some_and(|end| end == "yaml") {
                    all.add(&file)?;
                }
            }
            break;
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE).read_to_string(&mut text))
            .path("read", path)?;
        self.add_text(&text).context(|| format!("cannot use {}", path.display()))
    }

    fn add_text(&mut self, text: &str) -> Result<()> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(());
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            Error::bad_content("it is not a valid registries.d file").caused_by(error)
        })?;
        if let Some(section) = file.default_docker
            && self.default.replace(section).is_some()
        {
            return Err(Error::bad_content("`default-docker` is defined in two files"));
        }
        for (scope, section) in file.docker.unwrap_or_default() {
            if self.scopes.insert(scope.clone(), section).is_some() {
                return Err(Error::bad_content(format!("`{scope}` is defined in two files")));
            }
        }
        Ok(())
    }

    /// Returns the section of the most specific scope. Wildcards are not supported here.
    fn section(&self, reference: &Reference) -> Option<&Section> {
        scopes(reference).iter().find_map(|scope| self.scopes.get(scope)).or(self.default.as_ref())
    }

    /// Returns whether sigstore signatures stored with the image are used.
    pub(crate) fn uses_attachments(&self, reference: &Reference) -> bool {
        self.section(reference)
            .and_then(|section| section.use_sigstore_attachments)
            .unwrap_or(false)
    }

    /// Returns the location of the simple signatures of `reference`: a `file:`, `http:` or `https:`
    /// URL.
    pub(crate) fn url(&self, reference: &Reference) -> Option<String> {
        match self.section(reference) {
            Some(section) => section.lookaside.clone().or_else(|| section.sigstore.clone()),
            None => {
                self.directory.as_ref().map(|directory| format!("file://{}", directory.display()))
            }
        }
    }
}

/// Reads the simple signatures of the manifest `digest` below the lookaside `url`: `signature-1`,
/// `signature-2`, … until one is missing.
pub(crate) fn signatures(
    url: &str,
    reference: &Reference,
    digest: &Digest,
    get: &dyn Fn(&str) -> Result<Option<Vec<u8>>>,
) -> Result<Vec<Vec<u8>>> {
    // Only the path of the name, because the URL is already specific to the registry.
    let repository = expanded(reference).repository().to_owned();
    let (algorithm, hex) = (digest.algorithm().as_str(), digest.hex());
    let base = format!("{}/{repository}@{algorithm}={hex}", url.trim_end_matches('/'));
    let mut found = Vec::new();
    for number in 1..=MAX_SIGNATURES {
        let place = format!("{base}/signature-{number}");
        let signature = match place.strip_prefix("file://") {
            Some(path) => read(Path::new(path)),
            None => get(&place),
        };
        match signature.context(|| format!("cannot read the signature {place}"))? {
            Some(message) => found.push(message),
            None => break,
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let file = match std::fs::File::open(path).path("read", path) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        file => file?,
    };
    file.take(MAX_MESSAGE + 1).read_to_end(&mut bytes).path("read", path)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn reference(name: &str) -> Reference {
        Reference::parse(name).unwrap()
    }

    #[test]
    fn only_the_most_specific_section_counts() {
        let mut all = Lookasides { directory: Some("/var/lib/x".into()), ..Lookasides::default() };
        assert_eq!(all.url(&reference("a.io/b:1")).unwrap(), "file:///var/lib/x");
        all.add_text("# nothing\n").unwrap();
        all.add_text(
            "default-docker:\n  sigstore: https://default\ndocker:\n  a.io:\n    lookaside: https://a\n  a.io/b:\n    use-sigstore-attachments: true\n",
        )
        .unwrap();
        for (name, url, attachments) in [
            ("x.io/y:1", Some("https://default"), false),
            ("a.io/x:1", Some("https://a"), false),
            ("a.io/b:1", None, true),
            ("a.io/b/c:1", None, true),
        ] {
            assert_eq!(all.url(&reference(name)).as_deref(), url, "{name}");
            assert_eq!(all.uses_attachments(&reference(name)), attachments, "{name}");
        }
        assert!(all.add_text("default-docker: {}\n").is_err());
        assert!(all.add_text("docker: {a.io: {}}\n").is_err());
        assert!(all.add_text("dokcer: {}\n").is_err());
    }

    #[test]
    fn signatures_are_counted_from_one() {
        let directory = tempfile::tempdir().unwrap();
        let digest = Digest::of(b"x");
        let below = directory.path().join(format!("team/app@sha256={}", digest.hex()));
        std::fs::create_dir_all(&below).unwrap();
        for (name, text) in [("1", "one"), ("2", "two"), ("4", "four")] {
            std::fs::write(below.join(format!("signature-{name}")), text).unwrap();
        }
        let url = format!("file://{}", directory.path().display());
        let none = |_: &str| Ok(None);
        let found = signatures(&url, &reference("q.io/team/app:1"), &digest, &none).unwrap();
        assert_eq!(found, [b"one", b"two"]);
        let asked = std::cell::RefCell::new(Vec::new());
        let get = |url: &str| {
            asked.borrow_mut().push(url.to_owned());
            Ok(None)
        };
        signatures("https://l/", &reference("busybox"), &digest, &get).unwrap();
        let expected = format!("https://l/library/busybox@sha256={}/signature-1", digest.hex());
        assert_eq!(asked.into_inner(), [expected]);
    }

    #[test]
    fn any_text_is_a_registries_file_or_refused() {
        let valid = "default-docker:\n  lookaside: file:///l\ndocker:\n  r.io/a:\n    lookaside: https://s\n    use-sigstore-attachments: true\n";
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                let mut all = Lookasides::default();
                if all.add_text(&String::from_utf8_lossy(&text)).is_ok() {
                    let reference = reference("r.io/a/b:1");
                    let _ = (all.url(&reference), all.uses_attachments(&reference));
                }
            }
        });
    }
}
