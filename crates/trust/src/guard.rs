//! Enforces the signature policy: fetches the signatures that the policy requires, and checks them.

use std::path::PathBuf;

use crate::gpg::MAX_MESSAGE;
use crate::policy::{Policy, Requirements, Scheme, Signatures, Subject};
use crate::{fetch, fetch::Content};
use crate::{lookaside, lookaside::Lookasides};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Digest, Origin, Reference};
use imgctl_registry::client::{Candidate, Gate, Shelf};
use imgctl_registry::{Client, Repository, Target};

/// Locations of the policy and the lookaside configuration. Read when an image is checked.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// `--signature-policy`: the file must exist.
    pub policy: Option<PathBuf>,
    /// Otherwise, the first of these that exists; if none does, every image is admitted.
    pub policies: Vec<PathBuf>,
    /// The first existing registries.d directory is used.
    pub lookasides: Vec<PathBuf>,
    /// Location of simple signatures if registries.d specifies none.
    pub default_lookaside: Option<PathBuf>,
}

impl Guard {
    /// Returns whether there is a policy at all.
    pub fn has_policy(&self) -> bool {
        self.policy.is_some() || self.policies.iter().any(|file| file.exists())
    }

    /// Fails if the policy that was asked for cannot be read, whether or not an image needs it.
    pub fn check(&self) -> Result<()> {
        self.policy.as_deref().map_or(Ok(()), |file| Policy::read(file).map(drop))
    }

    fn policy(&self) -> Result<Option<Policy>> {
        match &self.policy {
            Some(file) => Policy::read(file).map(Some),
            None => Policy::read_first(&self.policies),
        }
    }

    fn lookasides(&self) -> Result<Lookasides> {
        Lookasides::read(&self.lookasides, self.default_lookaside.clone())
    }
}

impl Gate for Guard {
    fn admit(&self, client: &Client, image: &Candidate<'_>) -> Result<()> {
        let Some(policy) = self.policy()? else { return Ok(()) };
        let (requirements, reference) = demands(&policy, image);
        let judge = Judge { client, requirements, lookasides: self.lookasides()?, reference };
        let admit = |digest: &Digest| match image.kept {
            Some(shelf) => judge.admit_kept(shelf, digest),
            None => judge.admit(digest),
        };
        // The signature of an index covers the manifests it lists.
        let Err(error) = admit(image.digest) else {
            return Ok(());
        };
        if image.manifests.is_empty() || image.manifests.contains(image.digest) {
            return Err(error);
        }
        // Reports the error of the index, which users can act on.
        image.manifests.iter().try_for_each(admit).map_err(|_| error)
    }

    fn keep(
        &self,
        client: &Client,
        reference: &Reference,
        digest: &Digest,
        shelf: &dyn Shelf,
    ) -> Result<bool> {
        let Some(policy) = self.policy()? else { return Ok(false) };
        if !attached(&policy.for_registry(reference), &self.lookasides()?, reference) {
            return Ok(false);
        }
        fetch::copy(&client.repository(reference)?, digest, shelf)
    }
}

/// Returns what the policy demands of an image, and the name that its signatures must be for.
///
/// What a registry gave under a name is subject to the name's scope. Any other image can be called
/// anything: a scope that accepts a name accepts what comes under it from its registry, so where the
/// image came from decides. A scope that demands signatures, or rejects, holds for the name in any case.
fn demands<'i>(
    policy: &'i Policy,
    image: &Candidate<'i>,
) -> (Requirements<'i>, Option<&'i Reference>) {
    let reference = image.reference;
    let remote = reference.filter(is_remote);
    let by_name =
        remote.and_then(|name| policy.for_name(name)).filter(|demands| !demands.accepts_anything());
    match image.origin {
        Origin::Built => match reference {
            Some(name) => (policy.for_registry(name), reference),
            None => (policy.for_unnamed(), None),
        },
        Origin::Registry(origin) => match by_name {
            Some(demands) => (demands, reference),
            None => (policy.for_registry(origin), Some(origin)),
        },
        Origin::Place { transport, path } => {
            let by_place = || policy.for_place(transport, path);
            (by_name.unwrap_or_else(by_place), reference)
        }
    }
}

fn is_remote(name: &&Reference) -> bool {
    name.registry().is_some_and(|registry| registry != LOCAL_REGISTRY)
}

/// Returns whether signatures beside the image matter.
fn attached(requirements: &Requirements<'_>, lookasides: &Lookasides, name: &Reference) -> bool {
    requirements.needs_bundles()
        || requirements.needs(Scheme::Sigstore) && lookasides.uses_attachments(name)
}

struct Judge<'a> {
    client: &'a Client,
    requirements: Requirements<'a>,
    lookasides: Lookasides,
    reference: Option<&'a Reference>,
}

impl Judge<'_> {
    /// Decides about an image in the registry of its name.
    fn admit(&self, digest: &Digest) -> Result<()> {
        self.check(digest, &self.signatures(digest)?)
    }

    /// Decides about an image of this machine: by what is kept with it, otherwise by what its registry
    /// has about it.
    fn admit_kept(&self, shelf: &dyn Shelf, digest: &Digest) -> Result<()> {
        if !self.requirements.needs_signatures() {
            return self.check(digest, &Signatures::default());
        }
        let mut all = Signatures::default();
        for vouching in fetch::vouching(shelf, digest)? {
            let mut kept = Signatures::default();
            collect(shelf, None, &vouching, &mut kept)?;
            if self.check(&vouching, &kept).is_ok() {
                return Ok(());
            }
            all.sigstore.extend(kept.sigstore);
            all.bundles.extend(kept.bundles);
        }
        all.looked.push(shelf.name());
        let Some(reference) = self.reference.filter(is_remote) else {
            let refused = self.check(digest, &all);
            return refused.map_err(|error| {
                error.hint("load an archive that carries the image's signatures, or sign the image")
            });
        };
        let unreachable = || {
            format!(
                "cannot check the signatures of {reference}: none that the policy accepts is kept \
                 with the image, and the registry must be asked"
            )
        };
        let there = self.signatures(digest).context(unreachable)?;
        all.sigstore.extend(there.sigstore);
        all.bundles.extend(there.bundles);
        all.gpg.extend(there.gpg);
        all.looked.extend(there.looked);
        let Err(refused) = self.check(digest, &all) else { return Ok(()) };
        // A signature of the index that the name means there covers the platform that is here.
        match self.index_of(reference, digest).context(unreachable)? {
            Some(index) if self.admit(&index).is_ok() => Ok(()),
            _ => Err(refused.hint(format!(
                "pull the image that was signed (imgctl pull {reference}), or let the signer \
                 that the policy names sign it"
            ))),
        }
    }

    /// Returns what `reference` means in its registry, if that is an index that lists `digest`.
    fn index_of(&self, reference: &Reference, digest: &Digest) -> Result<Option<Digest>> {
        let repository = self.client.repository(reference)?;
        let document = repository.document(&Target::of(reference)).found()?;
        Ok(document
            .filter(|document| fetch::lists(&document.bytes, digest))
            .map(|document| document.descriptor.digest))
    }

    fn check(&self, digest: &Digest, signatures: &Signatures) -> Result<()> {
        let subject = Subject {
            description: match self.reference {
                Some(reference) => format!("{reference} ({digest})"),
                None => format!("the image {digest}, which has no name"),
            },
            reference: self.reference.cloned(),
            digests: vec![digest.clone()],
        };
        self.requirements.check(&subject, signatures)
    }

    /// Fetches the signatures from the image's registry and its lookaside.
    fn signatures(&self, digest: &Digest) -> Result<Signatures> {
        let mut found = Signatures::default();
        let Some(reference) = self.reference.filter(is_remote) else { return Ok(found) };
        let doing = || format!("cannot fetch the signatures of {reference}");
        if attached(&self.requirements, &self.lookasides, reference) {
            let repository = self.client.repository(reference).context(doing)?;
            collect(&repository, Some(&repository), digest, &mut found).context(doing)?;
            found.looked.push(repository.name());
        }
        if self.requirements.needs(Scheme::Gpg)
            && let Some(url) = self.lookasides.url(reference)
        {
            let get = |url: &str| self.client.file(url, MAX_MESSAGE);
            found.gpg = lookaside::signatures(&url, reference, digest, &get).context(doing)?;
            found.looked.push(url);
        }
        Ok(found)
    }
}

/// Adds the signatures of `digest` on a shelf, and at the tag of `repository`.
fn collect(
    shelf: &dyn Shelf,
    repository: Option<&Repository>,
    digest: &Digest,
    found: &mut Signatures,
) -> Result<()> {
    for candidate in fetch::all(shelf, repository, digest)? {
        match candidate.content {
            Ok(Content::Simple(signature)) => found.sigstore.push(Ok(signature)),
            Ok(Content::Bundle(bundle)) => found.bundles.push(bundle),
            Err(error) => {
                let error = Error::new(error.kind(), format!("{}: {error}", candidate.place));
                found.sigstore.push(Err(error));
            }
        }
    }
    Ok(())
}
