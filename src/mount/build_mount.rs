//! The file system of one RUN step: the stage's snapshots under a fresh, volatile upper directory.
//!
//! Nothing is mounted here: the sandbox attaches [`BuildMount::spec`] in a mount namespace of its
//! own, so that no crash can leave a mount on the host.

use std::path::PathBuf;

use crate::error::Result;
use crate::mount::layers::LayerOf;
use crate::mount::mounts::spec;
use crate::mount::privilege::Privileges;
use crate::mount::stack::Stack;
use crate::mount::workspace::{self, MERGED, UPPER, Workspace};
use crate::mount::{OverlaySpec, snapshots};
use crate::progress::Reporter;
use crate::store::Store;

/// The directories of one RUN step; removed when dropped, or by the next command if we die.
#[derive(Debug)]
pub(crate) struct BuildMount {
    workspace: Workspace,
    spec: OverlaySpec,
}

impl BuildMount {
    /// Unpacks what is missing of `layers` (lowest first) and makes the directories. The caller
    /// holds a lease on the layers.
    pub(crate) fn new(store: &Store, layers: &[LayerOf], reporter: &dyn Reporter) -> Result<Self> {
        workspace::sweep(store)?;
        let privileges = Privileges::current();
        let ensured = snapshots::ensure_layers(store, layers, privileges, reporter)?;
        let stack = Stack::new(ensured.snapshots, !privileges.trusted_xattrs)?;
        let prefix = format!("{}{}-", workspace::BUILD, std::process::id());
        let workspace = Workspace::create(store, &prefix)?;
        workspace.make(MERGED)?;
        let mut spec = spec(&workspace, &stack, false)?;
        spec.volatile = true;
        // Which devices can be opened is the sandbox's to decide, by how far the step is confined.
        spec.no_devices = false;
        Ok(Self { workspace, spec })
    }

    /// What to hand to [`crate::mount::attach`] inside the sandbox.
    pub(crate) fn spec(&self) -> &OverlaySpec {
        &self.spec
    }

    /// Where the sandbox attaches it.
    pub(crate) fn merged(&self) -> PathBuf {
        self.workspace.path(MERGED)
    }

    /// What the step has changed, once it has ended.
    pub(crate) fn upper(&self) -> PathBuf {
        self.workspace.path(UPPER)
    }
}
