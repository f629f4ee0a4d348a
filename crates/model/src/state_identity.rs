//! The identity with which this machine decrypts the state of clusters: a file of age identities,
//! read when the first encrypted file is.
//!
//! Must not know which files are encrypted.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use imgctl_age::{Identities, is_identity};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::fs::secret_file::{self, Exposed};

/// Maximum size of a file of identities, in bytes.
const LONGEST: u64 = 1 << 20;

/// A file of identities; without a file, only state that is not encrypted can be read.
#[derive(Clone, Debug, Default)]
pub struct StateIdentity(Arc<IdentityFile>);

#[derive(Debug, Default)]
struct IdentityFile {
    path: Option<PathBuf>,
    /// Read only once: the file may be a pipe.
    read: Mutex<Option<Arc<Identities>>>,
}

impl StateIdentity {
    /// Names the file, which is not read yet.
    pub fn file(path: Option<PathBuf>) -> Self {
        Self(Arc::new(IdentityFile { path, read: Mutex::default() }))
    }

    /// Returns the name of the file for messages; `None` if there is none.
    pub fn name(&self) -> Option<String> {
        self.0.path.as_ref().map(|path| path.display().to_string())
    }

    /// Returns the identities; `None` if no file was named.
    pub fn load(&self) -> Result<Option<Arc<Identities>>> {
        let Some(path) = &self.0.path else { return Ok(None) };
        let mut known = self.0.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(Some(Arc::clone(known)));
        }
        let doing = || "cannot read the identity of the state".to_owned();
        if is_identity(&path.to_string_lossy()) {
            // Not quoted: it is a secret.
            return Err(Error::usage("an identity itself was given in place of its file")
                .context(doing())
                .hint(
                    "write it into a file, and name that file: others see arguments and variables",
                ));
        }
        let text =
            secret_file::read(path, LONGEST, Exposed::Told).context(doing)?.ok_or_else(|| {
                Error::not_found(format!("the file {} does not exist", path.display()))
                .context(doing())
                .hint(
                    "--state-identity and IMGCTL_STATE_IDENTITY name a file that age-keygen wrote",
                )
            })?;
        let identities = Identities::parse(&text, &path.display().to_string())?;
        Ok(Some(Arc::clone(known.insert(Arc::new(identities)))))
    }
}
