//! Where a registry's content is to be had: `registries.conf` with its mirrors, insecure and blocked
//! registries and short names, `certs.d` and `hosts.toml`.
//!
//! containers-registries.conf(5), containers-certs.d(5). Must not know HTTP or credentials; which
//! files to read is given by cli/.

use std::path::PathBuf;

use crate::error::Result;
use crate::image::Reference;

/// What the configuration files say. The default value says nothing: every registry by https, plain
/// http for none but as [`Registries::route`] says of loopback.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registries {}

/// One place to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `host[:port]`.
    pub(crate) host: String,
    /// The repository as this place calls it.
    pub(crate) repository: String,
    /// TLS without verification, and plain HTTP when TLS is not spoken there.
    pub(crate) insecure: bool,
    /// Ask it for digests only, for tags only, or for both (`pull-from-mirror`).
    pub(crate) by_digest: bool,
    pub(crate) by_tag: bool,
    /// CA, client certificate and key files for it.
    pub(crate) certificates: Certificates,
}

/// PEM files for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Certificates {
    pub(crate) authorities: Vec<PathBuf>,
    /// Certificate and key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// Where a repository is read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Mirrors in order, the origin last: for reading.
    pub(crate) read: Vec<Endpoint>,
    /// Never a mirror.
    pub(crate) write: Endpoint,
}

impl Registries {
    /// Reads registries.conf files (the main one, then drop-ins in order, later ones win) and
    /// remembers the certificate directories (`certs.d` trees in order, and `--cert-dir` for every
    /// host). Missing files say nothing; a file that does not parse is an error with its line.
    pub(crate) fn read(
        files: &[PathBuf],
        certificate_trees: &[PathBuf],
        certificate_directory: Option<PathBuf>,
    ) -> Result<Self> {
        todo!()
    }

    /// The places for the repository of `reference`. `docker.io` becomes `registry-1.docker.io`,
    /// `library/` is added there. A host that is `localhost`, 127.0.0.0/8 or ::1 is insecure unless
    /// configured otherwise. A blocked registry is an error of kind Denied.
    pub(crate) fn route(&self, reference: &Reference) -> Result<Route> {
        todo!()
    }

    /// The full names a short name may mean, in order: an alias, else each of
    /// `unqualified-search-registries` (else docker.io). A full name comes back alone.
    pub(crate) fn candidates(&self, reference: &Reference) -> Result<Vec<Reference>> {
        todo!()
    }
}
