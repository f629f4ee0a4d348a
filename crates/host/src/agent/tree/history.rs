//! The trees made under one name, newest first: which may be removed, and in which order.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::agent::tree::names::{TreePaths, check_id};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};

/// The trees of one name. IDs are added before their directories are created, so that every tree
/// made by imgctl is recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History {
    /// The current tree or the one about to be current, followed by its predecessors.
    pub(super) ids: Vec<String>,
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
        let bytes = serde_json::to_vec(self)
            .map_err(|error| Error::failed("cannot write the record of trees").caused_by(error))?;
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
