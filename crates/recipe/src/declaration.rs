//! `recipe.yml`: the declaration of a recipe, and what a valid one is. Knows no other files.

use std::collections::BTreeMap;

use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The key of a checksum that holds for every architecture.
pub const ANY: &str = "any";

/// What an image of the recipe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A cluster.
    Rootfs,
    /// What runs on one.
    Application,
}

/// What a recipe is for; the order in which parts of a cluster are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    Cluster,
    Network,
    Storage,
    NetworkApi,
    Tool,
    Addon,
    App,
}

/// `recipe.yml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Declaration {
    pub name: String,
    /// What it is, in one line.
    pub summary: String,
    pub kind: Kind,
    pub group: Group,
    /// Of a cluster: what installs it (`sealos.io.distribution`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// Of an application: the clusters that it runs on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_on: Vec<String>,
    /// For which its files exist; none: it has no programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Of the files that it downloads.
    pub licence: String,
    /// Recipes that come along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Of a cluster: recipes that most clusters of this kind want.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggests: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// What users set: variables, each with what JSON Schema says of its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Value>,
    /// Settings that have no usual value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_settings: Vec<String>,
    /// Newest first.
    pub versions: Vec<Release>,
}

/// A supported version.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Release {
    pub version: String,
    /// Container images that no manifest of the build context names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Download>,
}

/// A file of the publisher.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Download {
    /// With `{arch}` for an architecture, or `{name}` for what `name` has for one.
    pub url: String,
    /// Destination in the image: a file, or a directory if it ends with a slash.
    pub to: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub name: BTreeMap<String, String>,
    /// Of a file that is not unpacked; octal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// An archive, whose content is wanted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unpack: bool,
    /// Which files of the archive; all of them if there are none here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub take: Vec<String>,
    /// By architecture, or [`ANY`]. Empty: the checksum is not known here, and the first build records it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sha256: BTreeMap<String, String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Download {
    /// Returns whether the architectures have a file each.
    pub fn is_by_architecture(&self) -> bool {
        self.url.contains("{arch}") || self.url.contains("{name}")
    }

    /// Returns for what there are files: each of `architectures`, or [`ANY`].
    pub fn keys(&self, architectures: &[String]) -> Vec<String> {
        if self.is_by_architecture() { architectures.to_vec() } else { vec![ANY.to_owned()] }
    }

    /// Returns the address for an architecture.
    pub fn url(&self, architecture: &str) -> String {
        let name = self.name.get(architecture).map_or(architecture, String::as_str);
        self.url.replace("{arch}", architecture).replace("{name}", name)
    }

    /// Returns the checksum for an architecture, if it is known.
    pub fn sha256(&self, architecture: &str) -> Option<&str> {
        self.sha256.get(architecture).or_else(|| self.sha256.get(ANY)).map(String::as_str)
    }
}

impl Declaration {
    /// Reads `recipe.yml` of the recipe `name`.
    ///
    /// # Errors
    /// If it is not a valid declaration; the error names the recipe and what is wrong.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::bad_content(format!("recipe {name}: {what}"));
        let read: Self = serde_saphyr::from_str(text)
            .map_err(|error| wrong("recipe.yml cannot be read".into()).caused_by(error))?;
        if read.name != name {
            return Err(wrong(format!("recipe.yml is that of `{}`", read.name)));
        }
        match read.kind {
            Kind::Rootfs if read.distribution.is_none() || !read.runs_on.is_empty() => {
                return Err(wrong("a rootfs has a distribution and runs on nothing".into()));
            }
            Kind::Application if read.distribution.is_some() || read.runs_on.is_empty() => {
                return Err(wrong("an application says what it runs on".into()));
            }
            Kind::Rootfs | Kind::Application => {}
        }
        let mut versions: Vec<Version> = Vec::new();
        for release in &read.versions {
            let version = Version::parse(&release.version)
                .ok_or_else(|| wrong(format!("`{}` is not a version", release.version)))?;
            if versions.last().is_some_and(|newer| newer.compare(&version).is_le()) {
                return Err(wrong(format!(
                    "{} is not older than the one before it",
                    release.version
                )));
            }
            versions.push(version);
            for file in &release.files {
                read.check(file).map_err(|what| wrong(format!("{}: {what}", file.url)))?;
            }
        }
        let is_unknown = |name: &&String| !read.settings.contains_key(*name);
        if let Some(name) = read.required_settings.iter().find(is_unknown) {
            return Err(wrong(format!("it requires {name}, which is none of its settings")));
        }
        if versions.is_empty() {
            return Err(wrong("it has no version".into()));
        }
        Ok(read)
    }

    fn check(&self, file: &Download) -> Result<(), String> {
        if !file.url.starts_with("https://") || file.url.contains(char::is_whitespace) {
            return Err("the address is not one of https".into());
        }
        let is_plain = |path: &str| {
            !path.starts_with('/') && path.split('/').all(|part| part != ".." && part != ".")
        };
        if file.to.is_empty() || !is_plain(&file.to) || file.take.iter().any(|path| !is_plain(path))
        {
            return Err("a path leaves the image".into());
        }
        if !file.take.is_empty() && !file.unpack {
            return Err("only an archive has files to take".into());
        }
        if file.unpack == file.mode.is_some() {
            return Err("a file has a mode, and an archive has none".into());
        }
        let mut keys: Vec<&str> = file.sha256.keys().map(String::as_str).collect();
        let mut expected: Vec<&str> = if file.is_by_architecture() {
            self.architectures.iter().map(String::as_str).collect()
        } else {
            vec![ANY]
        };
        keys.sort_unstable();
        expected.sort_unstable();
        if expected.is_empty() || (!keys.is_empty() && keys != expected) {
            return Err(format!("its checksums are for {keys:?}, not for {expected:?}"));
        }
        let is_digest = |text: &String| {
            text.len() == 64
                && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if !file.sha256.values().all(is_digest) {
            return Err("a checksum is not a SHA-256 in lower-case hexadecimal digits".into());
        }
        if !file.name.is_empty()
            && !self.architectures.iter().all(|arch| file.name.contains_key(arch))
        {
            return Err("an architecture has no name".into());
        }
        Ok(())
    }
}
