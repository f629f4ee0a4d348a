//! Enforces the signature policy: fetches the signatures that the policy requires, and checks them.

use std::path::PathBuf;

use crate::trust::fetch::{self, Content};
use crate::trust::gpg::MAX_MESSAGE;
use crate::trust::lookaside::{self, Lookasides};
use crate::trust::policy::{Policy, Requirements, Scheme, Signatures, Subject};
use imgctl_base::error::{Context as _, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_registry::Client;
use imgctl_registry::client::Gate;

/// Locations of the policy and the lookaside configuration. Read when the first image is checked.
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

impl Gate for Guard {
    fn admit(
        &self,
        client: &Client,
        reference: &Reference,
        digest: &Digest,
        manifests: &[Digest],
    ) -> Result<()> {
        let policy = match &self.policy {
            Some(file) => Some(Policy::read(file)?),
            None => Policy::read_first(&self.policies)?,
        };
        let Some(policy) = policy else { return Ok(()) };
        let judge = Judge {
            client,
            requirements: policy.for_registry(reference),
            lookasides: Lookasides::read(&self.lookasides, self.default_lookaside.clone())?,
            reference,
        };
        // The signature of an index covers the manifests it lists.
        let Err(error) = judge.admit(digest) else {
            return Ok(());
        };
        if manifests.is_empty() || manifests.contains(digest) {
            return Err(error);
        }
        manifests
            .iter()
            .try_for_each(|manifest| judge.admit(manifest))
            // Reports the error of the index, which users can act on.
            .map_err(|_| error)
    }
}

struct Judge<'a> {
    client: &'a Client,
    requirements: Requirements<'a>,
    lookasides: Lookasides,
    reference: &'a Reference,
}

impl Judge<'_> {
    fn admit(&self, digest: &Digest) -> Result<()> {
        let signatures = self
            .signatures(digest)
            .context(|| format!("cannot fetch the signatures of {}", self.reference))?;
        let subject = Subject {
            description: format!("{} ({digest})", self.reference),
            reference: Some(self.reference.clone()),
            digests: vec![digest.clone()],
        };
        self.requirements.check(&subject, &signatures)
    }

    fn signatures(&self, digest: &Digest) -> Result<Signatures> {
        let mut found = Signatures::default();
        let reference = self.reference;
        let attached = self.requirements.needs(Scheme::Sigstore)
            && self.lookasides.uses_attachments(reference);
        if attached || self.requirements.needs_bundles() {
            let repository = self.client.repository(reference)?;
            for candidate in fetch::all(&repository, digest)? {
                match candidate.content {
                    Ok(Content::Simple(signature)) => found.sigstore.push(Ok(signature)),
                    Ok(Content::Bundle(bundle)) => found.bundles.push(bundle),
                    Err(error) => found.sigstore.push(Err(error)),
                }
            }
            found.looked.push(repository.name());
        }
        if self.requirements.needs(Scheme::Gpg)
            && let Some(url) = self.lookasides.url(reference)
        {
            let get = |url: &str| self.client.file(url, MAX_MESSAGE);
            found.gpg = lookaside::signatures(&url, reference, digest, &get)?;
            found.looked.push(url);
        }
        Ok(found)
    }
}
