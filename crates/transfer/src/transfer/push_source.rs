//! The source of a push: the store, recompressed layers, and the origin registries of manifest list
//! members that are not in the store. Must not depend on the destination of a push.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use crate::transfer::ends::{ImageSource, SourceDocument, from_offset};
use crate::transfer::known_blobs::KnownBlobs;
use crate::transfer::recompress_image::Changed;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Reference};
use imgctl_registry::{Client, Repository, Target};
use imgctl_store::store::Store;

/// An image or list of the store that is being pushed.
pub(super) struct PushSource<'a> {
    store: &'a Store,
    name: String,
    root: Descriptor,
    changed: Option<&'a Changed>,
    known: &'a KnownBlobs,
    /// Repositories that hold members of the list, with their names.
    origins: HashMap<Digest, (Reference, Repository)>,
    /// Maps each blob below such a member to the member.
    members: Mutex<HashMap<Digest, Digest>>,
}

impl<'a> PushSource<'a> {
    /// Creates a source without origins; `name` appears in messages.
    pub(super) fn new(
        store: &'a Store,
        name: String,
        root: Descriptor,
        changed: Option<&'a Changed>,
        known: &'a KnownBlobs,
    ) -> Self {
        Self {
            store,
            name,
            root,
            changed,
            known,
            origins: HashMap::new(),
            members: Mutex::default(),
        }
    }

    /// Sets the origins of members that are not in the store.
    pub(super) fn with_origins(
        mut self,
        origins: &BTreeMap<Digest, String>,
        client: &Client,
    ) -> Result<Self> {
        for (digest, name) in origins {
            let name = Reference::parse(name)?;
            let repository = client.repository(&name)?;
            self.origins.insert(digest.clone(), (name, repository));
        }
        Ok(self)
    }

    /// Returns the repository that holds a list member or a blob of one.
    fn origin_of(&self, digest: &Digest) -> Option<&(Reference, Repository)> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        self.origins.get(members.get(digest).unwrap_or(digest))
    }

    /// Records that everything a document references is at the same origin as the document.
    fn spread(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let parts: Vec<Descriptor> = match Document::parse(bytes, Some(&descriptor.media_type))? {
            Document::Index(index) => index.manifests,
            Document::Manifest(manifest) => {
                let config = std::iter::once(manifest.config);
                config.chain(manifest.layers).collect()
            }
        };
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = &descriptor.digest;
        let member = members.get(digest).unwrap_or(digest).clone();
        for part in parts {
            members.entry(part.digest).or_insert_with(|| member.clone());
        }
        Ok(())
    }

    fn missing(&self, what: &str, digest: &Digest) -> Error {
        Error::not_found(format!("{what} {digest} of {} is not in the store", self.name)).hint(
            "pull the image with --all-platforms, or push only the platforms in the store with \
               --platform",
        )
    }
}

impl ImageSource for PushSource<'_> {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn root(&self) -> Result<SourceDocument> {
        Ok(SourceDocument {
            bytes: self.store.read_blob(&self.root.digest, MAX_DOCUMENT)?,
            descriptor: self.root.clone(),
        })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        match self.store.read_blob(&descriptor.digest, MAX_DOCUMENT) {
            Err(error) if error.kind() == Kind::NotFound => {}
            read => return read,
        }
        let Some((_, repository)) = self.origin_of(&descriptor.digest) else {
            return Err(self.missing("manifest", &descriptor.digest));
        };
        let target = Target::Digest(descriptor.digest.clone());
        let bytes = repository.document(&target)?.bytes;
        self.spread(descriptor, &bytes)?;
        Ok(bytes)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let digest = &descriptor.digest;
        let opened = match self.changed {
            Some(changed) => changed.open(digest),
            None => self.store.open_blob(digest),
        };
        match opened {
            Ok(file) => from_offset(file, offset, digest),
            Err(error) if error.kind() == Kind::NotFound => match self.origin_of(digest) {
                Some((_, repository)) => repository.blob(descriptor, offset),
                None => Err(self.missing("blob", digest)),
            },
            Err(error) => Err(error),
        }
    }

    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let mut all: Vec<String> = self
            .origin_of(digest)
            .filter(|(name, _)| name.registry() == Some(registry))
            .map(|(name, _)| name.repository().to_owned())
            .into_iter()
            .collect();
        for name in self.known.repositories(registry, digest) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}
