//! What this machine has installed on a cluster through a kubeconfig. The record in the cluster is data
//! that others can write: whether a command of an image may run here is decided by this one.
//!
//! Must not read anything from the cluster.

use std::collections::{BTreeMap, BTreeSet};

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Digest;
use imgctl_model::state_files::StateFiles;

/// Name in the directory of the cluster's state.
const FILE: &str = "applications.json";
/// Maximum size of the file, in bytes.
const LONGEST: u64 = 4 << 20;

/// Digests by application, as `imgctl run` was given them.
#[derive(Debug, Default)]
pub(super) struct InstalledHere {
    all: BTreeMap<String, BTreeSet<Digest>>,
}

impl InstalledHere {
    pub(super) fn read(state: &StateFiles) -> Result<Self> {
        let Some(text) = state.read(FILE, LONGEST)? else { return Ok(Self::default()) };
        let all = serde_json::from_str(&text)
            .map_err(|error| {
                Error::bad_content("it is not a list of applications").caused_by(error)
            })
            .context(|| format!("cannot read {}", state.path(FILE).display()))?;
        Ok(Self { all })
    }

    /// Returns whether this machine has installed this version of the application, or begun to.
    pub(super) fn has(&self, application: &str, digest: &Digest) -> bool {
        self.all.get(application).is_some_and(|digests| digests.contains(digest))
    }

    pub(super) fn add(&mut self, application: &str, digest: &Digest) {
        self.all.entry(application.to_owned()).or_default().insert(digest.clone());
    }

    pub(super) fn forget(&mut self, application: &str) {
        self.all.remove(application);
    }

    pub(super) fn write(&self, state: &StateFiles) -> Result<()> {
        let text = serde_json::to_string(&self.all)
            .map_err(|error| Error::failed("cannot record applications").caused_by(error))?;
        state.write(FILE, &text)
    }
}
