//! Certificates and keys in PEM: files of this machine, or text that another machine has read.

use std::fmt;
use std::path::{Path, PathBuf};

use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::secret::Secret;

/// Where PEM text comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pem {
    File(PathBuf),
    /// Text that another machine has read from its file `name`. It may be a private key.
    Given {
        name: String,
        text: Secret,
    },
}

impl Pem {
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::File(path) => std::fs::read(path).path("read", path),
            Self::Given { text, .. } => Ok(text.expose().as_bytes().to_vec()),
        }
    }
}

impl From<&Path> for Pem {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// Shows the name of the file.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Given { name, .. } => f.write_str(name),
        }
    }
}
