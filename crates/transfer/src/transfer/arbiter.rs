//! Asks the policy about images that are on this machine or come by a file, and returns the verdict that
//! naming or pushing them takes. Images of registries ask through [`Client::admit`].

use crate::transfer::store_shelf::StoreShelf;
use imgctl_base::error::Result;
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Descriptor, Digest, Document, Origin, Reference, Verdict, media_type};
use imgctl_registry::Client;
use imgctl_registry::client::{Candidate, Shelf};
use imgctl_store::store::images::is_platform;
use imgctl_store::store::{Named, Store};

/// Whoever decides about images.
#[derive(Clone, Debug)]
pub struct Arbiter(Option<Client>);

impl Arbiter {
    /// The policy of this client decides.
    pub fn policy(client: &Client) -> Self {
        Self(Some(client.clone()))
    }

    /// Everything is admitted: there is no policy, or the image gets no name that is used.
    pub fn everything() -> Self {
        Self(None)
    }

    /// Decides whether an image of the store may be used under its name.
    pub fn admit(&self, store: &Store, image: &Named) -> Result<Verdict> {
        let origin = origin_of(image);
        let Some(client) = &self.0 else { return Ok(Verdict::by_policy(origin)) };
        let digest = &image.descriptor.digest;
        if image.reference.is_none() {
            // Asked for by digest or ID: what its names demand counts, too.
            let mut all = store.names()?;
            all.retain(|named| named.descriptor.digest == *digest);
            if all.iter().any(|named| named.reference.is_some()) {
                all.retain(|named| named.reference.is_some());
            }
            let mut verdict = None;
            for named in &all {
                verdict = Some(decide(client, store, named)?);
            }
            if let Some(verdict) = verdict {
                return Ok(verdict);
            }
        }
        decide(client, store, image)
    }

    /// Decides whether something may be made of an image of the store, or it may be pushed: images built
    /// here are subject to the policy only under the name of a registry.
    pub fn admit_input(&self, store: &Store, image: &Named) -> Result<Verdict> {
        let has_registry = image.reference.as_ref().is_some_and(is_of_registry);
        if !has_registry && self.is_built(store, image)? {
            Ok(Verdict::by_policy(Origin::Built))
        } else {
            self.admit(store, image)
        }
    }

    /// Decides whether an image of the store may go elsewhere, or get another name. An image built here may:
    /// otherwise it could not be signed where it is pushed to.
    pub fn admit_output(&self, store: &Store, image: &Named) -> Result<Verdict> {
        if self.is_built(store, image)? {
            Ok(Verdict::by_policy(Origin::Built))
        } else {
            self.admit(store, image)
        }
    }

    /// Returns whether the image was built here, whole or as a part of an index.
    fn is_built(&self, store: &Store, image: &Named) -> Result<bool> {
        if self.0.is_none() || image.reference.is_some() || image.origin.is_some() {
            return Ok(origin_of(image) == Origin::Built);
        }
        let digest = &image.descriptor.digest;
        for named in store.names()? {
            if named.origin() == Some(Origin::Built)
                && (named.descriptor.digest == *digest
                    || store.parts(&named.descriptor)?.contains_key(digest))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Decides whether an image whose content has arrived in the store may get the name `reference`.
    pub fn admit_arriving(
        &self,
        store: &Store,
        reference: Option<&Reference>,
        image: &Descriptor,
        origin: &Origin,
    ) -> Result<Verdict> {
        let Some(client) = &self.0 else { return Ok(Verdict::by_policy(origin.clone())) };
        // What was built here and comes back under its name changes nothing.
        let is_same = |named: &Named| {
            reference.is_some()
                && named.reference.as_ref() == reference
                && named.descriptor.digest == image.digest
                && named.origin == Some(Origin::Built)
        };
        if store.names()?.iter().any(is_same) {
            return Ok(Verdict::by_policy(Origin::Built));
        }
        let reference = reference.cloned();
        let named = Named { reference, descriptor: image.clone(), origin: Some(origin.clone()) };
        decide(client, store, &named)
    }

    /// Decides about an image that is not in the store.
    pub(crate) fn admit_elsewhere(
        &self,
        reference: Option<&Reference>,
        origin: &Origin,
        digest: &Digest,
        manifests: &[Digest],
        kept: Option<&dyn Shelf>,
    ) -> Result<Verdict> {
        match &self.0 {
            Some(client) => client.judge(&Candidate { reference, origin, digest, manifests, kept }),
            None => Ok(Verdict::by_policy(origin.clone())),
        }
    }
}

fn is_of_registry(name: &Reference) -> bool {
    name.registry().is_some_and(|registry| registry != LOCAL_REGISTRY)
}

/// Returns where an image came from; of one without a name or a record, nothing is known.
fn origin_of(image: &Named) -> Origin {
    image.origin().unwrap_or_else(|| Origin::without_path(""))
}

fn decide(client: &Client, store: &Store, named: &Named) -> Result<Verdict> {
    let image = &named.descriptor;
    let mut manifests = vec![image.digest.clone()];
    if media_type::is_index(&image.media_type)
        && let Document::Index(index) = store.document(image)?
    {
        // Of an index signed as a whole nothing else is needed; otherwise what is here counts.
        let mut here = Vec::new();
        for entry in index.manifests.iter().filter(|entry| is_platform(entry)) {
            if store.blob_size(&entry.digest)?.is_some() {
                here.push(entry.digest.clone());
            }
        }
        manifests = here;
    }
    client.judge(&Candidate {
        reference: named.reference.as_ref(),
        origin: &origin_of(named),
        digest: &image.digest,
        manifests: &manifests,
        kept: Some(&StoreShelf::new(store)),
    })
}
