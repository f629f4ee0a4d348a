//! Artifacts kept with images: signatures and other documents that refer to a manifest or an index of
//! the store, and signed indexes that list a manifest whose index is not an image here.
//!
//! `referrers/<subject>/<artifact>` holds the artifact's descriptor; its blobs are among all others.
//! One file for each: processes that add at the same time do not meet. Must not know what artifacts
//! say.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::store::Store;
use crate::store::images::is_document;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::sync_directory;
use imgctl_base::fs::directory::list;
use imgctl_base::fs::lock::Mode;
use imgctl_base::image::{Descriptor, Digest, Document, media_type};

/// Directory of the links.
pub(super) const REFERRERS: &str = "referrers";
/// Maximum number of artifacts of one subject.
const MAX_REFERRERS: usize = 1000;
/// Maximum size of a descriptor, in bytes.
const MAX_LINK: u64 = 64 << 10;

impl Store {
    /// Keeps the artifact `referrer` with `subject`. Its blobs are in the store already.
    pub fn attach(&self, subject: &Digest, referrer: &Descriptor) -> Result<()> {
        let bytes = serde_json::to_vec(referrer)
            .map_err(|error| Error::failed("cannot encode a descriptor").caused_by(error))?;
        // No garbage collection may remove the directory before the link is in it.
        let _lock = self.lock(Mode::Shared)?;
        let (parent, directory) = (self.path(REFERRERS), self.referrers_of(subject));
        std::fs::create_dir_all(&directory).path("create the directory", &directory)?;
        let path = directory.join(file_name(&referrer.digest));
        let mut ingest = self.ingest()?;
        ingest.write_all(&bytes).path("write", &path)?;
        self.publish(ingest, &path, 0o644)?;
        if self.is_synced() {
            sync_directory(&directory)?;
            sync_directory(&parent)?;
        }
        Ok(())
    }

    /// Returns the artifacts kept with `subject`, by digest.
    pub fn referrers(&self, subject: &Digest) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for path in list(&self.referrers_of(subject))?.into_iter().take(MAX_REFERRERS) {
            let mut bytes = Vec::new();
            match File::open(&path).and_then(|file| file.take(MAX_LINK).read_to_end(&mut bytes)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                read => read.path("read", &path)?,
            };
            match serde_json::from_slice::<Descriptor>(&bytes) {
                Ok(descriptor) => found.push(descriptor),
                Err(error) => tracing::warn!("ignoring {}: {error}", path.display()),
            }
        }
        found.sort_by(|a, b| a.digest.cmp(&b.digest));
        Ok(found)
    }

    /// Returns all artifacts kept with an image: with its manifest or index, with what that lists, and
    /// with kept indexes; each with its subject.
    pub fn attached(&self, image: &Descriptor) -> Result<Vec<(Digest, Descriptor)>> {
        let mut found = Vec::new();
        if list(&self.path(REFERRERS))?.is_empty() {
            return Ok(found);
        }
        let (mut seen, mut pending) = (HashSet::new(), vec![(image.clone(), true)]);
        while let Some((document, is_part)) = pending.pop() {
            if !seen.insert(document.digest.clone()) {
                continue;
            }
            for referrer in self.referrers(&document.digest)? {
                if media_type::is_index(&referrer.media_type) {
                    pending.push((referrer.clone(), false));
                }
                found.push((document.digest.clone(), referrer));
            }
            if !is_part || !media_type::is_index(&document.media_type) {
                continue;
            }
            match self.document(&document) {
                Ok(Document::Index(index)) => {
                    let documents = index.manifests.into_iter().filter(is_document);
                    pending.extend(documents.map(|child| (child, true)));
                }
                Ok(Document::Manifest(_)) => {}
                // What is missing or damaged has no parts.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadContent) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the blobs of an artifact; a kept index is only the document itself.
    pub fn artifact_parts(&self, artifact: &Descriptor) -> Result<Vec<Descriptor>> {
        let mut parts = vec![artifact.clone()];
        if media_type::is_manifest(&artifact.media_type)
            && let Document::Manifest(manifest) = self.document(artifact)?
        {
            parts.push(manifest.config);
            parts.extend(manifest.layers);
        }
        Ok(parts)
    }

    /// Returns the directories of links whose subject is not in `live`.
    pub(super) fn unneeded_links(&self, live: &HashSet<Digest>) -> Result<Vec<PathBuf>> {
        let needed: HashSet<String> = live.iter().map(file_name).collect();
        let mut directories = list(&self.path(REFERRERS))?;
        directories.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !needed.contains(&*name)
        });
        Ok(directories)
    }

    fn referrers_of(&self, subject: &Digest) -> PathBuf {
        self.path(REFERRERS).join(file_name(subject))
    }
}

fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().as_str(), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;
    use crate::store::prune::PruneOptions;
    use crate::store::tests::anyone;
    use imgctl_base::image::{Index, Manifest};
    use imgctl_base::progress::Silent;

    #[test]
    fn artifacts_stay_as_long_as_their_image() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Store::open(directory.path(), Options { sync: false }).unwrap();
        let store = open();
        let empty =
            Descriptor::new("application/vnd.oci.empty.v1+json", store.put_blob(b"{}").unwrap(), 2);
        let list = store.put_document(media_type::OCI_INDEX, &Index::new(Vec::new())).unwrap();
        let bundle = Descriptor::new("text/plain", store.put_blob(b"signed").unwrap(), 6);
        let artifact = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.to_owned()),
            artifact_type: Some("text/plain".to_owned()),
            config: empty,
            layers: vec![bundle.clone()],
            subject: Some(list.clone()),
            annotations: std::collections::BTreeMap::new(),
        };
        let artifact = store.put_document(media_type::OCI_MANIFEST, &artifact).unwrap();
        store.attach(&list.digest, &artifact).unwrap();
        store.attach(&list.digest, &artifact).unwrap();
        let name = imgctl_base::image::Reference::parse("x.io/n:1").unwrap();
        store.tag_list(&name, &list, &anyone()).unwrap();
        assert_eq!(store.attached(&list).unwrap(), [(list.digest.clone(), artifact.clone())]);
        assert_eq!(store.artifact_parts(&artifact).unwrap().len(), 3);
        drop(store);

        let prune = || {
            let store = open();
            let plan = store.plan_prune(&PruneOptions { unnamed: true, ..PruneOptions::default() });
            store.prune(&plan.unwrap(), &Silent).unwrap();
            store
        };
        let store = prune();
        assert!(store.blob_size(&bundle.digest).unwrap().is_some());
        assert_eq!(store.referrers(&list.digest).unwrap(), [artifact]);
        store.untag(&store.names().unwrap()).unwrap();
        drop(store);
        let store = prune();
        assert!(store.blob_size(&bundle.digest).unwrap().is_none());
        assert!(store.referrers(&list.digest).unwrap().is_empty());
    }
}
