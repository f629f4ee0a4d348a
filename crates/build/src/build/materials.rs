//! What the build of one platform takes from outside: images, URLs and repositories. The stages add to
//! it while they run. Must not know how any of it was found.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use imgctl_trust::provenance::Material;

/// The materials so far.
#[derive(Debug, Default)]
pub(super) struct Materials(Mutex<BTreeSet<Material>>);

impl Materials {
    /// Adds one, which may be there already.
    pub(super) fn add(&self, material: Material) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(material);
    }

    /// Returns all of them.
    pub(super) fn into_set(self) -> BTreeSet<Material> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
