//! containerd's `certs.d/HOST/hosts.toml`: mirrors, the address of the registry itself, and their
//! TLS settings (containerd, docs/hosts.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use toml::Spanned;

use crate::config_file;
use crate::registries::{Certificates, Pem};
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

/// Directory that applies to every host without its own.
const DEFAULT: &str = "_default";

/// Content of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts {
    /// Mirrors, in the order of the file.
    pub(super) mirrors: Vec<Place>,
    /// The registry itself: `server` and the settings outside of `[host]`.
    pub(super) server: Place,
}

/// One address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// `host[:port]`; empty for the registry's own name.
    pub(super) host: String,
    /// Prefix of the repository at this address: empty, or `namespace/`.
    pub(super) prefix: String,
    /// Path of the API; empty for `v2`.
    pub(super) path: String,
    /// Headers that the address receives with every request.
    pub(super) headers: Vec<(String, Secret)>,
    /// `None` if neither the scheme nor `skip_verify` specifies it.
    pub(super) insecure: Option<bool>,
    /// Capability `pull`.
    pub(super) by_digest: bool,
    /// Capability `resolve`.
    pub(super) by_tag: bool,
    pub(super) certificates: Certificates,
}

impl Hosts {
    /// Returns the content of the first file for `host[:port]` in `trees`. Only the TLS settings of
    /// a `_default` file count: its mirrors distinguish registries by a parameter that only
    /// containerd sends, and without it they may return another registry's image.
    pub(super) fn find(trees: &[PathBuf], host: &str) -> Result<Option<Self>> {
        if host.contains('/') || host.starts_with('.') {
            return Ok(None);
        }
        for tree in trees {
            let mut names = vec![host.to_owned()];
            if let Some((name, port)) = host.rsplit_once(':') {
                names.insert(0, format!("{name}_{port}_"));
            }
            for name in names {
                let directory = tree.join(name);
                if let Some(hosts) = Self::read(&directory)? {
                    return Ok(Some(hosts));
                }
            }
            if let Some(hosts) = Self::read(&tree.join(DEFAULT))? {
                return Ok(Some(Self {
                    mirrors: Vec::new(),
                    server: Place {
                        host: String::new(),
                        prefix: String::new(),
                        path: String::new(),
                        headers: Vec::new(),
                        ..hosts.server
                    },
                }));
            }
        }
        Ok(None)
    }

    fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join("hosts.toml");
        let Some(text) = config_file::text(&path)? else {
            return Ok(None);
        };
        let at =
            |offset: usize| format!("{}:{}", path.display(), config_file::line_of(&text, offset));
        let file: File = toml::from_str(&text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            Error::usage(format!("{}: {}", at(offset), error.message()))
                .hint("the format is that of containerd's docs/hosts.md")
        })?;
        let server = file.settings.place(file.server.as_deref(), directory);
        let server =
            server.map_err(|why| Error::usage(format!("{}: server: {why}", path.display())))?;
        let mut tables: Vec<(String, Spanned<Settings>)> = file.host.into_iter().collect();
        tables.sort_by_key(|(_, table)| table.span().start);
        let mut mirrors = Vec::new();
        for (address, table) in tables {
            let place = table.get_ref().place(Some(&address), directory);
            let place = place.map_err(|why| {
                Error::usage(format!("{}: host `{address}`: {why}", at(table.span().start)))
            })?;
            if place.by_digest || place.by_tag {
                mirrors.push(place);
            }
        }
        Ok(Some(Self { mirrors, server }))
    }
}

#[derive(Deserialize)]
struct File {
    server: Option<String>,
    #[serde(flatten)]
    settings: Settings,
    #[serde(default)]
    host: BTreeMap<String, Spanned<Settings>>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    capabilities: Vec<String>,
    ca: Option<OneOrMore>,
    client: Option<Client>,
    skip_verify: Option<bool>,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: BTreeMap<String, Values>,
}

/// Values of one header.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(PathBuf),
    More(Vec<PathBuf>),
}

/// A file that contains certificate and key, or pairs of files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Client {
    Both(PathBuf),
    Files(Vec<ClientFiles>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ClientFiles {
    Both(PathBuf),
    Pair(Vec<PathBuf>),
}

impl Settings {
    /// Returns the place at `address`; the error describes the problem. Paths are relative to
    /// `directory`.
    fn place(
        &self,
        address: Option<&str>,
        directory: &Path,
    ) -> std::result::Result<Place, &'static str> {
        let (host, prefix, path, is_plain) = match address.filter(|address| !address.is_empty()) {
            Some(address) => self.parts(address)?,
            None => ("", String::new(), String::new(), false),
        };
        let can = |what: &str| {
            self.capabilities.is_empty()
                || self.capabilities.iter().any(|known| known.eq_ignore_ascii_case(what))
        };
        let mut headers = Vec::new();
        for (name, values) in &self.header {
            let values = match values {
                Values::One(value) => std::slice::from_ref(value),
                Values::More(values) => values,
            };
            for value in values {
                let is_valid =
                    HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
                if !is_valid {
                    return Err("a header is not valid");
                }
                headers.push((name.clone(), Secret::new(value.clone())));
            }
        }
        let file = |path: &PathBuf| Pem::File(directory.join(path));
        let authorities = match &self.ca {
            None => Vec::new(),
            Some(OneOrMore::One(path)) => vec![file(path)],
            Some(OneOrMore::More(paths)) => paths.iter().map(file).collect(),
        };
        let both = |path: &PathBuf| Some((file(path), file(path)));
        let client = match &self.client {
            None => None,
            Some(Client::Both(path)) => both(path),
            Some(Client::Files(files)) => match files.first() {
                None => None,
                Some(ClientFiles::Both(path)) => both(path),
                Some(ClientFiles::Pair(pair)) => match &pair[..] {
                    [path] => both(path),
                    [path, none] if none.as_os_str().is_empty() => both(path),
                    [certificate, key] => Some((file(certificate), file(key))),
                    _ => return Err("client is not a pair of certificate and key"),
                },
            },
        };
        Ok(Place {
            host: host.to_owned(),
            prefix,
            path,
            headers,
            insecure: if is_plain { Some(true) } else { self.skip_verify },
            by_digest: can("pull"),
            by_tag: can("resolve"),
            certificates: Certificates { authorities, client },
        })
    }

    /// Returns the host, the prefix of repositories, the path of the API, and whether plain HTTP is
    /// used. As in containerd, `/v2` is appended to a path that does not end with it, unless
    /// `override_path` is set.
    fn parts<'a>(
        &self,
        address: &'a str,
    ) -> std::result::Result<(&'a str, String, String, bool), &'static str> {
        let (scheme, rest) = address.split_once("://").unwrap_or(("https", address));
        let is_plain = match &*scheme.to_ascii_lowercase() {
            "https" => false,
            "http" => true,
            _ => return Err("the scheme is neither http nor https"),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || host.contains(['?', '#', '@']) {
            return Err("there is no host");
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if path.contains(['?', '#', '\\']) || parts.contains(&"..") {
            return Err("the path has a query or `..`");
        }
        let (prefix, api) = match &parts[..] {
            // Below /v2/, the path is the beginning of the repository's name.
            ["v2", below @ ..] if self.override_path && !below.is_empty() => {
                (format!("{}/", below.join("/")), String::new())
            }
            [] | ["v2"] => (String::new(), String::new()),
            [.., "v2"] => (String::new(), parts.join("/")),
            _ if self.override_path => (String::new(), parts.join("/")),
            _ => (String::new(), format!("{}/v2", parts.join("/"))),
        };
        Ok((host, prefix, api, is_plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hosts> {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("r.io_5000_");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("hosts.toml"), text).unwrap();
        let trees = ["/nonexistent".into(), tree.path().to_owned()];
        assert!(Hosts::find(&trees, "other.io:5000").unwrap().is_none());
        Ok(Hosts::find(&trees, "r.io:5000")?.unwrap())
    }

    #[test]
    fn mirrors_come_in_the_order_of_the_file() {
        let hosts = read(
            r#"
            server = "https://origin.io"
            ca = "/ca.pem"
            [host."https://z.io"]
            capabilities = ["pull", "resolve", "push"]
            ca = ["a.pem", "/b.pem"]
            client = [["c.pem", "k.pem"], ["d.pem", "l.pem"]]
            [host."http://m.io:5000"]
            capabilities = ["pull"]
            client = "both.pem"
            [host."https://a.io/v2/proxy"]
            client = [["both.pem", ""]]
            override_path = true
            skip_verify = true
            [host."https://push.io"]
            capabilities = ["push"]
            [host."https://z.io".header]
            x = "y"
            "#,
        )
        .unwrap();
        let told: Vec<_> = hosts
            .mirrors
            .iter()
            .map(|place| {
                let host = format!("{}/{}", place.host, place.prefix);
                (host, place.insecure, place.by_digest, place.by_tag)
            })
            .collect();
        assert_eq!(
            told,
            [
                ("z.io/".to_owned(), None, true, true),
                ("m.io:5000/".to_owned(), Some(true), true, false),
                ("a.io/proxy/".to_owned(), Some(true), true, true),
            ]
        );
        assert_eq!(hosts.server.host, "origin.io");
        assert_eq!(hosts.server.certificates.authorities, [Pem::from(Path::new("/ca.pem"))]);
        let end = |pem: &Pem| pem.to_string().rsplit('/').next().unwrap().to_owned();
        let ends = |files: &[Pem]| files.iter().map(end).collect::<Vec<_>>();
        let certificates = &hosts.mirrors[0].certificates;
        assert_eq!(ends(&certificates.authorities), ["a.pem", "b.pem"]);
        let (certificate, key) = certificates.client.clone().unwrap();
        assert_eq!(ends(&[certificate, key]), ["c.pem", "k.pem"]);
        for mirror in &hosts.mirrors[1..3] {
            let (certificate, key) = mirror.certificates.client.clone().unwrap();
            assert_eq!(certificate, key);
        }
    }

    #[test]
    fn paths_mean_what_they_mean_in_containerd() {
        for (path, overrides, expected) in [
            ("", false, ("", "")),
            ("/", false, ("", "")),
            ("/v2/", false, ("", "")),
            ("/api/docker/hub", false, ("", "api/docker/hub/v2")),
            ("/api/docker//hub/v2/", false, ("", "api/docker/hub/v2")),
            ("/v2/proxy", false, ("", "v2/proxy/v2")),
            ("/api/docker/hub/v2", true, ("", "api/docker/hub/v2")),
            ("/api/docker/hub", true, ("", "api/docker/hub")),
            ("/v2/proxy/cache", true, ("proxy/cache/", "")),
        ] {
            let text = format!("[host.\"https://a.io{path}\"]\noverride_path = {overrides}");
            let hosts = read(&text).unwrap();
            let [mirror] = &hosts.mirrors[..] else { panic!("{path}") };
            assert_eq!((&*mirror.host, mirror.insecure), ("a.io", None), "{path}");
            assert_eq!((&*mirror.prefix, &*mirror.path), expected, "{path} {overrides}");
        }
        let hosts = read("server = \"https://a.io/hub\"\n").unwrap();
        assert_eq!((&*hosts.server.host, &*hosts.server.path), ("a.io", "hub/v2"));
        let hosts = read("server = \"\"\n[host.\"HTTP://a.io\"]\ncapabilities = [\"Pull\"]\n");
        let Hosts { mirrors, server } = hosts.unwrap();
        assert_eq!((&*server.host, mirrors[0].insecure), ("", Some(true)));
        assert_eq!((mirrors[0].by_digest, mirrors[0].by_tag), (true, false));
    }

    #[test]
    fn headers_are_read_and_not_shown() {
        let text = "[host.\"https://a.io\"]\n[host.\"https://a.io\".header]\nx-key = \"sEcret\"\nmany = [\"1\", \"2\"]\n";
        let hosts = read(text).unwrap();
        let headers = &hosts.mirrors[0].headers;
        let told: Vec<_> = headers.iter().map(|(name, value)| (&**name, value.expose())).collect();
        assert_eq!(told, [("many", "1"), ("many", "2"), ("x-key", "sEcret")]);
        assert!(!format!("{hosts:?}").contains("sEcret"));
    }

    #[test]
    fn mistakes_are_located() {
        for (text, expected) in [
            ("server = 1", "hosts.toml:1: "),
            ("\n\n[host.\"x\"]\nskip_verify = 3", "hosts.toml:4: "),
            ("\n[host.\"ftp://x\"]", "hosts.toml:2: "),
            ("[host.\"https://x/a?b\"]", "a query"),
            ("[host.\"https://x/../a\"]", "a query or `..`"),
            ("[host.\"https://x\"]\nheader.\"a b\" = \"c\"", "a header is not valid"),
            ("[host.\"https://x\"]\nclient=[[\"a\",\"b\",\"c\"]]", "a pair"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_default_file_gives_tls_settings_only() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("_default");
        std::fs::create_dir(&directory).unwrap();
        let text = "server = 'https://x.io'\nskip_verify = true\n[host.'https://m.io']\n";
        std::fs::write(directory.join("hosts.toml"), text).unwrap();
        let hosts = Hosts::find(&[tree.path().to_owned()], "any.io").unwrap().unwrap();
        assert!(hosts.mirrors.is_empty());
        assert_eq!(hosts.server.host, "");
        assert_eq!(hosts.server.insecure, Some(true));
    }
}
