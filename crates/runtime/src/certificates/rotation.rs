//! Another authority in place of one that a cluster has: both, as the controller keeps them until the
//! former one is dropped.
//!
//! The former authority stays in `pki/`, the new one lies in `pki/rotation/` until all hosts trust nothing
//! else.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::certificates::authority::{Algorithm, Authority};
use crate::certificates::{again, pki};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic::remove_tree;
use imgctl_model::state_files::StateFiles;

const DIRECTORY: &str = "pki/rotation";
/// Exists while a rotation is open.
const OPEN: &str = "pki/rotation/open";
/// Exists from the moment at which a host may no longer trust the former authority.
const DROPPING: &str = "pki/rotation/dropping";
const LONGEST: u64 = 1 << 20;

/// What a host trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Both; the former one signs.
    Both,
    /// Only the new one.
    New,
    /// Only the former one: the way back.
    Former,
}

/// Which authority signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    New,
    Former,
}

/// The former and the new authority.
pub(crate) struct Pair {
    pub(crate) former: Authority,
    pub(crate) new: Authority,
}

impl Pair {
    /// Reads both; makes the new one if there is none. `file`: below `pki/`, without extension.
    pub(crate) fn of(state: &StateFiles, file: &str) -> Result<Self> {
        static MAKING: Mutex<()> = Mutex::new(());
        let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let path = format!("pki/{file}");
        let read = |end: &str| state.read(format!("{path}.{end}"), LONGEST);
        let (Some(certificate), Some(key)) = (read("crt")?, read("key")?) else {
            return Err(Error::not_found(format!(
                "{} has no {path}.crt with its key",
                state.directory().display()
            ))
            .hint("the controller that made the cluster, or adopted it, has its authorities"));
        };
        let former = Authority::parse(&certificate, &key)?;
        let own = former.describe()?;
        let life = Duration::from_secs(u64::try_from(again::life(&own, None)).unwrap_or(0));
        let algorithm = Algorithm::of(&former.key);
        let new =
            pki::authority(state, &format!("rotation/{file}"), &own.common_name, algorithm, life)?;
        Ok(Self { former, new })
    }

    /// Returns what hosts are given to trust. Programs that read only one certificate take the first:
    /// it is that of the authority that signs.
    pub(crate) fn bundle(&self, trust: Trust) -> String {
        match trust {
            Trust::Both => format!("{}{}", self.former.certificate, self.new.certificate),
            Trust::New => self.new.certificate.clone(),
            Trust::Former => self.former.certificate.clone(),
        }
    }

    /// Returns both, that of the signing authority first.
    pub(crate) fn signed_bundle(&self, signs: Signs) -> String {
        match signs {
            Signs::Former => self.bundle(Trust::Both),
            Signs::New => format!("{}{}", self.new.certificate, self.former.certificate),
        }
    }

    pub(crate) fn signer(&self, signs: Signs) -> &Authority {
        match signs {
            Signs::New => &self.new,
            Signs::Former => &self.former,
        }
    }
}

/// Reports whether a rotation is open.
pub fn is_open(state: &StateFiles) -> bool {
    state.path(OPEN).exists()
}

/// Reports whether hosts may trust only the new authorities.
pub fn is_dropping(state: &StateFiles) -> bool {
    state.path(DROPPING).exists()
}

/// Opens a rotation. A repeated call changes nothing.
pub(crate) fn open(state: &StateFiles) -> Result<()> {
    state.write(OPEN, "")
}

/// Records that the former authorities are dropped from here on: there is no way back.
pub fn begin_dropping(state: &StateFiles) -> Result<()> {
    state.write(DROPPING, "")
}

/// Makes the new authorities those of the cluster, and forgets the former ones. Safe to repeat.
pub(crate) fn finish(state: &StateFiles, files: &[String]) -> Result<()> {
    for file in files {
        for end in ["key", "crt"] {
            let new = state.read(format!("{DIRECTORY}/{file}.{end}"), LONGEST)?;
            if let Some(new) = new {
                state.write(format!("pki/{file}.{end}"), &new)?;
            }
        }
    }
    discard(state)
}

/// Forgets the new authorities.
pub(crate) fn discard(state: &StateFiles) -> Result<()> {
    if state.path(DIRECTORY).exists() { remove_tree(&state.path(DIRECTORY)) } else { Ok(()) }
}

/// Fails while a rotation is open: `verb` would give hosts authorities of another moment.
pub fn refuse_while_open(state: &StateFiles, verb: &str) -> Result<()> {
    if !is_open(state) {
        return Ok(());
    }
    Err(Error::busy(format!("an authority of this cluster is being rotated: `{verb}` has to wait"))
        .hint("continue with `imgctl cert --rotate-ca`, or go back with `imgctl cert --rotate-ca --undo`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::authority::Key;

    #[test]
    fn the_former_authority_stays_until_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateFiles::plain(directory.path());
        assert!(Pair::of(&state, "ca").is_err());
        let key = Key::generate(Algorithm::EcdsaP256).unwrap();
        let own = Authority::create("kubernetes", key, Duration::from_secs(86_400)).unwrap();
        state.write("pki/ca.key", own.key.pem.expose()).unwrap();
        state.write("pki/ca.crt", &own.certificate).unwrap();
        assert!(refuse_while_open(&state, "add").is_ok());
        open(&state).unwrap();
        assert!(refuse_while_open(&state, "add").is_err());
        let pair = Pair::of(&state, "ca").unwrap();
        let again = Pair::of(&state, "ca").unwrap();
        assert_eq!(pair.new.pin(), again.new.pin());
        assert_eq!(pair.former.pin(), own.pin());
        assert_ne!(pair.new.pin(), own.pin());
        assert_eq!(pair.new.describe().unwrap().common_name, "kubernetes");
        for (signs, first) in [(Signs::New, &pair.new), (Signs::Former, &pair.former)] {
            let bundle = pair.signed_bundle(signs);
            assert_eq!(again::certificates_of(&bundle).len(), 2);
            assert!(bundle.starts_with(&first.certificate));
        }
        for _ in 0..2 {
            finish(&state, &["ca".to_owned()]).unwrap();
        }
        let now = state.read("pki/ca.crt", LONGEST).unwrap().unwrap();
        assert_eq!(now, pair.new.certificate);
        assert!(!is_open(&state) && !is_dropping(&state));
    }
}
