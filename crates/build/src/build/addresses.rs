//! The addresses of ADD: what the lock expects of each, and what each returned. Must not know how addresses are fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::build::lock_file::LockFile;
use crate::build::mirrors::Mirrors;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_embed::lock::{Given, LockedAddress};

/// The addresses of one build.
#[derive(Debug)]
pub(super) struct Addresses<'a> {
    lock: &'a LockFile,
    pub(super) mirrors: &'a Mirrors,
    found: Mutex<BTreeMap<String, LockedAddress>>,
}

impl<'a> Addresses<'a> {
    pub(super) fn new(lock: &'a LockFile, mirrors: &'a Mirrors) -> Self {
        Self { lock, mirrors, found: Mutex::default() }
    }

    /// Returns the lock's entry for `address`. With `--locked`, a missing entry is an error.
    pub(super) fn locked(&self, address: &str) -> Result<Option<&Given>> {
        let locked = self.lock.in_use().and_then(|lock| lock.addresses.get(address));
        if locked.is_none() && self.lock.is_insisted_on() {
            let name = self.lock.name();
            return Err(Error::usage(format!("{name} is out of date: it lacks {address}"))
                .hint("run `imgctl build --update-lock` to update it"));
        }
        Ok(locked.map(|locked| &locked.given))
    }

    /// Records what `address`, without a password, returned for `platform`.
    pub(super) fn record(&self, address: &str, given: Given, platform: &Platform) -> Result<()> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let platform = platform.to_string();
        match found.get_mut(address) {
            Some(known) if known.given == given => {
                known.platforms.insert(platform);
            }
            Some(known) => {
                return Err(Error::bad_content(format!(
                    "{address} changed during the build: it gave {}, then {given}",
                    known.given
                ))
                .hint("run the build again"));
            }
            None => {
                let locked = LockedAddress { given, platforms: BTreeSet::from([platform]) };
                found.insert(address.to_owned(), locked);
            }
        }
        Ok(())
    }

    /// Returns the error for an `address` whose content differs from the lock.
    pub(super) fn differs(&self, address: &str, expected: &Given, found: &Given) -> Error {
        let name = self.lock.name();
        let hint = match self.mirrors.name_for(address) {
            Some(mirror) => format!(
                "the file of the mirror {mirror} differs from the one that was locked: correct the mirror, or run \
                 `imgctl build --update-lock` if it is right"
            ),
            None => format!(
                "the publisher has changed it since {name} was written: find out why; \
                 `imgctl build --update-lock` accepts it"
            ),
        };
        Error::bad_content(format!("it gives {found}, but {name} has {expected}")).hint(hint)
    }

    /// Returns what each address returned.
    pub(super) fn into_found(self) -> BTreeMap<String, LockedAddress> {
        self.found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
