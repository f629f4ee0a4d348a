//! Another password for the embedded registry, as the controller keeps it while hosts still have the
//! former one. Must not know hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clusterfile::Clusterfile;
use crate::registry_access::{
    KEPT_PASSWORD, LETTERS, PASSWORD_LENGTH, PASSWORD_VARIABLE, kept, random,
};
use crate::state_files::StateFiles;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;

/// Exists while hosts may have either password.
const OPEN: &str = "etc/registry_password_change";
/// Maximum size of it, in bytes.
const LONGEST: u64 = 64 << 10;

/// Lengths of a password, in bytes: bcrypt ignores what is longer.
const SHORTEST: usize = 8;
const MOST: usize = 72;

/// A change of the password that is not finished.
#[derive(Clone, Debug)]
pub struct PasswordChange {
    /// Identifies the change in journals; says nothing about the password.
    pub id: String,
    pub password: Secret,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    id: String,
    password: String,
}

impl PasswordChange {
    /// Returns the change to `password`, or to a generated one.
    pub fn new(password: Option<Secret>) -> Result<Self> {
        let password = match password {
            Some(password) => check(password)?,
            None => Secret::new(format!("p{}", random(LETTERS, PASSWORD_LENGTH - 1)?)),
        };
        let id = random(b"0123456789abcdef", 16)?;
        Ok(Self { id, password })
    }

    /// Returns the unfinished change, if there is one.
    pub fn open(state: &StateFiles) -> Result<Option<Self>> {
        let Some(text) = state.read(OPEN, LONGEST)? else { return Ok(None) };
        let stored: Stored = serde_json::from_str(&text).map_err(|error| {
            Error::bad_content(format!("{} cannot be read", state.path(OPEN).display()))
                .caused_by(error)
                .hint("remove it and start the change of the password again")
        })?;
        Ok(Some(Self { id: stored.id, password: Secret::new(stored.password) }))
    }

    /// Stores the change, readable only by its owner. A repeated call changes nothing.
    pub fn begin(&self, state: &StateFiles) -> Result<()> {
        let stored = Stored { id: self.id.clone(), password: self.password.expose().to_owned() };
        let text = serde_json::to_string(&stored)
            .map_err(|error| Error::failed("cannot write the password down").caused_by(error))?;
        state.write(OPEN, &text)
    }

    /// Makes the password the cluster's.
    pub fn keep(&self, state: &StateFiles) -> Result<()> {
        state.write(KEPT_PASSWORD, self.password.expose())
    }

    /// Ends the change. Safe to repeat.
    pub fn end(state: &StateFiles) -> Result<()> {
        let path = state.path(OPEN);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(format!("cannot remove {}", path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

/// Fails while a change is open: `verb` would give hosts the password of another moment.
pub fn refuse_while_open(state: &StateFiles, verb: &str) -> Result<()> {
    if !state.path(OPEN).exists() {
        return Ok(());
    }
    Err(Error::busy(format!(
        "the password of this cluster's registry is being changed: `{verb}` has to wait"
    ))
    .hint("finish the change: `imgctl registry passwd --cluster NAME`"))
}

/// Fails if `user`, the variables of a changed Clusterfile and the command line, sets another password
/// than the cluster `current` has: its hosts would keep the former one.
pub fn refuse_other(
    current: &Clusterfile,
    user: &BTreeMap<String, String>,
    state: &StateFiles,
) -> Result<()> {
    let Some(wanted) = user.get(PASSWORD_VARIABLE) else { return Ok(()) };
    let cluster = &current.cluster;
    let own = cluster.status.environment.get(PASSWORD_VARIABLE);
    let known = match own.or_else(|| cluster.environment.get(PASSWORD_VARIABLE)) {
        Some(own) => Some(own.clone()),
        None => kept(state)?.map(|kept| kept.expose().to_owned()),
    };
    if known.is_none_or(|known| known == *wanted) {
        return Ok(());
    }
    let name = &cluster.name;
    Err(Error::usage(format!(
        "{PASSWORD_VARIABLE} is not the password of the registry of cluster {name}"
    ))
    .hint(format!(
        "`imgctl registry passwd --cluster {name}` changes the password; {PASSWORD_VARIABLE} need not be set"
    )))
}

/// Accepts passwords that mean the same in the files of images: YAML, TOML, shell and URLs.
fn check(password: Secret) -> Result<Secret> {
    let text = password.expose();
    let fits = |c: char| c.is_ascii_alphanumeric() || "._~+=@%/-".contains(c);
    if !(SHORTEST..=MOST).contains(&text.len()) {
        return Err(Error::usage(format!(
            "the password has {} characters, not {SHORTEST} to {MOST}",
            text.len()
        )));
    }
    if !text.chars().all(fits) || !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(Error::usage(
            "the password must begin with a letter and consist of letters, digits and . _ ~ + = @ % / -",
        )
        .hint("files of images contain it as plain text of YAML, TOML and shell"));
    }
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_lasts_until_it_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateFiles::plain(directory.path());
        assert!(PasswordChange::open(&state).unwrap().is_none());
        let change = PasswordChange::new(None).unwrap();
        assert_eq!(change.password.expose().len(), PASSWORD_LENGTH);
        change.begin(&state).unwrap();
        let busy = refuse_while_open(&state, "add").unwrap_err().to_string();
        assert!(busy.contains("`add` has to wait"), "{busy}");
        let again = PasswordChange::open(&state).unwrap().unwrap();
        assert_eq!((&again.id, &again.password), (&change.id, &change.password));
        change.keep(&state).unwrap();
        for _ in 0..2 {
            PasswordChange::end(&state).unwrap();
        }
        assert!(refuse_while_open(&state, "add").is_ok());
        assert_eq!(kept(&state).unwrap(), Some(change.password));
    }

    #[test]
    fn another_password_than_the_clusters_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateFiles::plain(directory.path());
        let mut current = Clusterfile::default();
        let user =
            |password: &str| BTreeMap::from([(PASSWORD_VARIABLE.to_owned(), password.to_owned())]);
        // Nothing is known.
        assert!(refuse_other(&current, &user("first"), &state).is_ok());
        state.write(KEPT_PASSWORD, "kept").unwrap();
        assert!(refuse_other(&current, &user("kept"), &state).is_ok());
        let refused = refuse_other(&current, &user("first"), &state).unwrap_err();
        assert!(!refused.to_string().contains("kept") && !refused.to_string().contains("first"));
        current.cluster.environment = user("first");
        assert!(refuse_other(&current, &user("first"), &state).is_ok());
        assert!(refuse_other(&current, &user("kept"), &state).is_err());
        assert!(refuse_other(&current, &BTreeMap::new(), &state).is_ok());
    }

    #[test]
    fn passwords_that_files_could_misread_are_refused() {
        for (text, good) in [
            ("abcdefgh", true),
            ("aB3._~+=@%/-", true),
            ("short", false),
            ("12345678", false),
            ("with space", false),
            ("quote\"quote", false),
            ("dollar$sign", false),
            ("line\nbreak", false),
            ("ümlaut-ümlaut", false),
        ] {
            assert_eq!(PasswordChange::new(Some(Secret::new(text))).is_ok(), good, "{text}");
        }
        assert!(PasswordChange::new(Some(Secret::new("a".repeat(73)))).is_err());
    }
}
