//! Credentials by registry: `auth.json` and `config.json` files, credential helpers, `--creds`.
//!
//! Order and format follow containers-auth.json(5) and docker's config.json. Must not depend on
//! HTTP. cli/ provides the list of files.

mod file;
mod helper;
mod lookup;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::credentials::file::AuthFile;
use crate::credentials::helper::Helper;
use imgctl_base::error::{Error, Result};

pub use crate::credentials::lookup::Key;
pub use imgctl_base::secret::Secret;

/// Login to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    Password {
        user: String,
        password: Secret,
    },
    /// A refresh token (`identitytoken`), exchanged for a token by an OAuth2 POST.
    Identity(Secret),
    /// A bearer token that is sent unchanged (`registrytoken`).
    Bearer(Secret),
}

/// A login and its source for messages (`~/.docker/config.json`, the command line).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub login: Login,
    pub source: String,
}

/// Sources of credentials.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// `--creds`: applies to every registry that the command names; the client omits it for
    /// mirrors.
    pub explicit: Option<Login>,
    /// `DOCKER_AUTH_CONFIG`: text of a `config.json`, read before any file and never written.
    pub inline: Option<Secret>,
    /// Files in the order in which they are read. Missing files are skipped.
    pub files: Vec<PathBuf>,
    /// `credential-helpers` of registries.conf, used in this order; `containers-auth.json` stands
    /// for `files`. Empty = only the files.
    pub helpers: Vec<String>,
    /// Directories to search for `docker-credential-NAME` (`PATH`).
    pub search_path: Vec<PathBuf>,
}

/// Name that stands for the files in `credential-helpers`.
const FILES: &str = "containers-auth.json";
/// Name of the inline source, in place of a path.
const INLINE: &str = "DOCKER_AUTH_CONFIG";

impl Credentials {
    /// Returns the credential for `repository` of `registry`: the most specific key
    /// (host/namespace/repo before host) in the first source that has one, including helpers.
    /// `None` = anonymous.
    pub fn find(&self, registry: &str, repository: &str) -> Result<Option<Credential>> {
        if let Some(login) = &self.explicit {
            return Ok(Some(Credential {
                login: login.clone(),
                source: "the command line".to_owned(),
            }));
        }
        let keys = lookup::keys(registry, repository);
        let mut first_error = None;
        for place in self.places() {
            match self.find_in(place, &keys) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                // Another source may have a login. If none does, this error is returned.
                Err(error) => {
                    tracing::debug!("no credentials for {registry}: {error}");
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(None), Err)
    }

    /// Returns all sources in order.
    fn places(&self) -> Vec<Place<'_>> {
        let mut places: Vec<Place<'_>> = self.inline.iter().map(Place::Inline).collect();
        places.extend(self.lasting());
        places
    }

    /// Returns files and helpers, in order.
    fn lasting(&self) -> Vec<Place<'_>> {
        let files = || self.files.iter().map(|file| Place::File(file));
        if self.helpers.is_empty() {
            return files().collect();
        }
        let mut places = Vec::new();
        for name in &self.helpers {
            if name == FILES {
                places.extend(files());
            } else {
                places.push(Place::Helper(name));
            }
        }
        places
    }

    fn find_in(&self, place: Place<'_>, keys: &[String]) -> Result<Option<Credential>> {
        match place {
            Place::Inline(text) => {
                AuthFile::parse(Path::new(INLINE), text.expose(), &self.search_path)?.find(keys)
            }
            Place::File(path) => match AuthFile::read(path, &self.search_path)? {
                Some(file) => file.find(keys),
                None => Ok(None),
            },
            Place::Helper(name) => {
                let helper = Helper::new(name, &self.search_path)?;
                // A login for a namespace is stored under its own name.
                for key in keys {
                    if let Some(login) = helper.get(key)? {
                        return Ok(Some(Credential { login, source: helper.program().to_owned() }));
                    }
                }
                Ok(None)
            }
        }
    }

    /// Returns the source to which logins are written: the first helper of registries.conf,
    /// otherwise the first file.
    fn written(&self) -> Result<Place<'_>> {
        self.lasting().into_iter().next().ok_or_else(nowhere)
    }

    /// Stores a login in the first file, mode 0600, or in the configured helper. Returns the
    /// location, for messages.
    pub fn store(&self, key: &Key, user: &str, password: &Secret) -> Result<String> {
        if user.contains(':') {
            return Err(Error::usage(format!(
                "the user name `{user}` contains a colon, which ends a user name in HTTP"
            )));
        }
        match self.written()? {
            Place::File(path) => {
                AuthFile::change(path, &self.search_path, |file| file.store(key, user, password))
            }
            Place::Inline(_) => Err(nowhere()),
            Place::Helper(name) => {
                let helper = Helper::new(name, &self.search_path)?;
                helper.store(&key.to_string(), user, password)?;
                Ok(helper.program().to_owned())
            }
        }
    }

    /// Removes the login for `key` from the source to which logins are written. Returns whether
    /// there was one.
    pub fn remove(&self, key: &Key) -> Result<bool> {
        match self.written()? {
            Place::Inline(_) => Err(nowhere()),
            Place::File(path) if !path.exists() => Ok(false),
            Place::File(path) => AuthFile::change(path, &self.search_path, |file| file.remove(key)),
            Place::Helper(name) => Helper::new(name, &self.search_path)?.erase(&key.to_string()),
        }
    }

    /// Removes every login from the file to which logins are written. Returns the names of the
    /// removed logins.
    pub fn remove_all(&self) -> Result<Vec<String>> {
        match self.written()? {
            Place::Inline(_) => Err(nowhere()),
            Place::File(path) if !path.exists() => Ok(Vec::new()),
            Place::File(path) => AuthFile::change(path, &self.search_path, AuthFile::remove_all),
            Place::Helper(name) => Err(Error::usage(format!(
                "credentials are stored by docker-credential-{name}, which cannot remove all of \
                 them at once"
            ))
            .hint("log out of each registry: imgctl logout REGISTRY")),
        }
    }
}

fn nowhere() -> Error {
    Error::usage("there is no file to store credentials in")
}

/// A source of logins.
#[derive(Clone, Copy)]
enum Place<'a> {
    Inline(&'a Secret),
    File(&'a Path),
    Helper(&'a str),
}
