//! Who we are, by registry: `auth.json` and `config.json` files, credential helpers, `--creds`.
//!
//! Order and format of containers-auth.json(5) and docker's config.json. Must not know HTTP; which
//! files to read is given by cli/.

mod file;
mod lookup;

use std::path::PathBuf;

use crate::error::Result;
use crate::registry::credentials::file::AuthFile;

/// A password or token. `Debug` shows none of it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself: for the wire only.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// What is shown to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    Password {
        user: String,
        password: Secret,
    },
    /// A refresh token (`identitytoken`), exchanged by the OAuth2 POST.
    Identity(Secret),
    /// A bearer token sent as it is (`registrytoken`).
    Bearer(Secret),
}

/// A login and where it was found, for messages (`~/.docker/config.json`, `--creds`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) login: Login,
    pub(crate) source: String,
}

/// Where credentials are looked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// `--creds`: for every registry of this command.
    pub(crate) explicit: Option<Login>,
    /// Files in the order in which they are asked; one that is missing is passed over.
    pub(crate) files: Vec<PathBuf>,
    /// `credential-helpers` of registries.conf: asked in this order, where
    /// `containers-auth.json` stands for `files`. None = the files.
    pub(crate) helpers: Vec<String>,
    /// Directories in which `docker-credential-NAME` is looked for (`PATH`).
    pub(crate) search_path: Vec<PathBuf>,
}

/// The name that stands for the files among `credential-helpers`.
const FILES: &str = "containers-auth.json";

impl Credentials {
    /// The credential for `repository` of `registry`: the most specific key (host/namespace/repo
    /// before host) of the first file that has one; helpers are run. `None` = anonymous.
    pub(crate) fn find(&self, registry: &str, repository: &str) -> Result<Option<Credential>> {
        if let Some(login) = &self.explicit {
            return Ok(Some(Credential {
                login: login.clone(),
                source: "--creds".to_owned(),
            }));
        }
        let keys = lookup::keys(registry, repository);
        for path in &self.files {
            let Some(file) = AuthFile::read(path)? else {
                continue;
            };
            if let Some(found) = file.find(&keys)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
