//! Disk usage: by class, and by image with its shared data.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use crate::store::images::is_document;
use crate::store::prune::{PruneOptions, size_of};
use crate::store::{Named, Store, snapshots};
use imgctl_base::error::Result;
use imgctl_base::fs::directory::list;
use imgctl_base::image::{Descriptor, Digest, Document, LayerKind};

/// Disk usage of one class of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// Name such as `rootfs layers`, `manifests and configs`, `snapshots`.
    pub class: String,
    pub count: u64,
    /// Size in bytes, like all sizes here.
    pub size: u64,
    /// Bytes that `prune --all` would free.
    pub reclaimable: u64,
}

/// Disk usage of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUsage {
    /// Names of the image; none for `<none>`.
    pub names: Vec<String>,
    /// Digest of the manifest or index.
    pub digest: Digest,
    /// Size of all its blobs.
    pub size: u64,
    /// Size of the blobs that other images also use.
    pub shared: u64,
    /// Size of the blobs that only this image uses.
    pub unique: u64,
}

/// One record of the store's build cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    /// Key of the step.
    pub key: String,
    pub used: SystemTime,
    /// Existing blobs that it refers to, each once.
    pub layers: Vec<CachedBlob>,
}

/// A blob that a record of the build cache refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedBlob {
    pub digest: Digest,
    pub size: u64,
    /// An image, a mount or a running command needs it as well.
    pub is_needed: bool,
}

impl CacheUsage {
    /// Returns the size of the layers of `records`, each of which counts once, and of those among
    /// them that only the build cache needs.
    pub fn total<'a>(records: impl IntoIterator<Item = &'a Self>) -> (u64, u64) {
        let layers = records.into_iter().flat_map(|record| &record.layers);
        let layers: HashMap<&Digest, &CachedBlob> =
            layers.map(|layer| (&layer.digest, layer)).collect();
        let size = |layers: &mut dyn Iterator<Item = &&CachedBlob>| layers.map(|l| l.size).sum();
        (size(&mut layers.values()), size(&mut layers.values().filter(|layer| !layer.is_needed)))
    }
}

/// Disk usage of the store.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub classes: Vec<ClassUsage>,
    pub images: Vec<ImageUsage>,
}

impl Store {
    /// Measures the store.
    pub fn usage(&self) -> Result<Usage> {
        let names = self.names()?;
        let everything = PruneOptions { unnamed: true, all: true, ..PruneOptions::default() };
        let plan = self.plan_prune(&everything)?;
        let reclaimable: HashMap<&Path, u64> =
            plan.garbage.iter().map(|g| (g.path.as_path(), g.size)).collect();
        let mut classes: BTreeMap<(u8, &str), ClassUsage> = BTreeMap::new();
        let mut add = |order: u8, class: &'static str, path: &Path, size: u64| {
            let usage = classes.entry((order, class)).or_default();
            usage.count += 1;
            usage.size += size;
            usage.reclaimable += reclaimable.get(path).copied().unwrap_or(0);
        };
        let kinds = self.blob_kinds(&names)?;
        for digest in self.blob_digests()? {
            let size = self.blob_size(&digest)?.unwrap_or(0);
            let (order, class) = kinds.get(&digest).copied().unwrap_or((5, "unnamed blobs"));
            add(order, class, &self.blob_path(&digest), size);
        }
        for (order, class, directory) in [
            (6, "unpacked layers", "snapshots"),
            (7, "decompressed layers", "tars"),
            (8, "tables of contents", "toc"),
            (8, "tables of contents", snapshots::RESTARTS),
            (9, "build cache records", "cache/steps"),
            (11, "mounts", "mounts"),
            (12, "unfinished", "ingest"),
        ] {
            for path in list(&self.path(directory))? {
                add(order, class, &path, size_of(&path));
            }
        }
        for path in list(&self.path("cache"))? {
            if path.file_name().is_some_and(|name| name != "steps") {
                for part in if path.is_dir() { list(&path)? } else { vec![path] } {
                    add(10, "other caches", &part, size_of(&part));
                }
            }
        }
        let classes = classes
            .into_iter()
            .map(|((_, class), usage)| ClassUsage { class: class.to_owned(), ..usage });
        Ok(Usage { classes: classes.collect(), images: self.image_usage(&names)? })
    }

    /// Returns the records of the build cache, the most recently used first.
    pub fn cache_usage(&self) -> Result<Vec<CacheUsage>> {
        let names = self.names()?;
        let mut needed = self.reachable(Self::named_descriptors(&names), &mut |_| {})?;
        needed.extend(self.mounted()?);
        needed.extend(self.leased()?);
        let mut usage = Vec::new();
        for record in self.cache_records()? {
            let key = record.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut layers: Vec<CachedBlob> = Vec::new();
            // Records also list diff IDs; only blobs have a size here.
            for digest in record.digests.into_iter().flatten() {
                if let Some(size) = self.blob_size(&digest)?
                    && layers.iter().all(|layer| layer.digest != digest)
                {
                    let is_needed = needed.contains(&digest);
                    layers.push(CachedBlob { digest, size, is_needed });
                }
            }
            usage.push(CacheUsage { key, used: record.used, layers });
        }
        Ok(usage)
    }

    /// Returns the class of each named blob, with the class's position in the table.
    fn blob_kinds(&self, names: &[Named]) -> Result<HashMap<Digest, (u8, &'static str)>> {
        let mut kinds = HashMap::new();
        for named in names {
            self.visit_parts(&named.descriptor, &mut |part, is_layer| {
                let kind = match (is_layer, part.layer_kind()) {
                    (false, _) => (4, "manifests and configs"),
                    (true, Some(LayerKind::Rootfs)) => (0, "rootfs layers"),
                    (true, Some(LayerKind::Registry)) => (1, "registry layers"),
                    (true, Some(LayerKind::Addons)) => (2, "addons layers"),
                    (true, None) => (3, "other layers"),
                };
                kinds.insert(part.digest.clone(), kind);
            })?;
            for (_, artifact) in self.attached(&named.descriptor)? {
                for part in self.artifact_parts(&artifact).unwrap_or_default() {
                    kinds.entry(part.digest).or_insert((4, "manifests and configs"));
                }
            }
        }
        Ok(kinds)
    }

    fn image_usage(&self, names: &[Named]) -> Result<Vec<ImageUsage>> {
        let mut images: BTreeMap<&Digest, (Vec<String>, HashMap<Digest, u64>)> = BTreeMap::new();
        for named in names {
            let (labels, parts) = images.entry(&named.descriptor.digest).or_default();
            labels.extend(named.descriptor.ref_name().map(str::to_owned));
            if parts.is_empty() {
                *parts = self.parts(&named.descriptor)?;
            }
        }
        let mut owners: HashMap<Digest, u32> = HashMap::new();
        for digest in images.values().flat_map(|(_, parts)| parts.keys()) {
            *owners.entry(digest.clone()).or_default() += 1;
        }
        let usage = images.iter().map(|(digest, (labels, parts))| {
            let size: u64 = parts.values().sum();
            let is_shared = |digest: &&Digest| owners.get(*digest).is_some_and(|n| *n > 1);
            let shared = parts.keys().filter(is_shared).filter_map(|d| parts.get(d)).sum();
            ImageUsage {
                names: labels.clone(),
                digest: (*digest).clone(),
                size,
                shared,
                unique: size - shared,
            }
        });
        let mut usage: Vec<ImageUsage> = usage.collect();
        usage.sort_by(|a, b| (a.names.is_empty(), &a.names).cmp(&(b.names.is_empty(), &b.names)));
        Ok(usage)
    }

    /// Returns the existing blobs of an image (all platforms of an index), with their sizes.
    pub fn parts(&self, descriptor: &Descriptor) -> Result<HashMap<Digest, u64>> {
        let mut digests = HashSet::new();
        self.visit_parts(descriptor, &mut |part, _| {
            digests.insert(part.digest.clone());
        })?;
        let mut parts = HashMap::new();
        for digest in digests {
            if let Some(size) = self.blob_size(&digest)? {
                parts.insert(digest, size);
            }
        }
        Ok(parts)
    }

    /// Visits every descriptor of an image and tells whether it is a layer. Missing or damaged
    /// documents are not followed.
    pub(super) fn visit_parts(
        &self,
        descriptor: &Descriptor,
        visit: &mut dyn FnMut(&Descriptor, bool),
    ) -> Result<()> {
        let mut seen = HashSet::new();
        let mut pending = vec![descriptor.clone()];
        while let Some(descriptor) = pending.pop() {
            visit(&descriptor, false);
            if !seen.insert(descriptor.digest.clone()) || !is_document(&descriptor) {
                continue;
            }
            match self.document(&descriptor) {
                Ok(Document::Index(index)) => pending.extend(index.manifests),
                Ok(Document::Manifest(manifest)) => {
                    visit(&manifest.config, false);
                    manifest.layers.iter().for_each(|layer| visit(layer, true));
                }
                Err(error) if crate::store::reachable::is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
