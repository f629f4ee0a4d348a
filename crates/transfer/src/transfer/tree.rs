//! Reads images from a docker-distribution storage tree and writes them there.

use std::fs::File;
use std::io::Read;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::partial::local::{LocalBlobs, TreeBlobs};
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource, SourceDocument, from_offset};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Origin, Verdict};
use imgctl_registry::Target;
use imgctl_registry::layout::{Facts, Layout};

/// One tag or manifest of a repository in a tree.
pub(crate) struct TreeSource {
    layout: Layout,
    repository: String,
    target: Target,
    arbiter: Arbiter,
}

impl TreeSource {
    /// Creates a source for `target` in `repository`.
    pub(crate) fn new(
        layout: &Layout,
        repository: &str,
        target: Target,
        arbiter: &Arbiter,
    ) -> Self {
        let (layout, repository) = (layout.clone(), repository.to_owned());
        Self { layout, repository, target, arbiter: arbiter.clone() }
    }

    fn missing(&self, what: &str, digest: &Digest) -> Error {
        Error::not_found(format!(
            "{what} {digest} of {} is not in {}",
            self.repository,
            self.layout.path().display()
        ))
        .hint(
            "the tree is incomplete: run `imgctl registry scrub` to find everything that is \
               missing",
        )
    }

    fn read(&self, digest: &Digest) -> Result<SourceDocument> {
        let stored = self.layout.manifest(&self.repository, digest)?;
        let stored = stored.ok_or_else(|| self.missing("manifest", digest))?;
        let size = stored.bytes.len() as u64;
        Ok(SourceDocument {
            descriptor: Descriptor::new(&stored.media_type, digest.clone(), size),
            bytes: stored.bytes,
        })
    }

    fn blob(&self, descriptor: &Descriptor) -> Result<File> {
        let digest = &descriptor.digest;
        let opened = self.layout.open_blob(digest)?;
        let (file, size) = opened.ok_or_else(|| self.missing("blob", digest))?;
        if size != descriptor.size {
            return Err(Error::bad_content(format!(
                "blob {digest} of {} has {size} bytes; its descriptor says {}",
                self.repository, descriptor.size
            )));
        }
        Ok(file)
    }
}

impl ImageSource for TreeSource {
    fn describe(&self) -> String {
        match &self.target {
            Target::Tag(tag) => format!("{}:{tag}", self.repository),
            Target::Digest(digest) => format!("{}@{digest}", self.repository),
        }
    }

    fn root(&self) -> Result<SourceDocument> {
        match &self.target {
            Target::Digest(digest) => self.read(digest),
            Target::Tag(tag) => match self.layout.resolve_tag(&self.repository, tag)? {
                Some(digest) => self.read(&digest),
                None => Err(Error::not_found(format!(
                    "{} is not in {}",
                    self.describe(),
                    self.layout.path().display()
                ))),
            },
        }
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.read(&descriptor.digest)?.bytes)
    }

    fn lacks(&self, descriptor: &Descriptor) -> bool {
        let found = self.layout.manifest(&self.repository, &descriptor.digest);
        matches!(found, Ok(None))
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        from_offset(self.blob(descriptor)?, offset, &descriptor.digest)
    }

    fn local_file(&self, descriptor: &Descriptor) -> Option<File> {
        self.blob(descriptor).ok()
    }

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        // The names of a tree have no registry, so no scope of one applies.
        let origin = Origin::of_path("registry-dir", &self.layout.path());
        self.arbiter.admit_elsewhere(None, &origin, digest, manifests, None)
    }
}

/// A tag, or only a digest, in a repository of a tree.
pub(crate) struct TreeSink {
    layout: Layout,
    repository: String,
    tag: Option<String>,
}

impl TreeSink {
    /// Creates a sink for `repository:tag`, or for an untagged image that is available by digest.
    pub(crate) fn new(layout: &Layout, repository: &str, tag: Option<&str>) -> Self {
        Self {
            layout: layout.clone(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
        }
    }
}

impl ImageSink for TreeSink {
    fn describe(&self) -> String {
        let place = self.layout.path();
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}"));
        let (name, tag) = (&self.repository, tag.unwrap_or_default());
        format!("{name}{tag} in {}", place.display())
    }

    fn local(&self) -> Option<Box<dyn LocalBlobs>> {
        let (layout, repository) = (self.layout.clone(), self.repository.clone());
        Some(Box::new(TreeBlobs { layout, repository }))
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        let digest = &descriptor.digest;
        let put = if self.layout.blob_size(digest)? == Some(descriptor.size) {
            if self.layout.has_layer(&self.repository, digest)? {
                return Ok(Put::Existed);
            } else {
                Put::Mounted
            }
        } else {
            let mut reader = blobs.read(descriptor, 0)?;
            self.layout.put_blob(&mut reader, digest, descriptor.size)?;
            Put::Copied
        };
        self.layout.link_layer(&self.repository, digest)?;
        Ok(put)
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let facts = Facts::parse(bytes)?;
        let digest = &descriptor.digest;
        self.layout.put_manifest(&self.repository, &[], digest, bytes, &facts)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], _verdict: &Verdict) -> Result<()> {
        let facts = Facts::parse(bytes)?;
        let tags: Vec<&str> = self.tag.as_deref().into_iter().collect();
        self.layout.put_manifest(&self.repository, &tags, &root.digest, bytes, &facts)
    }
}
