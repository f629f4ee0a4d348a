//! Images pushed into the store.
//!
//! A repository without a registry in its name belongs to `localhost`, as everywhere. A manifest
//! pushed only by digest gets the name `repository@digest`, which is removed once a named index
//! lists the manifest.
//!
//! In a store served by digest, any process can resume an upload: each blob has its own, whose ID
//! is its digest and size. Must not depend on HTTP.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::transfer::store_backend::view::Content;
use crate::transfer::store_backend::{StoreBackend, lock};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::verdict::CLIENT;
use imgctl_base::image::{Algorithm, Descriptor, Digest, Hasher, Origin, Reference, Verdict};
use imgctl_registry::layout::Facts;
use imgctl_registry::server::backend::{Deletion, UploadSession, WritableBackend};
use imgctl_store::store::blobs::Ingest;
use imgctl_store::store::partial::Partial;
use imgctl_store::store::{Named, Store};

/// How long pushed blobs wait for a manifest before their claims end.
const KEPT: Duration = Duration::from_secs(3600);
/// Maximum number of repositories with such blobs.
const MAX_KEPT: usize = 1024;

/// Pushed blobs by repository, protected from `prune` until a name references them.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<HashMap<String, Arrived>>>);

struct Arrived {
    /// A store handle with its own lease.
    store: Store,
    blobs: HashSet<Digest>,
    used: Instant,
}

impl Arrivals {
    /// Returns whether that blob was pushed to `repository`.
    pub(super) fn has(&self, repository: &str, digest: &Digest) -> bool {
        let all = lock(&self.0);
        let arrived = all.get(repository);
        arrived.is_some_and(|arrived| arrived.blobs.contains(digest))
    }

    /// Drops the claims of repositories whose last push is longer ago than `KEPT`.
    pub(super) fn forget(&self) {
        lock(&self.0).retain(|_, arrived| arrived.used.elapsed() < KEPT);
    }

    /// Releases the blobs in `digests` that were pushed to `repository`.
    pub(super) fn release(&self, repository: &str, digests: &HashSet<Digest>) -> Result<()> {
        let mut all = lock(&self.0);
        let Some(arrived) = all.get_mut(repository) else {
            return Ok(());
        };
        arrived.blobs.retain(|digest| !digests.contains(digest));
        // A lease can only grow: a new lease takes over the remaining blobs.
        let store = arrived.store.separate();
        for digest in &arrived.blobs {
            if let Some(size) = store.blob_size(digest)? {
                store.claim_blob(digest, size)?;
            }
        }
        arrived.store = store;
        Ok(())
    }

    /// Returns the store handle through which blobs of a repository are imported.
    fn store(&self, repository: &str, store: &Store) -> Store {
        self.update(repository, store, |arrived| arrived.store.clone())
    }

    /// Records a blob that is in the store, held by `store`.
    fn add(&self, repository: &str, store: &Store, digest: &Digest, size: u64) -> Result<()> {
        let current = self.update(repository, store, |arrived| {
            arrived.blobs.insert(digest.clone());
            arrived.store.clone()
        });
        // `current` differs from `store` if blobs were released in between.
        current.claim_blob(digest, size).map(drop)
    }

    fn update<T>(
        &self,
        repository: &str,
        store: &Store,
        change: impl FnOnce(&mut Arrived) -> T,
    ) -> T {
        let mut all = lock(&self.0);
        if all.len() >= MAX_KEPT && !all.contains_key(repository) {
            let oldest = all.iter().min_by_key(|(_, arrived)| arrived.used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| all.remove(&name));
        }
        let arrived = all.entry(repository.to_owned()).or_insert_with(|| Arrived {
            store: store.separate(),
            blobs: HashSet::new(),
            used: Instant::now(),
        });
        arrived.used = Instant::now();
        change(arrived)
    }
}

/// A blob being uploaded to the store. Does not outlive the process.
struct Upload {
    arrivals: Arrivals,
    repository: String,
    store: Store,
    id: String,
    ingest: Option<Ingest>,
    algorithm: Algorithm,
    hasher: Hasher,
}

impl WritableBackend for StoreBackend {
    fn start_upload(
        &self,
        repository: &str,
        algorithm: Option<Algorithm>,
    ) -> Result<Box<dyn UploadSession>> {
        let store = self.arrivals.store(repository, &self.store);
        let algorithm = algorithm.unwrap_or(Algorithm::Sha256);
        Ok(Box::new(Upload {
            arrivals: self.arrivals.clone(),
            repository: repository.to_owned(),
            id: random_id(),
            ingest: Some(store.ingest()?),
            store,
            algorithm,
            hasher: Hasher::with(algorithm),
        }))
    }

    fn resume_upload(&self, _repository: &str, id: &str) -> Result<Option<Box<dyn UploadSession>>> {
        if self.by_digest { resume(&self.store, id) } else { Ok(None) }
    }

    fn mount(&self, repository: &str, from: Option<&str>, digest: &Digest) -> Result<bool> {
        if let Some(from) = from
            && !self.has_blob(from, digest)?
        {
            return Ok(false);
        }
        let Some(size) = self.store.blob_size(digest)? else {
            return Ok(false);
        };
        let store = self.arrivals.store(repository, &self.store);
        let is_here = store.claim_blob(digest, size)?;
        if is_here {
            self.arrivals.add(repository, &store, digest, size)?;
        }
        Ok(is_here)
    }

    fn put_manifest(
        &self,
        repository: &str,
        tags: &[&str],
        digest: &Digest,
        bytes: &[u8],
        facts: &Facts,
    ) -> Result<()> {
        let store = self.arrivals.store(repository, &self.store);
        let size = bytes.len() as u64;
        store.import_blob(&mut &*bytes, digest, size)?;
        let descriptor = Descriptor::new(&facts.media_type, digest.clone(), size);
        let by_digest = |digest: &Digest| Reference::parse(&format!("{repository}@{digest}"));
        let verdict = |name: &Reference| match &self.arbiter {
            Some(arbiter) => {
                let origin = Origin::without_path(CLIENT);
                arbiter.admit_arriving(&store, Some(name), &descriptor, &origin)
            }
            None => Ok(Verdict::not_asked("the controller has decided what its hosts get")),
        };
        if tags.is_empty() {
            let name = by_digest(digest)?.qualified();
            return store.tag(std::slice::from_ref(&name), &descriptor, &verdict(&name)?);
        }
        let names: Vec<Reference> = tags
            .iter()
            .map(|tag| Ok(Reference::parse(&format!("{repository}:{tag}"))?.qualified()))
            .collect::<Result<_>>()?;
        let verdicts = names.iter().map(verdict).collect::<Result<Vec<_>>>()?;
        let all = names.into_iter().zip(&verdicts);
        let all: Vec<_> = all.map(|(name, verdict)| (Some(name), &descriptor, verdict)).collect();
        store.tag_all(&all)?;
        let children = facts.manifests.iter().map(|part| &part.digest);
        let passing: HashSet<Reference> = children
            .chain([digest])
            .map(|digest| Ok(by_digest(digest)?.qualified()))
            .collect::<Result<_>>()?;
        let is_passing =
            |named: &Named| named.reference.as_ref().is_some_and(|n| passing.contains(n));
        let gone: Vec<Named> = store.names()?.into_iter().filter(is_passing).collect();
        if !gone.is_empty() {
            store.untag(&gone)?;
        }
        Ok(())
    }

    fn delete_tag(&self, repository: &str, tag: &str) -> Result<Deletion> {
        let view = self.view()?;
        let named = view.repository(repository).and_then(|found| found.tag(tag));
        let Some(named) = named.cloned() else {
            return Ok(Deletion::Missing);
        };
        drop(view);
        let parts = Content::of(&self.store, &named.descriptor.digest)?.parts();
        let names = [named];
        self.store.untag(&names)?;
        // Clients that know the digest may still be pulling it; parts that no client has requested
        // are removed now.
        self.let_go(&HashSet::new(), &parts, &repositories(repository, &names))?;
        Ok(Deletion::Gone)
    }

    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        let view = self.view()?;
        let mut names = Vec::new();
        if let Some(found) = view.repository(repository) {
            names = found.names_of(digest);
            let lists = |content: &Content| content.manifests.contains_key(digest);
            if let Some(index) = found.needs(&self.store, digest, &lists)? {
                return Ok(Deletion::Needed(format!(
                    "the index {index} lists this manifest: delete the index"
                )));
            }
        }
        if names.is_empty() && self.media_type(repository, digest)?.is_none() {
            return Ok(Deletion::Missing);
        }
        let content = Content::of(&self.store, digest)?;
        let (mut documents, mut parts) = (content.documents(), content.parts());
        documents.insert(digest.clone());
        parts.insert(digest.clone());
        // Also releases the lease.
        drop((content, view));
        if !names.is_empty() {
            self.store.untag(&names)?;
        }
        self.let_go(&documents, &parts, &repositories(repository, &names))?;
        Ok(Deletion::Gone)
    }

    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        if !self.has_blob(repository, digest)? {
            return Ok(Deletion::Missing);
        }
        let view = self.view()?;
        if let Some(found) = view.repository(repository) {
            let has = |content: &Content| content.blobs.contains(digest);
            if let Some(image) = found.needs(&self.store, digest, &has)? {
                return Ok(Deletion::Needed(format!(
                    "the image {image} needs this blob, which goes with the image"
                )));
            }
        }
        drop(view);
        let gone = HashSet::from([digest.clone()]);
        self.let_go(&gone, &gone, &repositories(repository, &[]))?;
        Ok(Deletion::Gone)
    }

    fn free_space(&self) -> Option<u64> {
        let facts = rustix::fs::statvfs(self.store.layout()).ok()?;
        Some(facts.f_bavail.saturating_mul(facts.f_frsize))
    }
}

/// `named` and all other repositories that contain these names.
fn repositories(named: &str, names: &[Named]) -> HashSet<String> {
    let names = names.iter().filter_map(|named| named.reference.as_ref());
    let all = names.flat_map(|name| [name.name(), name.repository().to_owned()]);
    all.chain([named.to_owned()]).collect()
}

/// Hard to guess, so that no client continues another's upload by chance.
fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}-{:016x}", random(), random())
}

impl UploadSession for Upload {
    fn id(&self) -> &str {
        &self.id
    }

    fn offset(&self) -> u64 {
        self.ingest.as_ref().map_or(0, Ingest::written)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let ingest = self.ingest.as_mut().ok_or_else(ended)?;
        ingest.write_all(bytes).doing(|| "cannot write a blob into the store".to_owned())?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn commit(&mut self, digest: &Digest) -> Result<()> {
        let ingest = self.ingest.take().ok_or_else(ended)?;
        let size = ingest.written();
        let found = std::mem::replace(&mut self.hasher, Hasher::with(self.algorithm)).finish();
        let is_other_algorithm = digest.algorithm() != self.algorithm;
        if !is_other_algorithm && found != *digest {
            return Err(Error::bad_content(format!(
                "the blob has the digest {found}, not {digest}"
            )));
        }
        self.store.commit(ingest, &found)?;
        if is_other_algorithm {
            // The digest's algorithm was not known during the upload: hash the blob again, from the
            // store.
            let mut file = self.store.open_blob(&found)?;
            self.store.import_blob(&mut file, digest, size)?;
        }
        self.arrivals.add(&self.repository, &self.store, digest, size)
    }

    fn cancel(&mut self) -> Result<()> {
        self.ingest = None;
        Ok(())
    }
}

/// Returns the upload ID of a blob.
pub fn upload_id(blob: &Descriptor) -> String {
    let digest = &blob.digest;
    format!("{}.{}.{}", digest.algorithm().as_str(), digest.hex(), blob.size)
}

fn parse_id(id: &str) -> Option<(Digest, u64)> {
    let (digest, size) = id.rsplit_once('.')?;
    let digest = Digest::parse(&digest.replacen('.', ":", 1)).ok()?;
    Some((digest, size.parse().ok()?))
}

/// Resumes or begins the upload `id`. Returns `None` if it is not the ID of a blob, or if the blob
/// is already in the store.
pub(super) fn resume(store: &Store, id: &str) -> Result<Option<Box<dyn UploadSession>>> {
    let Some((digest, size)) = parse_id(id) else {
        return Ok(None);
    };
    let Some(mut partial) = store.partial(&digest, size)? else {
        return Ok(None);
    };
    // A range that ends with byte 0 means "nothing" to clients.
    if partial.length() == 1 {
        partial.restart()?;
    }
    let mut hasher = Hasher::with(digest.algorithm());
    partial.hash_here(&mut hasher)?;
    let (store, id) = (store.clone(), id.to_owned());
    Ok(Some(Box::new(Resumable { store, id, digest, partial: Some(partial), hasher })))
}

/// An incoming blob; the received part is kept when the upload is dropped.
struct Resumable {
    store: Store,
    id: String,
    digest: Digest,
    partial: Option<Partial>,
    hasher: Hasher,
}

fn ended() -> Error {
    Error::failed("the upload has ended")
}

impl UploadSession for Resumable {
    fn id(&self) -> &str {
        &self.id
    }

    fn offset(&self) -> u64 {
        self.partial.as_ref().map_or(0, Partial::length)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.partial.as_mut().ok_or_else(ended)?.append(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn commit(&mut self, digest: &Digest) -> Result<()> {
        let mut partial = self.partial.take().ok_or_else(ended)?;
        let hasher = std::mem::replace(&mut self.hasher, Hasher::with(self.digest.algorithm()));
        let found = hasher.finish();
        if found == *digest && found == self.digest {
            return self.store.commit_partial(partial);
        }
        partial.restart()?;
        Err(Error::bad_content(format!("the blob has the digest {found}, not {digest}")))
    }

    /// Closes the upload; the next attempt resumes it.
    fn cancel(&mut self) -> Result<()> {
        self.partial = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::store_backend::StoreBackend;
    use imgctl_base::error::Kind;
    use imgctl_registry::server::backend::{Backend, WritableBackend};
    use imgctl_store::store::Options;

    #[test]
    fn an_upload_goes_on_where_another_process_ended() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
        let blob = Descriptor::new("x/y", Digest::of(&content), content.len() as u64);
        let id = upload_id(&blob);
        let open = || {
            let store = Store::open(directory.path(), Options { sync: false }).unwrap();
            StoreBackend::by_digest(&store)
        };
        let blobs = open();
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        upload.append(&content[..40_000]).unwrap();
        drop((upload, blobs));
        let blobs = open();
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        assert_eq!(upload.offset(), 40_000);
        upload.append(&content[40_000..]).unwrap();
        assert!(upload.append(b"x").is_err());
        upload.commit(&blob.digest).unwrap();
        assert!(blobs.resume_upload("imgctl", &id).unwrap().is_none());
        assert_eq!(blobs.blob_size("any", &blob.digest).unwrap(), Some(100_000));
    }

    #[test]
    fn other_bytes_are_refused_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let blobs = StoreBackend::by_digest(&store);
        let blob = Descriptor::new("x/y", Digest::of(b"right"), 5);
        let id = upload_id(&blob);
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        upload.append(b"wrong").unwrap();
        let error = upload.commit(&blob.digest).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent);
        drop(upload);
        let upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        assert_eq!(upload.offset(), 0);
        for id in ["", "x", "sha256.ab.5", "sha256..", "../../x.1"] {
            assert!(blobs.resume_upload("imgctl", id).unwrap().is_none(), "{id}");
        }
    }
}
