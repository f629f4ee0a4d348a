//! Where backups are kept: an OCI image layout in a directory, or a repository of a registry.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::backup::directory::BackupDirectory;
use crate::backup::document::Kept;
use crate::backup::pack::Packed;
use crate::transfer::arbiter::Arbiter;
use crate::transfer::copy::Copier;
use crate::transfer::engine::CopyOptions;
use crate::transfer::location::{Archived, Location};
use crate::transfer::plan::{Platforms, Selection};
use crate::transfer::source::ImageSource;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Reference};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Target};
use imgctl_store::store::{ScratchDirectory, Store};

/// Maximum number of tags of one cluster that are looked at.
const MOST_TAGS: usize = 10_000;

/// A place as the user writes it: `oci:DIR[:TAG]`, `docker://REPOSITORY[:TAG]` or `DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Directory { path: PathBuf, tag: Option<String> },
    Repository { reference: Reference },
}

/// With what places are read and written.
#[derive(Clone)]
pub struct Access {
    pub store: Store,
    pub client: Client,
}

/// Returns the name of a backup that was given none: sorted by name, backups are sorted by time.
pub fn tag_of(cluster: &str, created: &str) -> String {
    let time: String = created.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{cluster}-{time}")
}

impl Place {
    /// Parses a place.
    pub fn parse(text: &str) -> Result<Self> {
        match Location::parse(OsStr::new(text)) {
            Ok(Location::OciDirectory(Archived { path, name })) => {
                Ok(Self::Directory { path, tag: name })
            }
            Ok(Location::Registry(reference)) if reference.digest().is_none() => {
                Ok(Self::Repository { reference: reference.on_docker_hub() })
            }
            // A path may look like the name of an image; `s3://…` is not a path.
            Ok(Location::Name(_)) if !text.is_empty() && !text.contains("://") => {
                Ok(Self::Directory { path: text.into(), tag: None })
            }
            Err(error) if !text.contains(':') && !text.is_empty() => {
                tracing::debug!("{error}");
                Ok(Self::Directory { path: text.into(), tag: None })
            }
            Err(error) => Err(error),
            Ok(_) => Err(Error::usage(format!("`{text}` is no place for backups"))
                .hint("write oci:DIR[:TAG], docker://REPOSITORY[:TAG] or DIR")),
        }
    }

    /// Returns the same place with an absolute path.
    pub fn absolute(self) -> Result<Self> {
        match self {
            Self::Directory { path, tag } => {
                let path = std::path::absolute(&path)
                    .map_err(|error| Error::io(format!("cannot use {}", path.display()), error))?;
                Ok(Self::Directory { path, tag })
            }
            other @ Self::Repository { .. } => Ok(other),
        }
    }

    /// Returns the tag that the user has chosen.
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Directory { tag, .. } => tag.as_deref(),
            Self::Repository { reference } => reference.tag(),
        }
    }

    /// Returns the location of the backup with this tag.
    pub fn location(&self, tag: &str) -> Result<Location> {
        Ok(match self {
            Self::Directory { path, .. } => {
                Location::OciDirectory(Archived { path: path.clone(), name: Some(tag.to_owned()) })
            }
            Self::Repository { reference } => {
                Location::Registry(Reference::parse(&format!("{}:{tag}", reference.name()))?)
            }
        })
    }

    /// Fails if a backup that is not encrypted would be readable by others here.
    pub fn check(&self, is_encrypted: bool) -> Result<()> {
        match self {
            Self::Directory { path, .. } => BackupDirectory::check(path, is_encrypted),
            Self::Repository { .. } => Ok(()),
        }
    }

    /// Copies the backup in `directory` to this place under `tag`, and verifies what is there then.
    pub fn put(
        &self,
        packed: &Packed,
        directory: &Path,
        tag: &str,
        access: &Access,
        reporter: &dyn Reporter,
    ) -> Result<()> {
        let from = Location::OciDirectory(Archived { path: directory.to_owned(), name: None });
        let from = match from {
            Location::OciDirectory(place) => Location::OciDirectory(Archived {
                name: Some(packed.root.digest.to_string()),
                ..place
            }),
            other => other,
        };
        let to = self.location(tag)?;
        let _alone = match self {
            Self::Directory { path, .. } => Some(BackupDirectory::prepare(path)?),
            Self::Repository { .. } => None,
        };
        let former = match self {
            Self::Directory { path, .. } => BackupDirectory::open(path)?.tagged(tag)?,
            Self::Repository { .. } => None,
        };
        copy(&from, &to, access, reporter)?;
        self.verify(&packed.root, tag, access)
            .context(|| format!("the backup was written to {to}, and does not read well there"))?;
        match (self, former.filter(|former| *former != packed.root.digest)) {
            (Self::Directory { path, .. }, Some(former)) => {
                BackupDirectory::open(path)?.remove(&[former])
            }
            _ => Ok(()),
        }
    }

    /// Verifies that the manifest is there under `tag`, with all blobs that it names. In a directory,
    /// each is read; a registry has verified them when it received them.
    fn verify(&self, root: &Descriptor, tag: &str, access: &Access) -> Result<()> {
        match self {
            Self::Directory { path, .. } => BackupDirectory::open(path)?.verify(root, tag),
            Self::Repository { reference } => {
                let repository = access.client.repository(&reference.clone().qualified())?;
                let document = repository.document(&Target::Tag(tag.to_owned()))?;
                if document.descriptor.digest != root.digest {
                    return Err(Error::busy(format!(
                        "the tag {tag} refers to {}, not to {}",
                        document.descriptor.digest, root.digest
                    )));
                }
                let parsed = Document::parse(&document.bytes, Some(&root.media_type))?;
                let Document::Manifest(manifest) = parsed else {
                    return Err(Error::bad_content("its manifest is an index"));
                };
                for blob in manifest.layers.iter().chain([&manifest.config]) {
                    if repository.blob_size(&blob.digest)? != Some(blob.size) {
                        return Err(Error::bad_content(format!(
                            "the registry does not have blob {} with {} bytes",
                            blob.digest, blob.size
                        )));
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the backups of a cluster in this place, oldest first.
    pub fn list(&self, cluster: &str, access: &Access) -> Result<Vec<Kept>> {
        let mut found = match self {
            Self::Directory { path, .. } => BackupDirectory::open(path)?.list()?,
            Self::Repository { reference } => {
                let repository = access.client.repository(&reference.clone().qualified())?;
                let mut found = Vec::new();
                let tags = match repository.tags() {
                    Err(error) if error.kind() == Kind::NotFound => Vec::new(),
                    tags => tags?,
                };
                let prefix = format!("{cluster}-");
                let tags = tags.into_iter().filter(|tag| tag.starts_with(&prefix));
                for tag in tags.take(MOST_TAGS) {
                    let document = match repository.document(&Target::Tag(tag.clone())) {
                        Err(error) if error.kind() == Kind::NotFound => continue,
                        document => document?,
                    };
                    let media = document.descriptor.media_type.as_str();
                    if let Ok(Document::Manifest(manifest)) =
                        Document::parse(&document.bytes, Some(media))
                    {
                        found.extend(Kept::of(&tag, &document.descriptor.digest, &manifest));
                    }
                }
                found
            }
        };
        found.retain(|kept| kept.cluster == cluster);
        found.sort_by(|one, other| (&one.created, &one.tag).cmp(&(&other.created, &other.tag)));
        Ok(found)
    }

    /// Removes the backups of a cluster but the newest `keep`; returns the removed ones.
    pub fn trim(&self, cluster: &str, keep: usize, access: &Access) -> Result<Vec<Kept>> {
        let _alone = match self {
            Self::Directory { path, .. } => Some(BackupDirectory::prepare(path)?),
            Self::Repository { .. } => None,
        };
        let mut old = self.list(cluster, access)?;
        old.truncate(old.len().saturating_sub(keep.max(1)));
        let digests: Vec<Digest> = old.iter().map(|kept| kept.digest.clone()).collect();
        match self {
            _ if old.is_empty() => {}
            Self::Directory { path, .. } => BackupDirectory::open(path)?.remove(&digests)?,
            Self::Repository { reference } => {
                let repository = access.client.repository(&reference.clone().qualified())?;
                for digest in digests {
                    match repository.delete(&Target::Digest(digest)) {
                        Err(error) if error.kind() == Kind::NotFound => {}
                        deleted => deleted.map_err(|error| {
                            error.hint("allow the registry to delete manifests, or remove old backups there")
                        })?,
                    }
                }
            }
        }
        Ok(old)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory { path, tag: None } => write!(f, "oci:{}", path.display()),
            Self::Directory { path, tag: Some(tag) } => write!(f, "oci:{}:{tag}", path.display()),
            Self::Repository { reference } => write!(f, "docker://{reference}"),
        }
    }
}

/// Returns the tag of the only backup in a directory.
pub fn only(path: &Path) -> Result<String> {
    if !path.exists() {
        return Err(Error::not_found(format!("the directory {} does not exist", path.display())));
    }
    let found = BackupDirectory::open(path)?.list()?;
    let shown = path.display();
    match &found[..] {
        [one] => Ok(one.tag.clone()),
        [] => Err(Error::not_found(format!("there is no backup in {shown}"))
            .hint("name the directory that was given to `imgctl backup --to`")),
        several => {
            let newest = several.iter().max_by(|one, other| one.created.cmp(&other.created));
            let error = Error::usage(format!("there are {} backups in {shown}", several.len()));
            Err(match newest {
                Some(kept) => error.hint(format!(
                    "the newest is oci:{shown}:{} of cluster {}",
                    kept.tag, kept.cluster
                )),
                None => error,
            })
        }
    }
}

/// Copies an artifact as it is.
pub fn copy(
    from: &Location,
    to: &Location,
    access: &Access,
    reporter: &dyn Reporter,
) -> Result<()> {
    let scratch = access.store.scratch_directory()?;
    let copier = copier(access, reporter);
    let source = copier.source(from, &scratch)?;
    copier.write(&*source, to, &scratch).map(drop)
}

/// Opens the artifact at `from`; archives are unpacked into `scratch`. A path without a transport is a
/// directory with one backup, or an archive.
pub fn source(
    from: &Location,
    scratch: &ScratchDirectory,
    access: &Access,
    reporter: &dyn Reporter,
) -> Result<Box<dyn ImageSource>> {
    copier(access, reporter).source(from, scratch)
}

fn copier<'a>(access: &'a Access, reporter: &'a dyn Reporter) -> Copier<'a> {
    let selection = Selection { platforms: Platforms::All, keep_index: true };
    Copier {
        store: &access.store,
        client: &access.client,
        // A backup is no image: who may write one is its encryption's business.
        arbiter: Arbiter::everything(),
        options: CopyOptions { selection, ..CopyOptions::default() },
        preserve_digests: true,
        reporter,
    }
}
