//! A file of credentials: containers' `auth.json`, docker's `config.json`, and its ancestor
//! `.dockercfg`. containers-auth.json(5).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::registry::config_file;
use crate::registry::credentials::lookup::{self, Malformed};
use crate::registry::credentials::{Credential, Login};

/// A file's whole content; members we do not know are kept.
pub(super) struct AuthFile {
    path: PathBuf,
    root: Map<String, Value>,
    legacy: bool,
}

impl AuthFile {
    /// Reads `path`; `None` when there is no such file. The error never shows the content.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(text) = config_file::text(path)? else {
            return Ok(None);
        };
        let mut root = Map::new();
        if !text.trim().is_empty() {
            root = serde_json::from_str(&text).map_err(|error| {
                // serde's message may quote what it found: a password, say.
                Error::usage(format!(
                    "{}:{}: this is not a file of credentials",
                    path.display(),
                    error.line()
                ))
                .hint("it has to be JSON as containers-auth.json(5) describes it")
            })?;
        }
        let legacy = path.file_name().is_some_and(|name| name == ".dockercfg");
        Ok(Some(Self {
            path: path.to_owned(),
            root,
            legacy,
        }))
    }

    /// The login under the first of `keys` that has one.
    pub(super) fn find(&self, keys: &[String]) -> Result<Option<Credential>> {
        Ok(self.login(keys)?.map(|login| Credential {
            login,
            source: self.path.display().to_string(),
        }))
    }

    fn login(&self, keys: &[String]) -> Result<Option<Login>> {
        let Some(auths) = self.auths()? else {
            return Ok(None);
        };
        lookup::find(auths, keys, self.legacy).map_err(|Malformed(key)| {
            Error::usage(format!(
                "{}: the entry `{key}` is not a login",
                self.path.display()
            ))
            .hint(format!("log in again: imgctl login {key}"))
        })
    }

    fn auths(&self) -> Result<Option<&Map<String, Value>>> {
        if self.legacy {
            return Ok(Some(&self.root));
        }
        match self.root.get("auths") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(auths)) => Ok(Some(auths)),
            Some(_) => Err(Error::usage(format!(
                "{}: `auths` is not an object",
                self.path.display()
            ))),
        }
    }
}
