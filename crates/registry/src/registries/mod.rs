//! Sources of a registry's content: \`registries.conf\` with its mirrors, insecure and blocked
//! registries and short names, \`certs.d\` and \`hosts.toml\`, docker's \`daemon.json\`.
//!
//! containers-registries.conf(5), containers-certs.d(5). Must not depend on HTTP or credentials.
//! cli/ provides the list of files.

mod conf;
mod docker_daemon;
mod hosts_toml;
mod names;
mod pem;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::config_file;
use crate::registries::conf::{Conf, Rule, ShortNames};
use crate::registries::docker_daemon::DockerDaemon;
use crate::registries::hosts_toml::{Hosts, Place};
use crate::registries::names::{Name, api_host, is_loopback};
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_base::image::reference::DOCKER_HUB;
use imgctl_base::secret::Secret;

pub(crate) use crate::registries::names::configured_host;
pub use crate::registries::pem::Pem;

/// Content of the configuration files. The default is empty: every registry uses https; plain http
/// is used only for loopback, see [`Registries::route`].
#[derive(Clone, Debug, Default)]
pub struct Registries {
    conf: Conf,
    docker: DockerDaemon,
    containerd_trees: Vec<PathBuf>,
    certificate_trees: Vec<PathBuf>,
    certificate_directory: Option<PathBuf>,
}

/// Configuration files for registries. Missing files are ignored.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationFiles {
    /// The main `registries.conf`: the only one that may use version 1.
    pub main: Option<PathBuf>,
    /// Files read after it, in order; later ones take precedence.
    pub drop_ins: Vec<PathBuf>,
    /// docker's `daemon.json` files.
    pub docker_daemons: Vec<PathBuf>,
    /// containerd's `certs.d` trees, in order, for `HOST/hosts.toml`.
    pub containerd_trees: Vec<PathBuf>,
    /// `certs.d` trees, in order.
    pub certificate_trees: Vec<PathBuf>,
    /// `--cert-dir`: used for every host instead of the trees.
    pub certificate_directory: Option<PathBuf>,
}

/// One source or destination of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `host[:port]`.
    pub host: String,
    /// Name of the repository at this endpoint.
    pub repository: String,
    /// Path of the API: `v2` if not configured otherwise.
    pub path: String,
    /// Headers that only this host receives.
    pub headers: Vec<(String, Secret)>,
    /// TLS without verification, or plain HTTP if the host does not use TLS.
    pub insecure: bool,
    /// Whether to use it for digests, for tags, or for both (`pull-from-mirror`).
    pub by_digest: bool,
    pub(crate) by_tag: bool,
    /// CA, client certificate and key files.
    pub certificates: Certificates,
}

/// Endpoints from which a repository is read and to which it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Endpoints for reading: mirrors in order, the origin last.
    pub read: Vec<Endpoint>,
    /// Endpoint for writing, never a mirror.
    pub write: Endpoint,
}

impl Registries {
    /// Reads the files. Fails with the line number if a file does not parse.
    pub fn read(files: ConfigurationFiles) -> Result<Self> {
        let mut conf = Conf::default();
        if let Some(main) = &files.main {
            conf.add(main, false)?;
        }
        for path in &files.drop_ins {
            conf.add(path, true)?;
        }
        let mut docker = DockerDaemon::default();
        for path in &files.docker_daemons {
            docker.add(path)?;
        }
        Ok(Self {
            conf,
            docker,
            containerd_trees: files.containerd_trees,
            certificate_trees: files.certificate_trees,
            certificate_directory: files.certificate_directory,
        })
    }

    /// Returns `credential-helpers` of registries.conf, if any.
    pub fn credential_helpers(&self) -> &[String] {
        self.conf.credential_helpers.as_deref().unwrap_or_default()
    }

    /// Returns the endpoints of the repository of `reference`. `docker.io` becomes
    /// `registry-1.docker.io`, and `library/` is added there. `localhost`, 127.0.0.0/8 and ::1 are
    /// insecure unless configured otherwise. Fails with kind Denied for a blocked registry.
    pub fn route(&self, reference: &Reference) -> Result<Route> {
        let name = Name::of(reference)?;
        let rule = self.conf.rule_for(&name.text());
        if let Some(Rule { blocked: true, prefix, .. }) = rule {
            return Err(Error::new(
                Kind::Denied,
                format!("{}/{} is blocked", name.host, name.repository),
            )
            .hint(format!("registries.conf has `blocked` for {prefix}")));
        }
        let insecure = rule.and_then(|rule| rule.insecure);
        let read = self.places_to_read(&name, rule, insecure)?;
        let mut write = self.endpoint(&name, insecure)?;
        // Settings for the registry itself in hosts.toml also apply to writing, but its `server`
        // applies only to reading.
        if let Some(known) = read.last().filter(|known| known.host == write.host) {
            write.insecure = known.insecure;
            write.certificates = known.certificates.clone();
            write.headers.clone_from(&known.headers);
        }
        Ok(Route { read, write })
    }

    /// Returns the mirrors of registries.conf, containerd and docker, in this order, then the
    /// registry itself.
    fn places_to_read(
        &self,
        name: &Name,
        rule: Option<&Rule>,
        insecure: Option<bool>,
    ) -> Result<Vec<Endpoint>> {
        let mut read = Vec::new();
        let mut origin = name.clone();
        if let Some(rule) = rule {
            for mirror in &rule.mirrors {
                let there = name.rewritten(&rule.prefix, &mirror.location)?;
                read.push(Endpoint {
                    by_digest: mirror.by_digest,
                    by_tag: mirror.by_tag,
                    ..self.endpoint(&there, mirror.insecure)?
                });
            }
            if let Some(location) = &rule.location {
                origin = name.rewritten(&rule.prefix, location)?;
            }
        }
        let hosts = Hosts::find(&self.containerd_trees, &origin.host)?.unwrap_or_default();
        for mirror in &hosts.mirrors {
            read.push(self.at(mirror, &origin)?);
        }
        if origin.host == DOCKER_HUB {
            for (host, insecure) in self.docker.mirrors() {
                read.push(self.endpoint(&origin.on(host), insecure)?);
            }
        }
        let last = self.at(&hosts.server, &origin)?;
        read.push(Endpoint {
            insecure: insecure.unwrap_or(last.insecure),
            by_digest: true,
            by_tag: true,
            ..last
        });
        Ok(read)
    }

    /// Returns the endpoint of a place in `hosts.toml` for `name`.
    fn at(&self, place: &Place, name: &Name) -> Result<Endpoint> {
        let mut there = if place.host.is_empty() { name.clone() } else { name.on(&place.host) };
        there.repository = format!("{}{}", place.prefix, there.repository);
        let mut endpoint = self.endpoint(&there, place.insecure)?;
        endpoint.by_digest = place.by_digest;
        endpoint.by_tag = place.by_tag;
        endpoint.headers.clone_from(&place.headers);
        if !place.path.is_empty() {
            endpoint.path.clone_from(&place.path);
        }
        if self.certificate_directory.is_none() && place.certificates != Certificates::default() {
            endpoint.certificates = place.certificates.clone();
        }
        Ok(endpoint)
    }

    fn endpoint(&self, name: &Name, insecure: Option<bool>) -> Result<Endpoint> {
        Ok(Endpoint {
            host: api_host(&name.host).to_owned(),
            repository: name.repository.clone(),
            path: "v2".to_owned(),
            headers: Vec::new(),
            insecure: insecure
                .or_else(|| self.docker.insecure(&name.host))
                .unwrap_or_else(|| is_loopback(&name.host)),
            by_digest: true,
            by_tag: true,
            certificates: self.certificates(&name.host)?,
        })
    }

    fn certificates(&self, host: &str) -> Result<Certificates> {
        match &self.certificate_directory {
            Some(directory) => Certificates::in_directory(directory)?.ok_or_else(|| {
                Error::not_found(format!(
                    "the certificate directory {} does not exist or cannot be read",
                    directory.display()
                ))
            }),
            None => Certificates::for_host(&self.certificate_trees, host),
        }
    }

    /// Returns the full names that a short name may refer to, in order: an alias, otherwise each of
    /// `unqualified-search-registries` (otherwise docker.io). A full name is returned alone. Each
    /// has a tag or a digest: `:latest` if `reference` has neither. Never prompts: if
    /// `short-name-mode` is `enforcing`, several registries are an error.
    pub fn candidates(&self, reference: &Reference) -> Result<Vec<Reference>> {
        let reference = &reference.clone().with_default_tag();
        if reference.registry().is_some() {
            return Ok(vec![reference.clone()]);
        }
        let short = reference.name();
        let end = &reference.to_string()[short.len()..];
        if let Some(full) = self.conf.aliases.get(&short) {
            return Ok(vec![full_name(&format!("{full}{end}"), || {
                format!("the alias `{short}` of registries.conf is `{full}`")
            })?]);
        }
        let default = [DOCKER_HUB.to_owned()];
        let search = match self.conf.search.as_deref() {
            None | Some([]) => &default[..],
            Some(search) => search,
        };
        if search.len() > 1 && self.conf.short_names == Some(ShortNames::Enforcing) {
            return Err(Error::usage(format!(
                "`{reference}` may be an image of {}, and short-name-mode is `enforcing`",
                search.join(", ")
            ))
            .hint(format!(
                "write the whole name, for example {}/{reference}, or give `{short}` an alias in \
                 registries.conf",
                search[0]
            )));
        }
        search
            .iter()
            .map(|host| {
                let host = host.trim_end_matches('/');
                let library =
                    if host == DOCKER_HUB && !short.contains('/') { "library/" } else { "" };
                full_name(&format!("{host}/{library}{reference}"), || {
                    format!("unqualified-search-registries of registries.conf has `{host}`")
                })
            })
            .collect()
    }
}

/// Parses a configured name, which must include a registry.
fn full_name(text: &str, said: impl Fn() -> String) -> Result<Reference> {
    match Reference::parse(text) {
        Ok(reference) if reference.registry().is_some() => Ok(reference),
        _ => Err(Error::usage(format!("{}, which gives no valid image name: `{text}`", said()))),
    }
}

/// PEM files for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Certificates {
    pub authorities: Vec<Pem>,
    /// Certificate and key; both are the same file if it contains both.
    pub client: Option<(Pem, Pem)>,
}

impl Certificates {
    /// Returns the certificates from the first of `trees` that has a directory for `host[:port]`.
    pub(super) fn for_host(trees: &[PathBuf], host: &str) -> Result<Self> {
        // The host of a reference is already checked; this keeps the path inside the tree for any
        // caller.
        if host.contains('/') || host.starts_with('.') {
            return Ok(Self::default());
        }
        for tree in trees {
            if let Some(found) = Self::in_directory(&tree.join(host))? {
                return Ok(found);
            }
        }
        Ok(Self::default())
    }

    /// Returns the `*.crt` (authorities), `*.cert` and `*.key` (client, with the same stem) in
    /// `directory`; `None` if the directory is missing or not readable.
    pub(super) fn in_directory(directory: &Path) -> Result<Option<Self>> {
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if config_file::is_missing(&error) => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                tracing::debug!("no permission to read {}", directory.display());
                return Ok(None);
            }
            Err(error) => return Err(error).path("read", directory),
        };
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.path("read", directory)?.path());
        }
        paths.sort();
        let with_end = |end: &str| {
            let end = end.to_owned();
            paths.iter().filter(move |path| path.extension().is_some_and(|found| *found == *end))
        };
        let partner = |path: &Path, end: &str, what: &str| {
            let partner = path.with_extension(end);
            if paths.contains(&partner) {
                Ok(partner)
            } else {
                Err(Error::new(
                    Kind::Usage,
                    format!("{} has no {what} {}", path.display(), partner.display()),
                )
                .hint("client certificate and key are two files, NAME.cert and NAME.key"))
            }
        };
        for key in with_end("key") {
            partner(key, "cert", "client certificate")?;
        }
        let mut client = None;
        for certificate in with_end("cert") {
            let key = partner(certificate, "key", "key")?;
            client.get_or_insert((certificate.clone().into(), key.into()));
        }
        let authorities = with_end("crt").cloned().map(Pem::File).collect();
        Ok(Some(Self { authorities, client }))
    }
}
