//! The client: what one repository of one registry is asked and told.
//!
//! Every call blocks and may be made from any thread. Each retries what is worth retrying, logs in
//! when it is asked to, goes through mirrors for reading, and reports errors that name registry,
//! repository and the source of the credentials. Must not know what manifests mean.

use std::io::Read;

use crate::error::Result;
use crate::image::{Descriptor, Digest, Reference};
use crate::registry::credentials::Credentials;
use crate::registry::registries::Registries;

/// What a client is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientOptions {
    /// Mirrors, insecure registries, certificates.
    pub(crate) registries: Registries,
    /// Who we are, by registry.
    pub(crate) credentials: Credentials,
    /// `--tls-verify`: `None` = as the configuration says.
    pub(crate) tls_verify: Option<bool>,
    /// Proxy variables (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY` and their small forms), as set.
    pub(crate) proxies: Vec<(String, String)>,
    /// How often a request is repeated that failed for a reason which may pass.
    pub(crate) retries: Option<u32>,
}

/// Connections to any number of registries. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {}

/// One repository. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Repository {}

/// What is asked for in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tag(String),
    Digest(Digest),
}

/// A manifest or index exactly as the registry keeps it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteDocument {
    pub(crate) bytes: Vec<u8>,
    /// Media type (of the document itself, else of the Content-Type header), digest computed over
    /// `bytes`, size.
    pub(crate) descriptor: Descriptor,
}

/// How a blob came to be in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was there.
    Existed,
    /// The registry took it from another of its repositories.
    Mounted,
    Uploaded,
}

/// Where the bytes of a push come from: opened at an offset, again after a cut.
pub(crate) type BlobOpener<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'static>> + Sync + 'a;

impl Client {
    /// Makes a client. Connects to nothing.
    pub(crate) fn new(options: ClientOptions) -> Result<Self> {
        todo!()
    }

    /// The repository of `reference` (which has a registry). A registry that the configuration
    /// blocks is an error.
    pub(crate) fn repository(&self, reference: &Reference) -> Result<Repository> {
        todo!()
    }

    /// Asks `registry` whether it takes our credentials (`GET /v2/`).
    pub(crate) fn check_login(&self, registry: &str) -> Result<()> {
        todo!()
    }

    /// All repositories of `registry`, through every page (`GET /v2/_catalog`).
    pub(crate) fn catalog(&self, registry: &str) -> Result<Vec<String>> {
        todo!()
    }
}

impl Repository {
    /// `registry/repository`, for messages.
    pub(crate) fn name(&self) -> String {
        todo!()
    }

    /// Reads a manifest or index, at most [`crate::image::manifest::MAX_DOCUMENT`] bytes; asked for
    /// by digest, its digest is checked. Docker schema 1 is refused by name.
    pub(crate) fn document(&self, target: &Target) -> Result<RemoteDocument> {
        todo!()
    }

    /// The descriptor behind `target` without its content (HEAD); `None` when it is not there.
    pub(crate) fn head(&self, target: &Target) -> Result<Option<Descriptor>> {
        todo!()
    }

    /// The bytes of a blob from `offset` on. Goes on by itself after cuts and through mirrors, reads
    /// large blobs in parallel ranges, ends with an error unless exactly `descriptor.size` bytes
    /// came. Does not hash: the caller has to.
    pub(crate) fn blob(
        &self,
        descriptor: &Descriptor,
        offset: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        todo!()
    }

    /// The size of a blob that is there (HEAD).
    pub(crate) fn blob_size(&self, digest: &Digest) -> Result<Option<u64>> {
        todo!()
    }

    /// Brings a blob in: asks whether it is there, then tries to mount it from the repositories
    /// `mount_from` of the same registry, then uploads it, going on after cuts.
    pub(crate) fn push_blob(
        &self,
        descriptor: &Descriptor,
        mount_from: &[String],
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Pushed> {
        todo!()
    }

    /// Puts a manifest or index under a tag or its digest. Returns whether the registry indexed its
    /// subject (`OCI-Subject`).
    pub(crate) fn push_document(
        &self,
        target: &Target,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<bool> {
        todo!()
    }

    /// All tags, through every page, as the registry orders them.
    pub(crate) fn tags(&self) -> Result<Vec<String>> {
        todo!()
    }

    /// What refers to `subject`, by the referrers API or the tag that stands for it.
    pub(crate) fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        todo!()
    }

    /// Puts a manifest that has a subject, and adds it to the tag that stands for the referrers API
    /// where the registry has none.
    pub(crate) fn push_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest> {
        todo!()
    }

    /// Removes a tag, or a manifest by its digest.
    pub(crate) fn delete(&self, target: &Target) -> Result<()> {
        todo!()
    }
}
