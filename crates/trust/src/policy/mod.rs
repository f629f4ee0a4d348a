//! The policy of containers-policy.json(5): which images may be used, and who must have signed
//! them.
//!
//! [`Policy`] is the file, [`Requirements`] its demands on one image; [`Requirements::check`]
//! checks signatures that the caller has fetched. Must not depend on registries.

mod certified;
mod check;
mod identity;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::payload::expanded;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::Reference;

pub(crate) use certified::Certified;
pub use check::{Signature, Signatures, Subject, open_sigstore, read_key};
pub(crate) use identity::SignedIdentity;

/// Maximum size of a policy file, in bytes.
const MAX_POLICY: u64 = 4 << 20;

/// Which images may be used.
#[derive(Clone, Debug)]
pub struct Policy {
    /// File it was read from, for messages.
    source: String,
    default: Vec<Requirement>,
    /// By transport (`docker`), then by scope; the scope `""` is the transport's default.
    transports: BTreeMap<String, BTreeMap<String, Vec<Requirement>>>,
}

/// Requirements on one image; all of them must be met.
#[derive(Clone, Copy, Debug)]
pub struct Requirements<'a> {
    source: &'a str,
    /// The scope that applies, for messages.
    scope: &'a str,
    list: &'a [Requirement],
}

/// One requirement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Requirement {
    /// No requirement.
    AcceptAnything,
    /// Never met.
    Reject,
    /// A signature by one of these keys, for this identity.
    Signed { by: Scheme, keys: KeySource, identity: SignedIdentity },
    /// A sigstore bundle by this identity, which an authority certified.
    Certified(Box<Certified>),
    /// A feature of the format that imgctl does not support; never met. The text names it.
    Unsupported(String),
}

/// Accepted type of signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// sigstore signatures, attached to the image in its registry.
    Sigstore,
    /// Simple signing: OpenPGP messages in a lookaside.
    Gpg,
}

/// Location of keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeySource {
    Files(Vec<PathBuf>),
    Data(Vec<Vec<u8>>),
}

impl Policy {
    /// Reads the first of `files` that exists. Returns `None` if none does; every image is then
    /// accepted. A file with unknown parts is an error.
    pub(crate) fn read_first(files: &[PathBuf]) -> Result<Option<Self>> {
        for file in files {
            match Self::read(file) {
                Err(error) if error.kind() == Kind::NotFound => {}
                read => return read.map(Some),
            }
        }
        tracing::debug!("there is no signature policy: every image is accepted");
        Ok(None)
    }

    /// Reads a policy file.
    pub fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_POLICY + 1).read_to_end(&mut bytes))
            .path("read the signature policy", path)?;
        let source = path.display().to_string();
        if bytes.len() as u64 > MAX_POLICY {
            return Err(Error::bad_content(format!("{source} is too large to be a policy")));
        }
        Self::parse(&bytes, source)
    }

    /// Parses a policy; `source` names it in messages.
    pub fn parse(text: &[u8], source: String) -> Result<Self> {
        let parsed =
            parse::policy(text).context(|| format!("{source} is not a valid signature policy"))?;
        Ok(Self { source, default: parsed.0, transports: parsed.1 })
    }

    /// Returns the requirements on the image `reference` of a registry.
    pub(crate) fn for_registry(&self, reference: &Reference) -> Requirements<'_> {
        self.for_name(reference).unwrap_or_else(|| self.for_unnamed())
    }

    /// Returns the requirements on the image `reference` if a scope of registries names it, so that they
    /// are not those of `default`.
    pub(crate) fn for_name(&self, reference: &Reference) -> Option<Requirements<'_>> {
        self.in_table("docker", &scopes(reference))
    }

    /// Returns the requirements on an image that a file or directory brought.
    pub(crate) fn for_place<'a>(&'a self, transport: &'a str, path: &str) -> Requirements<'a> {
        self.in_table(transport, &place_scopes(transport, path))
            .unwrap_or_else(|| self.for_unnamed())
    }

    /// Returns the requirements on an image of this machine that has no name.
    pub(crate) fn for_unnamed(&self) -> Requirements<'_> {
        Requirements { source: &self.source, scope: "default", list: &self.default }
    }

    /// Returns the requirements of the first of `scopes` that `transport` has, or of its default.
    fn in_table<'a>(&'a self, transport: &'a str, scopes: &[String]) -> Option<Requirements<'a>> {
        let table = self.transports.get(transport)?;
        let mut scopes = scopes.iter().map(String::as_str).chain([""]);
        let (scope, list) = scopes.find_map(|scope| table.get_key_value(scope))?;
        let scope = if scope.is_empty() { transport } else { scope };
        Some(Requirements { source: &self.source, scope, list })
    }
}

impl Requirements<'_> {
    /// Returns whether signatures of this scheme must be fetched.
    pub fn needs(&self, scheme: Scheme) -> bool {
        self.list.iter().any(
            |requirement| matches!(requirement, Requirement::Signed { by, .. } if *by == scheme),
        )
    }

    /// Returns whether every image is accepted.
    pub(crate) fn accepts_anything(&self) -> bool {
        self.list.iter().all(|requirement| *requirement == Requirement::AcceptAnything)
    }

    /// Returns whether any signature is demanded, rather than all images accepted or rejected.
    pub(crate) fn needs_signatures(&self) -> bool {
        self.needs_bundles() || self.needs(Scheme::Sigstore) || self.needs(Scheme::Gpg)
    }

    /// Returns whether bundles must be fetched, which are always beside the image.
    pub(crate) fn needs_bundles(&self) -> bool {
        self.list.iter().any(|requirement| matches!(requirement, Requirement::Certified(_)))
    }
}

/// The scopes of an image in a file or directory: its path and the directories above it. The root is no
/// scope, since the transport's default is one. A docker archive has only that.
fn place_scopes(transport: &str, path: &str) -> Vec<String> {
    if transport == "docker-archive" {
        return Vec::new();
    }
    let paths = Path::new(path).ancestors().filter_map(Path::to_str);
    paths.filter(|path| !["", "/"].contains(path)).map(str::to_owned).collect()
}

/// The scopes of an image in a registry.
pub fn scopes(reference: &Reference) -> Vec<String> {
    let full = expanded(reference);
    let name = full.name();
    let mut scopes = Vec::new();
    if full.tag().is_some() || full.digest().is_some() {
        scopes.push(full.to_string());
    }
    let mut rest = name.as_str();
    scopes.push(rest.to_owned());
    while let Some((parent, _)) = rest.rsplit_once('/') {
        scopes.push(parent.to_owned());
        rest = parent;
    }
    // The rest is the registry. Wildcards ignore its port.
    let mut host = rest.split(':').next().unwrap_or(rest);
    while let Some((_, domain)) = host.split_once('.') {
        scopes.push(format!("*.{domain}"));
        host = domain;
    }
    scopes
}
