//! Git repositories as sources of ADD, cloned with the installed git into a scratch directory. What
//! git says decides about fall-backs.

mod address;
mod checkout;
mod command;
mod commit;

pub use commit::commit_time;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;

use crate::build::addresses::Addresses;
use crate::build::archive::Tee;
use crate::build::context::ContextTree;
use crate::build::download::is_url;
use crate::build::git::address::commit_id;
use crate::build::git::checkout::settle;
use crate::build::git::command::{Git, Login};
use crate::build::items::{Content, Item, Opened, SourceTree as _, rewound};
use crate::build::options::SecretSource;
use crate::build::run_mounts::read_secret;
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::image::Platform;
use imgctl_embed::lock::Given;
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_layer::{EntryKind, LayerPath, Mtime};
use imgctl_store::store::Store;
use imgctl_trust::provenance::Material;

pub(super) use crate::build::git::address::Repository;

/// Free space that git must leave, in bytes: more than for a download, because git writes between two checks.
const RESERVE: u64 = 32 << 20;

/// The files of a repository.
pub(super) struct Checkout {
    pub items: Vec<Item>,
    /// The commit, as provenance names it.
    pub material: Material,
}

/// What a build wants of a repository.
pub(super) struct Wanted<'a> {
    pub keep_git_dir: bool,
    /// The value of `--checksum`.
    pub checksum: Option<&'a str>,
    pub secrets: &'a BTreeMap<String, SecretSource>,
    /// Socket of `--ssh default`.
    pub agent: Option<&'a Path>,
    pub addresses: &'a Addresses<'a>,
    pub platform: &'a Platform,
}

impl Repository {
    /// Clones the repository and returns its files, which all get the time of the commit.
    pub(super) fn files(&self, store: &Store, wanted: &Wanted<'_>) -> Result<Checkout> {
        let checksum = wanted.checksum.map(commit_id).transpose()?;
        let scratch = store.scratch_directory()?;
        let mirrors = wanted.addresses.mirrors;
        let room = |needed: u64| store.check_room(needed.saturating_add(RESERVE));
        let git = Git {
            directory: scratch.path(),
            login: self.login(wanted.secrets)?,
            agent: wanted.agent,
            settings: mirrors.git_settings(),
            reads_files: mirrors.is_local(&self.url),
            room: &room,
        };
        let expected: Vec<&str> = self.commit.iter().chain(&checksum).map(String::as_str).collect();
        let doing = || match mirrors.name_for(&self.url) {
            Some(mirror) => format!("cannot clone {} from the mirror {mirror}", self.url),
            None => format!("cannot clone {}", self.url),
        };
        let address = match &self.reference {
            Some(reference) => format!("{}#{reference}", self.url),
            None => self.url.clone(),
        };
        let locked = match wanted.addresses.locked(&address)? {
            Some(Given::Commit(commit)) => Some(commit.as_str()),
            Some(file @ Given::File { .. }) => {
                let here = Given::Commit("of a repository".to_owned());
                return Err(wanted.addresses.differs(&address, file, &here).context(doing()));
            }
            None => None,
        };
        let found = self.check_out(&git, &expected, locked).context(doing)?;
        let given = Given::Commit(found.commit.clone());
        wanted.addresses.record(&address, given, wanted.platform)?;
        let keep = wanted.keep_git_dir || self.keep_git_dir;
        if keep {
            settle(&git).context(doing)?;
        }
        let time = git.run(&["log", "-1", "--format=%ct"])?.trim().parse().unwrap_or(0);
        // The subdirectory, including any symlinks, is resolved inside the checkout (CVE-2026-33748).
        let root = Root::open(scratch.path())?;
        let below = if self.subdirectory.is_empty() { "." } else { &self.subdirectory };
        let fd = root.open_directory(Path::new(below.trim_start_matches('/')))?;
        let hidden: &[u8] = if keep { b"" } else { b"**/.git" };
        let rules = IgnoreRules::parse(hidden).unwrap_or_default();
        let tree = ContextTree::new(self.source.clone(), Root::from_fd(fd, scratch.path()), rules);
        let items = spool(store, tree.below(&LayerPath::root())?, time)?;
        let material = Material::repository(&self.url, self.reference.as_deref(), &found.commit);
        Ok(Checkout { items, material })
    }

    /// Returns the header for this repository's host: from the secrets, as in BuildKit, or from the
    /// address.
    fn login(&self, secrets: &BTreeMap<String, SecretSource>) -> Result<Option<Login>> {
        let Some((scheme, rest)) = self.url.split_once("://").filter(|_| is_url(&self.url)) else {
            return Ok(None);
        };
        let host = rest.split('/').next().unwrap_or(rest);
        let with = |header: String| Login {
            place: format!("{scheme}://{host}/"),
            header: format!("Authorization: {header}"),
        };
        let basic = |pair: &str| {
            format!("basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
        };
        for (name, is_token) in [("GIT_AUTH_HEADER", false), ("GIT_AUTH_TOKEN", true)] {
            // A secret without a host goes wherever the Kubefile leads, but not in plain text.
            let of_any = || secrets.get(name).filter(|_| scheme == "https");
            let Some(secret) = secrets.get(&format!("{name}.{host}")).or_else(of_any) else {
                continue;
            };
            let value = String::from_utf8(read_secret(secret)?)
                .map_err(|_| Error::usage(format!("secret `{name}` is not text")))?;
            let value = value.trim();
            let header =
                if is_token { basic(&format!("x-access-token:{value}")) } else { value.to_owned() };
            return Ok(Some(with(header)));
        }
        Ok(self.login.as_deref().map(|pair| with(basic(pair))))
    }
}

/// Copies the bytes of all files into one scratch file, so that the checkout can be removed.
fn spool(store: &Store, mut items: Vec<Item>, time: i64) -> Result<Vec<Item>> {
    let sum = items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.entry.size()));
    store.check_room(sum.saturating_add(RESERVE))?;
    let mut file = store.scratch_file()?;
    let mut offsets = Vec::new();
    let mut offset = 0;
    for item in &mut items {
        item.entry.mtime = Mtime { seconds: time, nanoseconds: 0 };
        if !matches!(item.entry.kind, EntryKind::Symlink { .. }) {
            item.entry.mode = as_if_unmasked(item.entry.mode);
        }
        offsets.push(offset);
        if let EntryKind::File { size } = item.entry.kind {
            // The digest covers the bytes copied here, not those that a stat cache remembers.
            let mut hasher = blake3::Hasher::new();
            let mut reader = Opened::open(item)?;
            let copied = io::copy(&mut reader, &mut Tee { file: &mut file, hasher: &mut hasher })
                .doing(|| format!("cannot read {}", item.entry.path))?;
            if copied != size {
                return Err(Error::failed(format!(
                    "{} changed while it was read",
                    item.entry.path
                )));
            }
            item.digest = Some(*hasher.finalize().as_bytes());
            offset += size;
        } else {
            item.digest = Some([0; 32]);
        }
    }
    let file = rewound(file)?;
    for (item, offset) in items.iter_mut().zip(offsets) {
        item.xattrs_unread = false;
        item.content = match item.entry.kind {
            EntryKind::File { .. } => Content::Range { file: Arc::clone(&file), offset },
            _ => Content::None,
        };
    }
    Ok(items)
}

/// Returns the mode that a file of a checkout has with a umask of 022: git gives everyone the bits of
/// the owner, and the caller's umask takes some away.
fn as_if_unmasked(mode: u32) -> u32 {
    let owner = (mode >> 6) & 0o7;
    (owner << 6) | ((owner & 0o5) * 0o11)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_without_a_host_is_for_https_alone() {
        let secret = |name: &str| (name.to_owned(), SecretSource::Value(b"hush".to_vec()));
        let place = |address: &str, secrets: &[&str]| {
            let repository = Repository::parse(address).unwrap().unwrap();
            let secrets = secrets.iter().map(|name| secret(name)).collect();
            repository.login(&secrets).unwrap().map(|login| login.place)
        };
        for name in ["GIT_AUTH_TOKEN", "GIT_AUTH_HEADER"] {
            let own = format!("{name}.h.example:1");
            let (plain, safe) = ("http://h.example:1/a.git", "https://h.example:1/a.git");
            assert_eq!(place(plain, &[name]), None);
            assert_eq!(place(safe, &[name]).as_deref(), Some("https://h.example:1/"));
            for address in [plain, safe] {
                assert!(place(address, &[&own]).is_some(), "{address}");
                assert!(place(&address.replace("h.", "i."), &[&own]).is_none(), "{address}");
            }
        }
    }
}
