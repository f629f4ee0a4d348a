//! Git repositories as sources of ADD, cloned with the installed git into a scratch directory. The
//! forms of an address are BuildKit's (`util/gitutil`); what git says decides about fall-backs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;

use crate::build::archive::Tee;
use crate::build::context::ContextTree;
use crate::build::download::is_url;
use crate::build::items::{Content, Item, Opened, SourceTree as _, rewound};
use crate::build::options::SecretSource;
use crate::build::run_mounts::read_secret;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_store::layer::{EntryKind, LayerPath, Mtime};
use imgctl_store::store::Store;

/// Protocols that git may use; `ext::` and `file` would run programs or read files on this machine.
const PROTOCOLS: &str = "git:http:https:ssh";
/// What a fetch takes if the address names nothing.
const DEFAULT: &str = "HEAD";

/// A repository, and what to take of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repository {
    /// As in the Kubefile, for messages.
    source: String,
    url: String,
    /// A branch, a tag, a commit or the name of a reference.
    reference: Option<String>,
    /// The commit that it must be, or the beginning of its ID.
    commit: Option<String>,
    subdirectory: String,
    keep_git_dir: Option<bool>,
    submodules: bool,
}

impl Repository {
    /// Parses a source of ADD: `git@…`, `git://…`, `ssh://…` and URLs of HTTP whose path ends with
    /// `.git` are repositories; `None` for anything else. `#REF:DIRECTORY` and the parameters ref,
    /// branch, tag, commit, subdir, keep-git-dir and submodules choose.
    pub(super) fn parse(source: &str) -> Result<Option<Self>> {
        let (address, fragment) = source.split_once('#').unwrap_or((source, ""));
        let is_scp = source.starts_with("git@");
        let (url, query) = match address.split_once('?') {
            Some((url, query)) if !is_scp => (url, query),
            _ => (address, ""),
        };
        let is_git = is_scp
            || ["git://", "ssh://"].iter().any(|scheme| source.starts_with(scheme))
            || is_url(source) && url.ends_with(".git");
        if !is_git {
            return Ok(None);
        }
        let (reference, subdirectory) = fragment.split_once(':').unwrap_or((fragment, ""));
        let mut parsed = Self {
            source: source.to_owned(),
            url: url.to_owned(),
            reference: Some(reference.to_owned()).filter(|reference| !reference.is_empty()),
            commit: None,
            subdirectory: subdirectory.to_owned(),
            keep_git_dir: None,
            submodules: true,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parsed.set(name, value)?;
        }
        let options = [Some(parsed.url.as_str()), parsed.reference.as_deref()];
        if options.into_iter().flatten().any(|word| word.starts_with('-')) {
            return Err(Error::usage(format!("`{source}` is not a git repository")).about(source));
        }
        Ok(Some(parsed))
    }

    /// Applies one parameter of the address.
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = |why: String| {
            Error::usage(format!("`{}` is not a git repository: {why}", self.source))
                .about(&self.source)
        };
        let reference = match name {
            "ref" => Some(value.to_owned()),
            "branch" => Some(format!("refs/heads/{value}")),
            "tag" => Some(format!("refs/tags/{value}")),
            _ => None,
        };
        match (name, reference) {
            (_, Some(_)) if value.is_empty() => return Err(wrong(format!("{name}= is empty"))),
            (_, Some(_)) if self.reference.is_some() => {
                return Err(wrong(format!("{name}={value} is a second reference")));
            }
            (_, reference @ Some(_)) => self.reference = reference,
            ("subdir", _) if !self.subdirectory.is_empty() => {
                return Err(wrong(format!("subdir={value} is a second directory")));
            }
            ("subdir", _) => value.clone_into(&mut self.subdirectory),
            ("commit" | "checksum", _) => self.commit = Some(commit_id(value)?),
            ("keep-git-dir", _) => {
                self.keep_git_dir = Some(truth(value).ok_or_else(|| {
                    wrong(format!("keep-git-dir={value} is neither true nor false"))
                })?);
            }
            ("submodules", _) => {
                self.submodules = truth(value).ok_or_else(|| {
                    wrong(format!("submodules={value} is neither true nor false"))
                })?;
            }
            _ => {
                return Err(wrong(format!("there is no parameter {name}")).hint(
                    "the parameters are ref, branch, tag, commit, subdir, keep-git-dir and submodules",
                ));
            }
        }
        Ok(())
    }

    /// Clones the repository and returns its files, which all get the time of the commit. `checksum`
    /// is the value of `--checksum`.
    pub(super) fn files(
        &self,
        store: &Store,
        keep_git_dir: bool,
        checksum: Option<&str>,
        secrets: &BTreeMap<String, SecretSource>,
    ) -> Result<Vec<Item>> {
        let checksum = checksum.map(commit_id).transpose()?;
        let scratch = store.scratch_directory()?;
        let git = Git { directory: scratch.path(), login: self.login(secrets)? };
        let doing = || format!("cannot clone {}", self.url);
        self.check_out(&git).context(doing)?;
        let ids = git.run(&["rev-parse", "FETCHED", "FETCHED^{commit}"]).context(doing)?;
        for expected in [&self.commit, &checksum].into_iter().flatten() {
            if !ids.lines().any(|id| id.starts_with(expected.as_str())) {
                let found = ids.lines().last().unwrap_or_default();
                return Err(Error::bad_content(format!(
                    "{} is at commit {found}, not at {expected}",
                    self.source
                ))
                .hint("the reference has moved, or the commit belongs to another one"));
            }
        }
        let time = git.run(&["log", "-1", "--format=%ct"])?.trim().parse().unwrap_or(0);
        // The subdirectory, including any symlinks, is resolved inside the checkout (CVE-2026-33748).
        let root = Root::open(scratch.path())?;
        let below = if self.subdirectory.is_empty() { "." } else { &self.subdirectory };
        let fd = root.open_directory(Path::new(below.trim_start_matches('/')))?;
        let keep = keep_git_dir || self.keep_git_dir.unwrap_or(false);
        let hidden: &[u8] = if keep { b"" } else { b"**/.git" };
        let rules = IgnoreRules::parse(hidden).unwrap_or_default();
        let tree = ContextTree::new(self.source.clone(), Root::from_fd(fd, scratch.path()), rules);
        spool(store, tree.below(&LayerPath::root())?, time)
    }

    /// Fetches what the address names and makes it the work tree, as the branch-less `FETCHED`.
    fn check_out(&self, git: &Git<'_>) -> Result<()> {
        let wanted = self.reference.as_deref().or(self.commit.as_deref()).unwrap_or(DEFAULT);
        git.run(&["init", "--quiet"])?;
        let mut fetched = self.fetch(git, wanted);
        if let Err(error) = &fetched
            && says(error, &["mismatched algorithms"])
        {
            let metadata = git.directory.join(".git");
            std::fs::remove_dir_all(&metadata).path("remove", &metadata)?;
            git.run(&["init", "--quiet", "--object-format=sha256"])?;
            fetched = self.fetch(git, wanted);
        }
        let revision = fetched?;
        git.run(&["update-ref", "FETCHED", &revision])?;
        git.run(&["-c", "advice.detachedHead=false", "checkout", "--quiet", &revision])?;
        if self.submodules && git.directory.join(".gitmodules").is_file() {
            // Their addresses may be relative to the repository's.
            git.run(&["remote", "add", "origin", &self.url])?;
            let update = ["submodule", "--quiet", "update", "--init", "--recursive"];
            let shallow = [&update[..], &["--depth", "1"]].concat();
            git.run(&shallow).or_else(|_| git.run(&update))?;
        }
        Ok(())
    }

    /// Fetches `wanted`, alone if the server can do that. Returns the revision to check out.
    fn fetch(&self, git: &Git<'_>, wanted: &str) -> Result<String> {
        let fetch = ["fetch", "--quiet"];
        let place = ["--", &self.url, wanted];
        let Err(error) = git.run(&[&fetch[..], &["--depth", "1"], &place].concat()) else {
            return Ok("FETCH_HEAD".to_owned());
        };
        if says(&error, &["dumb http transport"]) && git.run(&[&fetch[..], &place].concat()).is_ok()
        {
            return Ok("FETCH_HEAD".to_owned());
        }
        // Not every server gives out a commit that no reference names, and none a shortened one.
        let unnamed =
            ["unadvertised object", "not our ref", "couldn't find remote ref", "dumb http"];
        if is_hex(wanted) && says(&error, &unnamed) {
            let all = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
            git.run(&[&fetch[..], &["--", &self.url], &all].concat())?;
            let revision = format!("{wanted}^{{commit}}");
            return git
                .run(&["rev-parse", "--verify", "--quiet", "--end-of-options", &revision])
                .map(|id| id.trim().to_owned())
                .map_err(|_| error);
        }
        Err(error)
    }

    /// Returns the header that the secrets give for this repository's host (BuildKit).
    fn login(&self, secrets: &BTreeMap<String, SecretSource>) -> Result<Option<Login>> {
        let Some((scheme, rest)) = self.url.split_once("://").filter(|_| is_url(&self.url)) else {
            return Ok(None);
        };
        let host = rest.split('/').next().unwrap_or(rest).rsplit('@').next().unwrap_or(rest);
        let place = format!("{scheme}://{host}/");
        for (name, is_token) in [("GIT_AUTH_HEADER", false), ("GIT_AUTH_TOKEN", true)] {
            let own = format!("{name}.{host}");
            let Some(secret) = secrets.get(&own).or_else(|| secrets.get(name)) else { continue };
            let value = String::from_utf8(read_secret(secret)?)
                .map_err(|_| Error::usage(format!("secret `{name}` is not text")))?;
            let value = value.trim();
            let header = if is_token {
                let pair = format!("x-access-token:{value}");
                format!("basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
            } else {
                value.to_owned()
            };
            return Ok(Some(Login { place, header: format!("Authorization: {header}") }));
        }
        Ok(None)
    }
}

/// Checks a commit's ID or the beginning of one.
fn commit_id(text: &str) -> Result<String> {
    if text.len() < 7 || text.len() > 64 || !is_hex(text) {
        return Err(Error::usage(format!("`{text}` is not a commit")).about(text).hint(
            "of a git repository, --checksum and commit= take a commit's ID or its first 7 digits or more",
        ));
    }
    Ok(text.to_lowercase())
}

fn is_hex(text: &str) -> bool {
    text.len() >= 7 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A truth value as Go's flags and BuildKit's parameters write it; no value is true.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "" | "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

fn says(error: &Error, words: &[&str]) -> bool {
    let text = error.chain().join(" ");
    words.iter().any(|word| text.contains(word))
}

/// An `Authorization` header for the URLs below `place`.
struct Login {
    place: String,
    header: String,
}

/// The installed git, in one directory.
struct Git<'a> {
    directory: &'a Path,
    login: Option<Login>,
}

impl Git<'_> {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(self.directory)
            .env("LC_ALL", "C")
            .env("GIT_ALLOW_PROTOCOL", PROTOCOLS)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_LFS_SKIP_SMUDGE", "1");
        if let Some(login) = &self.login {
            // Not as an argument: those are visible to every user of the machine.
            command
                .env("GIT_CONFIG_COUNT", "1")
                .env("GIT_CONFIG_KEY_0", format!("http.{}.extraHeader", login.place))
                .env("GIT_CONFIG_VALUE_0", &login.header);
        }
        let output = command
            .output()
            .doing(|| "cannot run git, which ADD needs for a repository".to_owned())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(Kind::Network, format!("git said: {said}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Copies the bytes of all files into one scratch file, so that the checkout can be removed.
fn spool(store: &Store, mut items: Vec<Item>, time: i64) -> Result<Vec<Item>> {
    let mut file = store.scratch_file()?;
    let mut offsets = Vec::new();
    let mut offset = 0;
    for item in &mut items {
        item.entry.mtime = Mtime { seconds: time, nanoseconds: 0 };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(source: &str) -> Option<Repository> {
        Repository::parse(source).unwrap()
    }

    #[test]
    fn repositories_are_told_from_files() {
        for other in
            ["https://example.com/a.tar.gz", "https://example.com/a?x=.git", "a.git", "git"]
        {
            assert_eq!(parsed(other), None, "{other}");
        }
        for (source, url) in [
            ("https://example.com/a.git#v1:sub", "https://example.com/a.git"),
            ("https://example.com/a.git?ref=v1", "https://example.com/a.git"),
            ("git@example.com:a/b.git", "git@example.com:a/b.git"),
            ("ssh://git@example.com/a#main", "ssh://git@example.com/a"),
        ] {
            assert_eq!(parsed(source).unwrap().url, url, "{source}");
        }
    }

    #[test]
    fn addresses_choose_a_reference_and_a_directory() {
        let url = "https://example.com/a.git";
        for (rest, reference, directory) in [
            ("", None, ""),
            ("#v1", Some("v1"), ""),
            ("#:sub", None, "sub"),
            ("?ref=v1&subdir=a/b", Some("v1"), "a/b"),
            ("?branch=main#:sub", Some("refs/heads/main"), "sub"),
            ("?tag=v1", Some("refs/tags/v1"), ""),
        ] {
            let found = parsed(&format!("{url}{rest}")).unwrap();
            assert_eq!(found.reference.as_deref(), reference, "{rest}");
            assert_eq!(found.subdirectory, directory, "{rest}");
        }
        let found =
            parsed(&format!("{url}?keep-git-dir=1&submodules=false&commit=0123ABCD")).unwrap();
        assert_eq!((found.keep_git_dir, found.submodules), (Some(true), false));
        assert_eq!(found.commit.as_deref(), Some("0123abcd"));
        for (bad, why) in [
            ("?branch=a&tag=b", "second reference"),
            ("?ref=a#b", "second reference"),
            ("?subdir=a#v1:b", "second directory"),
            ("?ref=", "ref= is empty"),
            ("?depth=1", "no parameter depth"),
            ("?submodules=maybe", "neither true nor false"),
            ("?commit=xyz", "not a commit"),
            ("#--upload-pack=x", "not a git repository"),
        ] {
            let error = Repository::parse(&format!("{url}{bad}")).unwrap_err();
            assert!(error.to_string().contains(why), "{bad}: {error}");
        }
    }
}
