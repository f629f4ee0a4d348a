//! `mount.json`: what one mount is of and where. Written before anything is mounted, so that
//! whatever a crash leaves behind can be found and taken down.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::image::Digest;
use crate::mount::path_serde;

const FILE: &str = "mount.json";

/// What makes the files appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// An overlay of one snapshot per layer.
    Overlay,
    /// An index over the layers' tars, mounted without unpacking.
    Erofs,
    /// A plain directory with all layers flattened into it.
    Checkout,
}

impl Backend {
    /// The name as on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Erofs => "erofs",
            Self::Checkout => "checkout",
        }
    }
}

/// One mount. `digests` are what prune must keep for it (store/, by that member name).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// The name the user gave it, or that `create` made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The image as the user called it, or its full name.
    pub(crate) image: String,
    /// The image's manifest.
    pub(crate) manifest: Digest,
    /// Blobs and diff-ids in use.
    pub(crate) digests: Vec<Digest>,
    /// Where the files are.
    #[serde(with = "path_serde")]
    pub(crate) path: PathBuf,
    pub(crate) backend: Backend,
    pub(crate) read_only: bool,
    /// RFC 3339.
    pub(crate) created: String,
    /// The boot in which it was mounted.
    pub(crate) boot_id: String,
    /// The mount namespace in which it was mounted.
    pub(crate) namespace: String,
    /// Set once it is mounted: one that is not belongs to a process at work or dead.
    pub(crate) ready: bool,
}

impl Record {
    /// Writes it into the mount's directory. Not synced: after a power cut there is no mount.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let json = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::failed("cannot write a mount's record").caused_by(error))?;
        atomic::write(&path, &json, 0o600, Durability::Atomic)
    }

    /// Reads the record in a mount's directory; `None` if there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        let json = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            json => json.path("read", &path)?,
        };
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display()))
                .caused_by(error)
                .hint("`imgctl umount --all` removes it")
        })
    }
}
