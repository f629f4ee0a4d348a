//! Certificates by registry: the `certs.d` trees of containers and docker, and `--cert-dir`.
//! containers-certs.d(5).

use std::path::{Path, PathBuf};

use crate::config_file;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};

/// PEM files for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Certificates {
    pub authorities: Vec<PathBuf>,
    /// Certificate and key; both are the same path for a file that contains both.
    pub client: Option<(PathBuf, PathBuf)>,
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
            client.get_or_insert((certificate.clone(), key));
        }
        Ok(Some(Self { authorities: with_end("crt").cloned().collect(), client }))
    }
}
