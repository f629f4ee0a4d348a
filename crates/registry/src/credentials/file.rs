//! A credentials file: containers' `auth.json`, docker's `config.json`, and its predecessor
//! `.dockercfg`. containers-auth.json(5).

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize as _;
use serde_json::{Map, Value, json};

use crate::config_file::{self, member};
use crate::credentials::helper::Helper;
use crate::credentials::lookup::{self, DOCKER_HUB_KEY, Malformed};
use crate::credentials::{Credential, Key, Secret};
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::atomic::Durability;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::output;
use imgctl_base::image::reference::DOCKER_HUB;

/// Complete content of a file. Unknown members are kept.
pub(super) struct AuthFile<'a> {
    path: PathBuf,
    root: Map<String, Value>,
    legacy: bool,
    search_path: &'a [PathBuf],
}

impl<'a> AuthFile<'a> {
    /// Reads `path`; `None` if the file is missing. Helpers are searched in `search_path`. The
    /// error never contains the content.
    pub(super) fn read(path: &Path, search_path: &'a [PathBuf]) -> Result<Option<Self>> {
        match config_file::text(path)? {
            Some(text) => Self::parse(path, &text, search_path).map(Some),
            None => Ok(None),
        }
    }

    /// Parses the `text` of `path`.
    pub(super) fn parse(path: &Path, text: &str, search_path: &'a [PathBuf]) -> Result<Self> {
        let mut root = Map::new();
        if !text.trim().is_empty() {
            root = serde_json::from_str(text).map_err(|error| {
                // serde's message may quote the input, for example a password.
                Error::usage(format!(
                    "{}:{}: this is not a credentials file",
                    path.display(),
                    error.line()
                ))
                .hint("it must be JSON as containers-auth.json(5) describes it")
            })?;
        }
        Ok(Self { root, ..Self::empty(path, search_path) })
    }

    fn empty(path: &Path, search_path: &'a [PathBuf]) -> Self {
        Self {
            path: path.to_owned(),
            root: Map::new(),
            legacy: path.file_name().is_some_and(|name| name == ".dockercfg"),
            search_path,
        }
    }

    /// Changes the file at `path`, creating it if missing, while holding a lock against other
    /// imgctl processes.
    pub(super) fn change<T>(
        path: &Path,
        search_path: &'a [PathBuf],
        change: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        // Keeps a symlink, for example to a file in the user's dotfiles.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::usage(format!("{} is not a file", path.display())));
        };
        if !directory.as_os_str().is_empty() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .path("create the directory", directory)?;
        }
        let mut lock_name = std::ffi::OsString::from(".");
        lock_name.push(name);
        lock_name.push(".lock");
        let lock_path = directory.join(lock_name);
        let lock = Lock::acquire(&lock_path, Mode::Exclusive, &mut || {
            tracing::info!("waiting for another login to {}", path.display());
        })?;
        let changed = Self::read(&path, search_path).and_then(|file| {
            let mut file = file.unwrap_or_else(|| Self::empty(&path, search_path));
            let before = file.root.clone();
            let result = change(&mut file)?;
            if file.root != before {
                file.write()?;
            }
            Ok(result)
        });
        // Removed while locked: a waiting process notices this and creates a new lock file.
        let _ = std::fs::remove_file(&lock_path);
        drop(lock);
        changed
    }

    fn write(&self) -> Result<()> {
        let mut text = Vec::new();
        let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, tabs);
        self.root
            .serialize(&mut serializer)
            .map_err(|_| Error::failed(format!("cannot write {}", self.path.display())))?;
        text.push(b'\n');
        output::write(&self.path, &text, 0o600, Durability::Durable)
    }

    /// Returns the login for the first of `keys` (the last is the host) that has one: from the
    /// helper of the host, otherwise from the default helper, otherwise from the file itself.
    pub(super) fn find(&self, keys: &[String]) -> Result<Option<Credential>> {
        let Some(host) = keys.last() else {
            return Ok(None);
        };
        match self.helper_of(host)? {
            // containers-auth.json(5): the file's own entry for this host does not count.
            Some(name) if !name.is_empty() => return self.ask(name, host),
            Some(_) => {}
            None => {
                if let Some(name) = self.helper_for_all()?
                    && let Some(found) = self.ask(name, host)?
                {
                    return Ok(Some(found));
                }
            }
        }
        let Some(auths) = self.auths()? else {
            return Ok(None);
        };
        let login = lookup::find(auths, keys, self.legacy).map_err(|Malformed(key)| {
            Error::usage(format!("{}: the entry `{key}` is not a login", self.path.display()))
                .hint(format!("log in again: imgctl login {key}"))
        })?;
        Ok(login.map(|login| Credential { login, source: self.path.display().to_string() }))
    }

    fn ask(&self, name: &str, host: &str) -> Result<Option<Credential>> {
        let helper = self.helper(name)?;
        for server in servers(host) {
            if let Some(login) = helper.get(server)? {
                return Ok(Some(Credential {
                    login,
                    source: format!("{} (named in {})", helper.program(), self.path.display()),
                }));
            }
        }
        Ok(None)
    }

    fn helper(&self, name: &str) -> Result<Helper> {
        Helper::new(name, self.search_path)
            .map_err(|error| error.context(format!("cannot use {}", self.path.display())))
    }

    /// Returns the host's helper from `credHelpers`. An empty name means this file, also if there is
    /// a default helper (docker's cli/config/configfile).
    fn helper_of(&self, host: &str) -> Result<Option<&str>> {
        match member(&self.root, "credHelpers") {
            _ if self.legacy => Ok(None),
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(helpers)) => helpers
                .iter()
                .find(|(key, _)| lookup::host_of(key, false) == Some(host))
                .map(|(key, name)| match name {
                    Value::Null => Ok(""),
                    name => name.as_str().ok_or_else(|| self.wrong(key)),
                })
                .transpose(),
            Some(_) => Err(self.wrong("credHelpers")),
        }
    }

    /// Returns the default helper from `credsStore`.
    fn helper_for_all(&self) -> Result<Option<&str>> {
        match member(&self.root, "credsStore") {
            _ if self.legacy => Ok(None),
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => {
                Ok(Some(name).filter(|name| !name.is_empty())).map(|name| name.map(String::as_str))
            }
            Some(_) => Err(self.wrong("credsStore")),
        }
    }

    fn auths(&self) -> Result<Option<&Map<String, Value>>> {
        if self.legacy {
            return Ok(Some(&self.root));
        }
        match member(&self.root, "auths") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(auths)) => Ok(Some(auths)),
            Some(_) => Err(self.wrong("auths")),
        }
    }

    fn auths_mut(&mut self) -> Result<&mut Map<String, Value>> {
        self.auths()?;
        if self.legacy {
            return Ok(&mut self.root);
        }
        let is_auths = |name: &&String| name.eq_ignore_ascii_case("auths");
        let name = match self.root.keys().find(is_auths) {
            Some(name) if !self.root.contains_key("auths") => name.clone(),
            _ => "auths".to_owned(),
        };
        let auths = self.root.entry(name).or_insert(Value::Null);
        if auths.is_null() {
            *auths = json!({});
        }
        auths.as_object_mut().ok_or_else(|| Error::failed("auths is not an object"))
    }

    fn wrong(&self, member: &str) -> Error {
        Error::usage(format!(
            "{}: `{member}` does not follow containers-auth.json(5)",
            self.path.display()
        ))
    }

    /// Stores a login where the file's configuration requires it. Returns the location.
    pub(super) fn store(&mut self, key: &Key, user: &str, password: &Secret) -> Result<String> {
        let helper = match self.helper_of(key.registry())? {
            Some(name) => Some(name).filter(|name| !name.is_empty()),
            None => self.helper_for_all()?,
        };
        let mut kept = self.path.display().to_string();
        let mut entry = json!({"auth": STANDARD.encode(format!("{user}:{}", password.expose()))});
        if let Some(name) = helper {
            let helper = self.helper(name)?;
            let server = match key.registry() {
                DOCKER_HUB => DOCKER_HUB_KEY.to_owned(),
                _ => key.to_string(),
            };
            helper.store(&server, user, password)?;
            kept = format!("{} (named in {kept})", helper.program());
            // An empty entry, as docker writes it, so that the file alone lists all registries.
            entry = json!({});
        }
        self.take_out(key)?;
        let is_docker = self.path.file_name().is_some_and(|name| name == "config.json");
        let name = if (is_docker || self.legacy) && key.to_string() == DOCKER_HUB {
            DOCKER_HUB_KEY.to_owned()
        } else {
            key.to_string()
        };
        self.auths_mut()?.insert(name, entry);
        Ok(kept)
    }

    /// Removes the login for `key`. Returns whether there was one.
    pub(super) fn remove(&mut self, key: &Key) -> Result<bool> {
        let mut removed = false;
        let helpers = [self.helper_of(key.registry())?, self.helper_for_all()?];
        for name in helpers.into_iter().flatten().filter(|name| !name.is_empty()) {
            let helper = self.helper(name)?;
            for server in servers(&key.to_string()) {
                removed |= helper.erase(server)?;
            }
        }
        Ok(self.take_out(key)? || removed)
    }

    /// Removes every login in the file or in a helper that it names. Returns the names of the
    /// removed logins.
    pub(super) fn remove_all(&mut self) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        if let Some(auths) = self.auths()? {
            names.extend(auths.keys().cloned());
        }
        if let Some(Value::Object(helpers)) = member(&self.root, "credHelpers") {
            names.extend(helpers.keys().cloned());
        }
        let mut removed: Vec<String> = Vec::new();
        for name in names {
            let Ok(key) = Key::parse(&name) else {
                continue;
            };
            if self.remove(&key)? && !removed.contains(&key.to_string()) {
                removed.push(key.to_string());
            }
        }
        self.auths_mut()?.clear();
        Ok(removed)
    }

    /// Removes the entry for `key` from `auths`, in any notation of its host.
    fn take_out(&mut self, key: &Key) -> Result<bool> {
        let legacy = self.legacy;
        let wanted = key.to_string();
        let Some(auths) = self.auths()? else {
            return Ok(false);
        };
        let names: Vec<String> = auths
            .keys()
            .filter(|name| {
                **name == wanted
                    || (key.namespace().is_empty()
                        && lookup::host_of(name, legacy) == Some(key.registry()))
            })
            .cloned()
            .collect();
        let auths = self.auths_mut()?;
        for name in &names {
            auths.shift_remove(name);
        }
        Ok(!names.is_empty())
    }
}

/// Returns the names under which helpers may store a host.
fn servers(host: &str) -> Vec<&str> {
    match host {
        DOCKER_HUB => vec![DOCKER_HUB_KEY, DOCKER_HUB],
        other => vec![other],
    }
}
