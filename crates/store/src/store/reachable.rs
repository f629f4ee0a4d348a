//! Objects that must stay: everything that a name, a mount, a lease or a build cache record
//! reaches.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use crate::store::images::is_document;
use crate::store::referrers::REFERRERS;
use crate::store::{Named, Store};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::fs::directory::list;
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::{Descriptor, Digest, Document, ImageConfig, media_type};

/// Maximum size of a mount or cache record, in bytes.
const MAX_RECORD: u64 = 16 << 20;

/// The part of a build cache record that the store needs.
#[derive(Debug)]
pub(super) struct CacheRecord {
    pub(super) path: PathBuf,
    /// Time of writing: a lookup does not update it.
    pub(super) used: SystemTime,
    /// Digests that the record keeps; `None` if it cannot be read (it is then useless).
    pub(super) digests: Option<Vec<Digest>>,
}

/// Member that mount and cache records share.
#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    digests: Vec<Digest>,
}

impl Store {
    /// Returns all digests of blobs and diff IDs that `names` reach. A missing or damaged document
    /// reaches nothing and is reported to `note`.
    pub(super) fn reachable<'a>(
        &self,
        names: impl IntoIterator<Item = &'a Descriptor>,
        note: &mut dyn FnMut(String),
    ) -> Result<HashSet<Digest>> {
        let mut seen = HashSet::new();
        // Not among those seen: an index may be an image as well, of which everything stays.
        let mut indexes = HashSet::new();
        let has_referrers = !list(&self.path(REFERRERS))?.is_empty();
        let mut pending: Vec<Descriptor> = names.into_iter().cloned().collect();
        while let Some(descriptor) = pending.pop() {
            if !seen.insert(descriptor.digest.clone()) || !is_document(&descriptor) {
                continue;
            }
            if has_referrers {
                self.reach_referrers(&descriptor.digest, &mut indexes, &mut pending)?;
            }
            match self.document(&descriptor) {
                Ok(Document::Index(index)) => {
                    pending.extend(index.manifests);
                    pending.extend(index.subject);
                }
                Ok(Document::Manifest(manifest)) => {
                    seen.extend(manifest.layers.into_iter().map(|layer| layer.digest));
                    seen.extend(self.diff_ids(&manifest.config.digest).unwrap_or_default());
                    seen.insert(manifest.config.digest);
                    pending.extend(manifest.subject);
                }
                Err(error) if is_damage(&error) => note(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        seen.extend(indexes);
        Ok(seen)
    }

    /// Adds the artifacts kept with `subject`. A kept index stays without what it lists: only its text
    /// and its own artifacts matter.
    fn reach_referrers(
        &self,
        subject: &Digest,
        indexes: &mut HashSet<Digest>,
        pending: &mut Vec<Descriptor>,
    ) -> Result<()> {
        for referrer in self.referrers(subject)? {
            if !media_type::is_index(&referrer.media_type) {
                pending.push(referrer);
                continue;
            }
            pending.extend(self.referrers(&referrer.digest)?);
            indexes.insert(referrer.digest);
        }
        Ok(())
    }

    /// Returns a config's diff IDs; artifacts have none.
    fn diff_ids(&self, config: &Digest) -> Result<Vec<Digest>> {
        let bytes = self.read_blob(config, MAX_CONFIG)?;
        Ok(ImageConfig::parse(&bytes)?.rootfs.diff_ids)
    }

    /// Returns the digests that mounts use. Fails if a mount's record cannot be read: removing
    /// objects that it may use would be worse.
    pub(super) fn mounted(&self) -> Result<HashSet<Digest>> {
        let directory = self.path("mounts");
        let mut all = HashSet::new();
        for mount in list(&directory)? {
            let path = mount.join("mount.json");
            let record = read_record(&path)
                .and_then(|record| record.map(|bytes| parse_record(&bytes)).transpose())
                .context(|| format!("cannot determine what {} uses", path.display()))
                .map_err(|error| error.hint("unmount it (`imgctl umount --all`) and try again"))?;
            all.extend(record.into_iter().flatten());
        }
        Ok(all)
    }

    /// Returns the build cache records, most recently used first.
    pub(super) fn cache_records(&self) -> Result<Vec<CacheRecord>> {
        let directory = self.path("cache/steps");
        let mut records = Vec::new();
        for entry in list(&directory)? {
            if is_leftover(&entry) {
                continue;
            }
            let Ok(metadata) = std::fs::symlink_metadata(&entry) else {
                continue;
            };
            let bytes = read_record(&entry).ok().flatten();
            records.push(CacheRecord {
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                digests: bytes.and_then(|bytes| parse_record(&bytes).ok()),
                path: entry,
            });
        }
        records.sort_by(|a, b| (b.used, &b.path).cmp(&(a.used, &a.path)));
        Ok(records)
    }

    /// Returns the descriptors of all names.
    pub(super) fn named_descriptors(names: &[Named]) -> impl Iterator<Item = &Descriptor> {
        names.iter().map(|named| &named.descriptor)
    }
}

/// Reports whether the error is caused by missing or damaged content, not by the machine.
pub(super) fn is_damage(error: &Error) -> bool {
    use imgctl_base::error::Kind;
    matches!(error.kind(), Kind::NotFound | Kind::BadContent)
}

/// Reports whether the file is a temporary file of an interrupted atomic write.
pub(super) fn is_leftover(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(".imgctl-") && name.ends_with(".tmp")
}

/// Returns the bytes of a record; `None` if it does not exist (or its directory is not a
/// directory).
/// Reports whether a file that is not synced lost its bytes in a power cut: it is there, with its
/// size or without, but nothing has been written to it.
pub(crate) fn is_torn(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn read_record(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_RECORD).read_to_end(&mut bytes));
    match read {
        Ok(_) if is_torn(&bytes) => Ok(None),
        Ok(_) => Ok(Some(bytes)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(Error::io(format!("cannot read {}", path.display()), error)),
    }
}

fn parse_record(bytes: &[u8]) -> Result<Vec<Digest>> {
    serde_json::from_slice(bytes)
        .map(|record: Record| record.digests)
        .map_err(|error| Error::bad_content("the record is malformed").caused_by(error))
}
