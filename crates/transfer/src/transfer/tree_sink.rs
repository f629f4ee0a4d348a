//! Writes an image into a docker-distribution storage tree.

use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::Blobs;
use imgctl_base::error::Result;
use imgctl_base::image::Descriptor;
use imgctl_registry::layout::{Facts, Layout};

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

    fn finish(&self, root: &Descriptor, bytes: &[u8]) -> Result<()> {
        let facts = Facts::parse(bytes)?;
        let tags: Vec<&str> = self.tag.as_deref().into_iter().collect();
        self.layout.put_manifest(&self.repository, &tags, &root.digest, bytes, &facts)
    }
}
