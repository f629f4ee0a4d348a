//! Mirrors of addresses: which directory or server ADD asks in place of an address. Only how a file is
//! fetched depends on them: its name, the lock, the provenance and the keys of caches have the address
//! itself. Must not read what a mirror has.

use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::Deserialize;

use crate::build::percent::percent_decode;
use imgctl_base::error::{Error, Result};

/// Maximum size of a file of mirrors, in bytes.
pub const MAX_MIRRORS: u64 = 1 << 20;

/// All mirrors; for an address, the longest prefix that fits counts, and of two equal ones the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors(Vec<Mirror>);

/// One mirror: addresses that begin with `from` are below `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    from: String,
    to: Target,
    /// As given, for messages.
    shown: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Directory(PathBuf),
    /// A URL that ends with `/`.
    Server(String),
}

/// Where a mirror has the file of an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A file below a directory.
    File {
        directory: PathBuf,
        path: PathBuf,
    },
    Url(Url),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    mirror: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    from: String,
    to: String,
}

impl Mirrors {
    /// Adds a mirror, after those that are there. A directory is relative to `base`.
    pub fn add(&mut self, from: &str, to: &str, base: &Path) -> Result<()> {
        let wrong = |why: &str| Err(Error::usage(format!("the mirror `{from}={to}`: {why}")));
        let schemes = ["https://", "http://", "git://", "ssh://"];
        let from = match (schemes.contains(&from), Url::parse(from)) {
            (true, _) => from.to_owned(),
            (false, Ok(url)) if schemes.iter().any(|scheme| from.starts_with(scheme)) => {
                if !url.username().is_empty() || url.query().is_some() || url.fragment().is_some() {
                    return wrong("FROM has a user, a query or a fragment");
                }
                url.to_string()
            }
            _ => return wrong("FROM is not the beginning of an address, as https://dl.k8s.io/"),
        };
        let target = match (to.strip_prefix("file://"), to.split_once("://")) {
            (Some(path), _) if path.starts_with('/') => {
                let path = percent_decode(path);
                Target::Directory(PathBuf::from(String::from_utf8_lossy(&path).into_owned()))
            }
            (None, Some(("http" | "https", _))) => match Url::parse(to) {
                Ok(url) if url.query().is_none() && url.fragment().is_none() => {
                    Target::Server(format!("{}/", url.as_str().trim_end_matches('/')))
                }
                _ => return wrong("TO is not a URL to which a path can be added"),
            },
            (Some(_), _) | (None, Some(_)) => {
                return wrong("TO is neither a directory nor an address of file, http or https");
            }
            (None, None) if to.is_empty() => return wrong("TO is empty"),
            (None, None) => Target::Directory(base.join(to)),
        };
        self.0.push(Mirror { from, to: target, shown: to.to_owned() });
        Ok(())
    }

    /// Adds the mirrors of the file called `name`, whose text is TOML: `[[mirror]]` with `from` and `to`.
    pub fn add_file(&mut self, text: &str, name: &Path) -> Result<()> {
        let shown = name.display();
        let file: File = toml::from_str(text).map_err(|error| {
            Error::usage(format!("cannot use the mirrors in {shown}"))
                .caused_by(error)
                .hint("each mirror is [[mirror]] with from = \"https://…/\" and to = \"…\"")
        })?;
        let base = name.parent().unwrap_or(Path::new(""));
        for Entry { from, to } in &file.mirror {
            self.add(from, to, base).map_err(|error| error.context(format!("in {shown}")))?;
        }
        Ok(())
    }

    /// Returns the mirror of `address` as it was given, for messages.
    pub(super) fn name_for(&self, address: &str) -> Option<&str> {
        self.mirror_of(address).map(|mirror| mirror.shown.as_str())
    }

    /// Returns where the mirror of `address` has its file; `None` if it has no mirror.
    pub(super) fn place_of(&self, address: &Url) -> Result<Option<Place>> {
        let Some(mirror) = self.mirror_of(address.as_str()) else { return Ok(None) };
        let rest = address.as_str().get(mirror.from.len()..).unwrap_or_default();
        let rest = rest.split('#').next().unwrap_or_default().trim_start_matches('/');
        match &mirror.to {
            Target::Server(base) => {
                let url = Url::parse(&format!("{base}{rest}")).map_err(|error| {
                    Error::usage(format!("`{base}{rest}` is not a URL")).caused_by(error)
                })?;
                Ok(Some(Place::Url(url)))
            }
            Target::Directory(directory) => {
                let decoded = String::from_utf8(percent_decode(rest)).map_err(|_| {
                    Error::usage(format!("{address} is not the name of a file in a directory"))
                })?;
                Ok(Some(Place::File { directory: directory.clone(), path: PathBuf::from(decoded) }))
            }
        }
    }

    /// Returns whether the mirror of `address` is a directory.
    pub(super) fn is_local(&self, address: &str) -> bool {
        self.mirror_of(address).is_some_and(|mirror| matches!(mirror.to, Target::Directory(_)))
    }

    /// Returns git's own settings of the same meaning, as names and values.
    pub(super) fn git_settings(&self) -> Vec<(String, String)> {
        let mut settings: Vec<(String, String)> = Vec::new();
        for mirror in &self.0 {
            let to = match &mirror.to {
                Target::Directory(directory) => format!("{}/", directory.display()),
                Target::Server(base) => base.clone(),
            };
            if !settings.iter().any(|(_, from)| *from == mirror.from) {
                settings.push((format!("url.{to}.insteadOf"), mirror.from.clone()));
            }
        }
        settings
    }

    fn mirror_of(&self, address: &str) -> Option<&Mirror> {
        let fits = |mirror: &&Mirror| {
            let rest = address.strip_prefix(&mirror.from);
            rest.is_some_and(|rest| {
                mirror.from.ends_with('/') || rest.is_empty() || rest.starts_with(['/', '?', '#'])
            })
        };
        // Of several maxima, `max_by_key` returns the last one.
        self.0.iter().rev().filter(fits).max_by_key(|mirror| mirror.from.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrors(pairs: &[(&str, &str)]) -> Mirrors {
        let mut mirrors = Mirrors::default();
        for (from, to) in pairs {
            mirrors.add(from, to, Path::new("/base")).unwrap();
        }
        mirrors
    }

    fn place(mirrors: &Mirrors, address: &str) -> String {
        match mirrors.place_of(&Url::parse(address).unwrap()).unwrap() {
            None => "-".to_owned(),
            Some(Place::Url(url)) => url.to_string(),
            Some(Place::File { directory, path }) => {
                format!("{} {}", directory.display(), path.display())
            }
        }
    }

    #[test]
    fn the_longest_prefix_counts_and_ends_at_a_slash() {
        let all = mirrors(&[
            ("https://dl.k8s.io", "http://m.lan/k8s"),
            ("https://dl.k8s.io/v1", "one"),
            ("https://dl.k8s.io/v1", "two"),
            ("https://", "file:///srv/all%20of%20it"),
        ]);
        for (address, expected) in [
            ("https://dl.k8s.io/v2/a?b=c#d", "http://m.lan/k8s/v2/a?b=c"),
            ("https://dl.k8s.io/v1/a%20b", "/base/one a b"),
            ("https://dl.k8s.io/v1", "/base/one "),
            ("https://dl.k8s.io/v10/a", "http://m.lan/k8s/v10/a"),
            ("https://DL.k8s.io:443/v1/../v3", "http://m.lan/k8s/v3"),
            ("https://dl.k8s.io.evil.example/v1", "/srv/all of it dl.k8s.io.evil.example/v1"),
            ("http://dl.k8s.io/v1", "-"),
        ] {
            assert_eq!(place(&all, address), expected, "{address}");
        }
    }

    #[test]
    fn what_is_no_mirror_is_refused() {
        for (from, to) in [
            ("dl.k8s.io", "/srv"),
            ("ftp://dl.k8s.io", "/srv"),
            ("https://user@dl.k8s.io/", "/srv"),
            ("https://dl.k8s.io/?q", "/srv"),
            ("https://dl.k8s.io/", ""),
            ("https://dl.k8s.io/", "ftp://m.lan/"),
            ("https://dl.k8s.io/", "file://relative"),
            ("https://dl.k8s.io/", "http://m.lan/?q="),
        ] {
            assert!(Mirrors::default().add(from, to, Path::new("/")).is_err(), "{from}={to}");
        }
    }

    #[test]
    fn files_have_mirrors_relative_to_themselves() {
        let text = "[[mirror]]\nfrom = \"https://a.io/\"\nto = \"files\"\n";
        let mut all = Mirrors::default();
        all.add_file(text, Path::new("/etc/imgctl/mirrors.toml")).unwrap();
        assert_eq!(place(&all, "https://a.io/x"), "/etc/imgctl/files x");
        for wrong in ["mirror = 1", "[[mirror]]\nfrom = \"https://a.io/\"\n", "[[mirrors]]\n"] {
            let error = all.add_file(wrong, Path::new("/etc/m.toml")).unwrap_err();
            assert!(error.to_string().contains("/etc/m.toml"), "{error}");
        }
    }

    #[test]
    fn git_gets_the_same_mirrors() {
        let all =
            mirrors(&[("https://g.io/", "d"), ("https://g.io/", "e"), ("git://", "http://m")]);
        let expected = [
            ("url./base/d/.insteadOf".to_owned(), "https://g.io/".to_owned()),
            ("url.http://m/.insteadOf".to_owned(), "git://".to_owned()),
        ];
        assert_eq!(all.git_settings(), expected);
        assert!(all.is_local("https://g.io/x.git") && !all.is_local("git://g.io/x.git"));
    }
}
