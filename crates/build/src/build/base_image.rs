//! The images that a build starts from or copies from: taken from the store, or pulled from a
//! registry first if necessary and allowed. Each is looked up once per build, so that all stages
//! see the same image.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use imgctl_base::error::{Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Platform, Reference};
use imgctl_base::progress::Reporter;
use imgctl_registry::Client;
use imgctl_store::store::{Image, Store};
use imgctl_transfer::transfer::plan::{Platforms, Selection};
use imgctl_transfer::transfer::pull::{Policy, PullOptions, pull};

/// Source of images that are not in the store.
#[derive(Clone, Default)]
pub struct BaseImages {
    /// `None` = the store is the only source.
    pub client: Option<Client>,
    pub policy: Policy,
    found: Arc<Mutex<HashMap<Wanted, Slot>>>,
}

type Wanted = (String, Platform);
/// Locked by the stage that looks the image up until it has found it.
type Slot = Arc<Mutex<Option<Descriptor>>>;

impl fmt::Debug for BaseImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BaseImages({:?})", self.policy)
    }
}

impl BaseImages {
    /// Uses a registry client, according to `policy`.
    pub fn new(client: Client, policy: Policy) -> Self {
        Self { client: Some(client), policy, ..Self::default() }
    }

    /// Returns the image `name` for `platform`.
    pub fn get(
        &self,
        store: &Store,
        name: &str,
        platform: &Platform,
        reporter: &dyn Reporter,
    ) -> Result<Image> {
        let slot = {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = found.entry((name.to_owned(), platform.clone()));
            Arc::clone(slot.or_default())
        };
        // A second stage that needs the image waits until the first has it.
        let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = &*known {
            return named(store, name, descriptor, platform);
        }
        let image = self.look(store, name, platform, reporter)?;
        *known = Some(image.descriptor.clone());
        Ok(image)
    }

    fn look(
        &self,
        store: &Store,
        name: &str,
        platform: &Platform,
        reporter: &dyn Reporter,
    ) -> Result<Image> {
        let here = || store.image(name, Some(platform));
        let may_ask = self.policy != Policy::Never;
        let is_id = Digest::parse(name).is_ok();
        let (Some(client), true, false) = (&self.client, may_ask, is_id) else {
            return here().map_err(|error| match error.kind() {
                Kind::NotFound => error.hint(format!(
                    "pull it first (`imgctl pull {name}`), or build with --pull=missing"
                )),
                _ => error,
            });
        };
        if self.policy == Policy::Missing {
            match here() {
                Err(error) if error.kind() == Kind::NotFound => {}
                image => return image,
            }
        }
        let reference = Reference::parse(name)?;
        reporter.note(&format!("pulling {reference}"));
        let options = PullOptions {
            selection: Selection {
                platforms: Platforms::Only(vec![platform.clone()]),
                // A build for another platform adds to the same index.
                keep_index: true,
            },
            policy: self.policy,
            ..PullOptions::default()
        };
        let pulled = pull(store, client, &reference, &options, reporter).map_err(|error| {
            // The name may be a misspelled name of a stored image.
            let near = here().err().map(|error| error.hints().join("; "));
            match near.filter(|near| !near.is_empty()) {
                Some(near) => error.hint(near),
                None => error,
            }
        })?;
        let name = pulled.reference.to_string();
        named(store, &name, &pulled.descriptor, platform)
    }
}

fn named(store: &Store, name: &str, descriptor: &Descriptor, platform: &Platform) -> Result<Image> {
    let mut image = store.image_at(descriptor, Some(platform))?;
    image.reference = Reference::parse(name).ok().map(|name| name.qualified());
    Ok(image)
}
