//! The file system of one RUN step: the stage's snapshots below a new, volatile upper directory.
//!
//! Mounts nothing itself: the sandbox attaches [`BuildMount::spec`] in its own mount namespace, so
//! a crash cannot leave a mount on the host.

use std::path::PathBuf;

use crate::mount::layers::LayerOf;
use crate::mount::mounts::spec;
use crate::mount::privilege::Privileges;
use crate::mount::stack::Stack;
use crate::mount::workspace::{self, MERGED, UPPER, Workspace};
use crate::mount::{OverlaySpec, snapshots};
use crate::store::Store;
use imgctl_base::error::Result;
use imgctl_base::progress::Reporter;

/// The directories of one RUN step; removed on drop, or by the next command after a crash.
#[derive(Debug)]
pub struct BuildMount {
    workspace: Workspace,
    spec: OverlaySpec,
}

impl BuildMount {
    /// Unpacks the missing snapshots of `layers` (lowest first) and creates the directories. The
    /// caller holds a lease on the layers.
    pub fn new(store: &Store, layers: &[LayerOf], reporter: &dyn Reporter) -> Result<Self> {
        workspace::sweep(store)?;
        let privileges = Privileges::current();
        let ensured = snapshots::ensure_layers(store, layers, privileges, reporter)?;
        let stack = Stack::new(ensured.snapshots, !privileges.trusted_xattrs)?;
        let prefix = format!("{}{}-", workspace::BUILD, std::process::id());
        let workspace = Workspace::create(store, &prefix)?;
        workspace.make(MERGED)?;
        let mut spec = spec(&workspace, &stack, false)?;
        spec.volatile = true;
        // The sandbox decides which devices can be opened, depending on the confinement of the
        // step.
        spec.no_devices = false;
        Ok(Self { workspace, spec })
    }

    /// Returns the argument for [`crate::mount::attach`] inside the sandbox.
    pub fn spec(&self) -> &OverlaySpec {
        &self.spec
    }

    /// Returns the directory where the sandbox attaches the file system.
    pub fn merged(&self) -> PathBuf {
        self.workspace.path(MERGED)
    }

    /// Returns the directory that holds the changes of the step after it has ended.
    pub fn upper(&self) -> PathBuf {
        self.workspace.path(UPPER)
    }
}
