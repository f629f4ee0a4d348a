//! Opens the cache at a place, whatever kind of place it is.

use std::sync::Arc;

use crate::cache::directory::DirectoryPlace;
use crate::cache::place::{CachePlace, Place};
use crate::cache::registry::RegistryPlace;
use imgctl_base::error::{Error, Result};
use imgctl_registry::Client;
use imgctl_store::store::Store;

/// Opens a place; connects to nothing yet.
pub(crate) fn open(
    place: &Place,
    store: &Store,
    client: Option<&Client>,
) -> Result<Arc<dyn CachePlace>> {
    Ok(match place {
        Place::Registry(reference) => {
            let client = client.ok_or_else(|| {
                Error::usage(format!("the build cache {reference} needs a registry client"))
            })?;
            Arc::new(RegistryPlace::new(store, client, reference)?)
        }
        Place::Directory { path, tag } => Arc::new(DirectoryPlace::new(path, tag)),
    })
}
