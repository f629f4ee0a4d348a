//! The trees made under one name, newest first: which is the current one, which may be removed and
//! in which order.
//!
//! Their layers stay in the host's store: each tree has a name there, which `prune` respects, so
//! that its layers need not be sent again and other hosts can fetch them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::protocol::{CheckoutLayer, HeldLayer, MadeFrom};
use crate::agent::tree::names::{LINK, TreePaths, check_id, shown};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability, remove_tree, sync_directory};
use imgctl_base::image::reference::TREES_REGISTRY;
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict, media_type};
use imgctl_store::store::Store;

/// The trees of one name. IDs are added before their directories are created, so that every tree
/// made by imgctl is recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History {
    /// The current tree or the one about to be current, followed by its predecessors.
    pub(super) ids: Vec<String>,
    /// What complete trees were made from. Trees of earlier versions have no record.
    #[serde(default)]
    pub(super) made_from: BTreeMap<String, MadeFrom>,
}

impl History {
    /// Reads the record; returns an empty history if it is missing or unreadable.
    pub(super) fn read(paths: &TreePaths) -> Self {
        let mut history: Self = std::fs::read(file(paths))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        history.ids.retain(|id| check_id(id).is_ok());
        history
    }

    pub(super) fn write(&self, paths: &TreePaths) -> Result<()> {
        let file = file(paths);
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory).path("create the directory", directory)?;
        }
        let bytes =
            serde_json::to_vec(self).doing(|| "cannot write the record of trees".to_owned())?;
        atomic::write(&file, &bytes, 0o644, Durability::Durable)
    }

    /// Makes `id` the newest; returns `true` if something changed.
    pub(super) fn use_now(&mut self, id: &str) -> bool {
        if self.ids.first().is_some_and(|first| first == id) {
            return false;
        }
        self.ids.retain(|other| other != id);
        self.ids.insert(0, id.to_owned());
        true
    }

    /// Records `id` without making it the newest; returns `true` if something changed.
    pub(super) fn keep_too(&mut self, id: &str) -> bool {
        if self.ids.iter().any(|other| other == id) {
            return false;
        }
        self.ids.insert(self.ids.len().min(1), id.to_owned());
        true
    }
}

fn file(paths: &TreePaths) -> PathBuf {
    let name = paths.tree.replace('%', "%25").replace('/', "%2F");
    paths.root.join("trees").join(format!("{name}.json"))
}

/// Names the layers of tree `id`, except for those that hold only registry data: these are in the
/// registry directory.
pub(super) fn keep(
    store: &Store,
    paths: &TreePaths,
    id: &str,
    layers: &[CheckoutLayer],
) -> Result<()> {
    let kept: Vec<&CheckoutLayer> = layers.iter().filter(|layer| !layer.registry).collect();
    let diff_ids: Vec<&Digest> = kept.iter().map(|layer| &layer.diff_id).collect();
    let descriptors: Vec<&Descriptor> = kept.iter().map(|layer| &layer.descriptor).collect();
    let config = document(&json!({
        "architecture": imgctl_base::image::Platform::host().architecture,
        "os": "linux",
        "config": {"Labels": {"imgctl.tree": shown(&paths.directory(id))}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }))?;
    let config_digest = store.put_blob(&config)?;
    let manifest = document(&json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": {
            "mediaType": media_type::OCI_CONFIG,
            "digest": config_digest,
            "size": config.len(),
        },
        "layers": descriptors,
    }))?;
    let digest = store.put_blob(&manifest)?;
    let size = manifest.len() as u64;
    let descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, size);
    let verdict = Verdict::not_asked("it is the record of a tree");
    store.tag(&[name(paths, id)?], &descriptor, &verdict)
}

/// Returns the diff IDs of the layers that tree `id` was made from, or `None` if the store no
/// longer has the record.
pub(super) fn layers(store: &Store, paths: &TreePaths, id: &str) -> Option<Vec<Digest>> {
    let name = name(paths, id).ok()?;
    let image = store.image(&name.to_string(), None).ok()?;
    Some(image.config.rootfs.diff_ids)
}

/// Returns the layers of tree `id` that the store has, protected from `prune` while this agent
/// lives.
pub(super) fn held(store: &Store, paths: &TreePaths, id: &str) -> Result<Vec<HeldLayer>> {
    let name = name(paths, id)?;
    let Ok(image) = store.image(&name.to_string(), None) else {
        return Ok(Vec::new());
    };
    let mut held = Vec::new();
    for (descriptor, diff_id) in image.layers() {
        if store.claim_blob(&descriptor.digest, descriptor.size)? {
            held.push(HeldLayer { descriptor: descriptor.clone(), diff_id: diff_id.clone() });
        }
    }
    Ok(held)
}

/// Removes the name of tree `id`, if it has one.
pub(super) fn forget(store: &Store, paths: &TreePaths, id: &str) -> Result<()> {
    let name = name(paths, id)?;
    let named: Vec<_> = store
        .names()?
        .into_iter()
        .filter(|named| named.reference.as_ref() == Some(&name))
        .collect();
    if !named.is_empty() {
        store.untag(&named)?;
    }
    Ok(())
}

/// Returns `trees.imgctl.local/<cluster and tree, hashed>:<id, hashed>`. The parts are hashed
/// because cluster names need not be valid in references; the label identifies the tree.
fn name(paths: &TreePaths, id: &str) -> Result<Reference> {
    let place = Digest::of(shown(&paths.link()).as_bytes());
    let id = Digest::of(id.as_bytes());
    let text = format!("{TREES_REGISTRY}/{}:{}", place.short(), id.short());
    Ok(Reference::parse(&text)?.qualified())
}

fn document(value: &serde_json::Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).doing(|| "cannot write the record of a tree".to_owned())
}

/// Points the link at `id`, whose directory exists and is durable. A directory in the link's place
/// (other tools create one) is moved aside; returns a note about it.
pub(super) fn switch(paths: &TreePaths, id: &str) -> Result<Option<String>> {
    let link = paths.link();
    let note = match std::fs::symlink_metadata(&link) {
        Ok(metadata) if metadata.is_dir() => Some(move_aside(paths, &link)?),
        Ok(metadata) if !metadata.is_symlink() => {
            return Err(Error::failed(format!(
                "{} is a file: it must be a symlink or not exist",
                link.display()
            ))
            .hint("move it away"));
        }
        _ => None,
    };
    let temporary = paths.parent.join(format!("{}.{id}{LINK}", paths.base));
    remove_tree(&temporary)?;
    std::os::unix::fs::symlink(paths.target(id), &temporary).path("create", &temporary)?;
    std::fs::rename(&temporary, &link).path("replace the link", &link)?;
    sync_directory(&paths.parent)?;
    Ok(note)
}

/// Keeps the existing directory under another name, because imgctl did not create it.
fn move_aside(paths: &TreePaths, link: &Path) -> Result<String> {
    for number in 1..1000 {
        let name = match number {
            1 => format!("{}.former", paths.base),
            _ => format!("{}.former-{number}", paths.base),
        };
        let former = paths.parent.join(name);
        match renameat_with(CWD, link, CWD, &former, RenameFlags::NOREPLACE) {
            Ok(()) => {
                return Ok(format!(
                    "{} was a directory; it was moved to {} and can be removed when nothing uses \
                     it",
                    link.display(),
                    former.display()
                ));
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(Errno::BUSY) => {
                return Err(Error::failed(format!(
                    "cannot replace {} with a symlink: it is a mount point",
                    link.display()
                ))
                .hint("unmount it, or mount the directory above it instead"));
            }
            Err(error) => return Err(error).path("move aside", link),
        }
    }
    Err(Error::failed(format!(
        "cannot move {} aside: too many earlier copies exist",
        link.display()
    )))
}

/// Removes all trees of the history except for the current one and `predecessors` others.
pub(super) fn remove_old(
    store: &Store,
    paths: &TreePaths,
    history: &mut History,
    predecessors: u32,
) -> Result<()> {
    let kept = usize::try_from(predecessors).unwrap_or(usize::MAX).saturating_add(1);
    // A tree that was abandoned before it was complete does not count.
    let (whole, broken): (Vec<String>, Vec<String>) =
        std::mem::take(&mut history.ids).into_iter().partition(|id| paths.directory(id).is_dir());
    history.ids = whole;
    let History { ids, made_from } = history;
    made_from.retain(|id, _| ids.contains(id));
    let old = history.ids.split_off(kept.min(history.ids.len()));
    if old.is_empty() && broken.is_empty() {
        return Ok(());
    }
    for id in old.into_iter().chain(broken) {
        let directory = paths.directory(&id);
        // Renamed first, so that a partially removed tree is not mistaken for a complete one.
        let removing = paths.removing(&id);
        match std::fs::rename(&directory, &removing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            renamed => {
                renamed.path("rename", &directory)?;
                remove_tree(&removing)?;
            }
        }
        forget(store, paths, &id)?;
    }
    history.write(paths)
}
