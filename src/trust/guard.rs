//! The policy at the gate: fetches the signatures that the policy asks for, and judges.

use std::path::PathBuf;

use crate::error::{Context as _, Result};
use crate::image::{Digest, Reference};
use crate::registry::Client;
use crate::registry::gate::Gate;
use crate::trust::fetch::{self, Content};
use crate::trust::gpg::MAX_MESSAGE;
use crate::trust::lookaside::{self, Lookasides};
use crate::trust::policy::{Policy, Requirements, Scheme, Signatures, Subject};

/// Where policy and lookasides are described. Read when the first image is judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    /// `--signature-policy`: it has to be there.
    pub(crate) policy: Option<PathBuf>,
    /// Else the first of these that exists; without any, everything is admitted.
    pub(crate) policies: Vec<PathBuf>,
    /// The first registries.d directory that exists.
    pub(crate) lookasides: Vec<PathBuf>,
    /// Where simple signatures lie if registries.d says nothing.
    pub(crate) default_lookaside: Option<PathBuf>,
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
        // The signature of an index vouches for what it lists.
        let Err(error) = judge.admit(digest) else {
            return Ok(());
        };
        if manifests.is_empty() || manifests.contains(digest) {
            return Err(error);
        }
        manifests
            .iter()
            .try_for_each(|manifest| judge.admit(manifest))
            // What the index itself lacks is what people can do something about.
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
        if self.requirements.needs(Scheme::Sigstore) && self.lookasides.uses_attachments(reference)
        {
            let repository = self.client.repository(reference)?;
            for candidate in fetch::all(&repository, digest)? {
                match candidate.content {
                    Ok(Content::Simple(signature)) => found.sigstore.push(Ok(signature)),
                    // Policies know nothing of bundles.
                    Ok(Content::Bundle(_)) => {}
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
