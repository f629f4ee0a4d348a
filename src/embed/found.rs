//! Results of a search for container images: references with the places that name them, and
//! candidates that were left out, with the reason.

use std::fmt;

use crate::error::Result;
use crate::image::Reference;

/// The build context as the search sees it: ignore rules are applied, and no path leads outside it.
pub(crate) trait ContextFiles {
    /// Lists the regular files below `directory` (`""` = all), sorted, with `/` between components.
    /// A missing directory has none.
    fn list(&self, directory: &str) -> Result<Vec<String>>;
    /// Reads the content of a file; more than `limit` bytes is an error.
    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>>;
}

/// How a reference was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    /// A line of `images/shim/*`.
    List,
    /// `images/skopeo/tar.txt`.
    Archive,
    /// A container of a pod spec.
    PodSpec,
    /// A field of another resource whose name suggests an image.
    Field,
    /// `RELATED_IMAGE_*` and similar variables.
    Environment,
    /// An argument such as `--image=…`.
    Argument,
    /// The line scan, as in sealos.
    Line,
    /// `--image` on the command line.
    Flag,
}

impl How {
    /// Returns the machine-readable name (`--images-report --json`).
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Archive => "archive",
            Self::PodSpec => "podSpec",
            Self::Field => "field",
            Self::Environment => "environment",
            Self::Argument => "argument",
            Self::Line => "line",
            Self::Flag => "flag",
        }
    }
}

/// Where a reference was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Path in the context; for a chart, `charts/x.tgz: x/templates/y.yaml`.
    pub(crate) file: String,
    /// Counted from 1; 0 = the whole file.
    pub(crate) line: usize,
    pub(crate) how: How,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        Ok(())
    }
}

/// One image and everything that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundImage {
    /// With its registry (`docker.io` and `library/` filled in) and a tag, a digest or both.
    pub(crate) reference: Reference,
    /// Sorted, without duplicates, never empty.
    pub(crate) places: Vec<Place>,
}

/// A string that looked like a reference but was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) text: String,
    pub(crate) place: Place,
    /// Completes "left out: …".
    pub(crate) reason: String,
}

/// An image in an archive of the context (`images/skopeo/tar.txt`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundArchive {
    /// `docker-archive` or `oci-archive`.
    pub(crate) transport: String,
    /// Path in the context.
    pub(crate) path: String,
    pub(crate) reference: Reference,
    pub(crate) place: Place,
}

/// Everything that a search found, sorted by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) images: Vec<FoundImage>,
    pub(crate) archives: Vec<FoundArchive>,
    pub(crate) skipped: Vec<Skipped>,
}
