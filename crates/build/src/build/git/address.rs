//! The addresses of git repositories as ADD takes them: which words are one, and what they choose. The
//! forms are BuildKit's (`frontend/dockerfile/dfgitutil`). Must not run git.

use crate::build::download::is_url;
use crate::build::percent::percent_decode;
use imgctl_base::error::{Error, Result};
use imgctl_base::text::without_logins;

/// A repository, and what to take of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::build) struct Repository {
    /// As in the Kubefile, for messages.
    pub(super) source: String,
    /// Without user and password, which no message and no file of the image has to know.
    pub(super) url: String,
    /// `USER:PASSWORD` of a URL of HTTP.
    pub(super) login: Option<String>,
    /// A branch, a tag, a commit or the name of a reference.
    pub(super) reference: Option<String>,
    /// The commit that it must be, or the beginning of its ID.
    pub(super) commit: Option<String>,
    /// Whether to fetch the commit, wherever the reference is now.
    pub(super) by_commit: bool,
    pub(super) subdirectory: String,
    pub(super) keep_git_dir: bool,
    pub(super) submodules: bool,
}

impl Repository {
    /// Parses a source of ADD: `git@…`, `git://…`, `ssh://…` and URLs of HTTP whose path ends with
    /// `.git` are repositories; `None` for anything else. `#REF:DIRECTORY` and the parameters choose.
    pub(in crate::build) fn parse(source: &str) -> Result<Option<Self>> {
        let (address, fragment) = source.split_once('#').unwrap_or((source, ""));
        let (url, query) = address.split_once('?').unwrap_or((address, ""));
        let is_git = ["git@", "git://", "ssh://"].iter().any(|scheme| source.starts_with(scheme))
            || is_url(source) && url.ends_with(".git");
        if !is_git {
            return Ok(None);
        }
        let (reference, subdirectory) = fragment.split_once(':').unwrap_or((fragment, ""));
        let (url, login) = without_login(url);
        let mut parsed = Self {
            source: without_logins(source).into_owned(),
            url,
            login,
            reference: Some(reference.to_owned()).filter(|reference| !reference.is_empty()),
            commit: None,
            by_commit: false,
            subdirectory: subdirectory.to_owned(),
            keep_git_dir: false,
            submodules: true,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            parsed.set(name, value)?;
        }
        let options = [Some(parsed.url.as_str()), parsed.reference.as_deref()];
        if options.into_iter().flatten().any(|word| word.starts_with('-')) {
            let message = format!("`{}` is not a git repository", parsed.source);
            return Err(Error::usage(message).about(source));
        }
        Ok(Some(parsed))
    }

    /// Applies one parameter of the address.
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = |why: String| {
            Error::usage(format!("`{}` is not a git repository: {why}", self.source))
                .about(&self.source)
        };
        let flag = || {
            truth(value).ok_or_else(|| wrong(format!("{name}={value} is neither true nor false")))
        };
        match name {
            "ref" | "branch" | "tag" => {
                if value.is_empty() {
                    return Err(wrong(format!("{name}= is empty")));
                }
                let reference = match name {
                    "branch" => below("refs/heads/", value),
                    "tag" => below("refs/tags/", value),
                    _ => value.to_owned(),
                };
                if self.reference.as_ref().is_some_and(|other| *other != reference) {
                    return Err(wrong(format!("{name}={value} is a second reference")));
                }
                self.reference = Some(reference);
            }
            "subdir" => {
                if !self.subdirectory.is_empty() && self.subdirectory != value {
                    return Err(wrong(format!("subdir={value} is a second directory")));
                }
                value.clone_into(&mut self.subdirectory);
            }
            "commit" | "checksum" => self.commit = Some(commit_id(value)?),
            "keep-git-dir" => self.keep_git_dir = flag()?,
            "submodules" => self.submodules = flag()?,
            "fetch-by-commit" => self.by_commit = flag()?,
            // The times are the commit's in any case: those of a checkout differ from build to build.
            "mtime" if matches!(value, "commit" | "checkout") => {}
            "mtime" => {
                return Err(wrong(format!("mtime={value} is neither commit nor checkout")));
            }
            _ => {
                return Err(wrong(format!("there is no parameter {name}")).hint(
                    "the parameters are ref, branch, tag, commit, subdir, keep-git-dir, submodules, \
                     fetch-by-commit and mtime",
                ));
            }
        }
        Ok(())
    }
}

/// Splits user and password off a URL of HTTP. A user alone is dropped: git would ask for the password.
fn without_login(url: &str) -> (String, Option<String>) {
    let parts = url.split_once("://").filter(|_| is_url(url));
    let Some((scheme, rest)) = parts else { return (url.to_owned(), None) };
    let end = rest.find('/').unwrap_or(rest.len());
    let Some(at) = rest[..end].rfind('@') else { return (url.to_owned(), None) };
    let login = String::from_utf8_lossy(&percent_decode(&rest[..at])).into_owned();
    (format!("{scheme}://{}", &rest[at + 1..]), Some(login).filter(|login| login.contains(':')))
}

fn below(prefix: &str, name: &str) -> String {
    if name.starts_with(prefix) { name.to_owned() } else { format!("{prefix}{name}") }
}

/// Checks a commit's ID or the beginning of one.
pub(super) fn commit_id(text: &str) -> Result<String> {
    if text.len() > 64 || !is_hex(text) {
        return Err(Error::usage(format!("`{text}` is not a commit")).about(text).hint(
            "of a git repository, --checksum and commit= take a commit's ID or its first 7 digits or more",
        ));
    }
    Ok(text.to_lowercase())
}

/// Whether `text` may be a commit's ID or the beginning of one.
pub(super) fn is_hex(text: &str) -> bool {
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
            ("https://me@example.com/a.git", "https://example.com/a.git"),
            ("git@example.com:a/b.git", "git@example.com:a/b.git"),
            ("git@example.com:a/b.git?subdir=c#v1", "git@example.com:a/b.git"),
            ("ssh://git@example.com/a#main", "ssh://git@example.com/a"),
        ] {
            assert_eq!(parsed(source).unwrap().url, url, "{source}");
        }
        let found = parsed("https://me:p%40ss@example.com:8443/a.git").unwrap();
        assert_eq!(found.url, "https://example.com:8443/a.git");
        assert_eq!(found.login.as_deref(), Some("me:p@ss"));
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
            ("?tag=refs/tags/v1", Some("refs/tags/v1"), ""),
            ("?tag=v1#refs/tags/v1", Some("refs/tags/v1"), ""),
            ("?ref=v1&subdir=a#v1:a", Some("v1"), "a"),
            ("?mtime=commit#v1", Some("v1"), ""),
            ("?mtime=checkout", None, ""),
        ] {
            let found = parsed(&format!("{url}{rest}")).unwrap();
            assert_eq!(found.reference.as_deref(), reference, "{rest}");
            assert_eq!(found.subdirectory, directory, "{rest}");
        }
        let found = parsed("git@example.com:a/b.git?subdir=/c#v1").unwrap();
        assert_eq!((found.reference.as_deref(), &*found.subdirectory), (Some("v1"), "/c"));
        let found = parsed(&format!(
            "{url}?keep-git-dir=1&submodules=false&fetch-by-commit&commit=0123ABCD"
        ))
        .unwrap();
        assert!(found.keep_git_dir && !found.submodules && found.by_commit);
        assert_eq!(found.commit.as_deref(), Some("0123abcd"));
        for (bad, why) in [
            ("?branch=a&tag=b", "second reference"),
            ("?ref=a#b", "second reference"),
            ("?tag=v1#v1", "second reference"),
            ("?subdir=a#v1:b", "second directory"),
            ("?ref=", "ref= is empty"),
            ("?depth=1", "no parameter depth"),
            ("?submodules=maybe", "neither true nor false"),
            ("?mtime=now", "neither commit nor checkout"),
            ("?commit=xyz", "not a commit"),
            ("#--upload-pack=x", "not a git repository"),
        ] {
            let error = Repository::parse(&format!("{url}{bad}")).unwrap_err();
            assert!(error.to_string().contains(why), "{bad}: {error}");
        }
    }
}
