//! Results of a search for container images: references with the places that name them, and
//! candidates that were left out, with the reason.

use std::fmt;

use imgctl_base::error::Result;
use imgctl_base::image::Reference;

/// The build context as the search sees it: ignore rules are applied, and no path leads outside it.
pub trait ContextFiles {
    /// Lists the regular files below `directory` (`""` = all), sorted, with `/` between components.
    /// A missing directory has none.
    fn list(&self, directory: &str) -> Result<Vec<String>>;
    /// Reads the content of a file; more than `limit` bytes is an error.
    fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>>;
    /// Whether the listed file is known to name no image, from a search of the same content.
    fn names_nothing(&self, _path: &str) -> bool {
        false
    }
    /// Remembers that the listed file names no image.
    fn remember_nothing(&self, _path: &str) {}
}

/// How a reference was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
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
    pub fn as_str(self) -> &'static str {
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
pub struct Place {
    /// Path in the context; for a chart, `charts/x.tgz: x/templates/y.yaml`.
    pub file: String,
    /// Counted from 1; 0 = the whole file.
    pub line: usize,
    pub how: How,
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
pub struct FoundImage {
    /// With its registry (`docker.io` and `library/` filled in) and a tag, a digest or both.
    pub reference: Reference,
    /// Sorted, without duplicates, never empty.
    pub places: Vec<Place>,
}

/// A string that looked like a reference but was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub text: String,
    pub place: Place,
    /// Completes "left out: …".
    pub reason: String,
}

/// An image in an archive of the context (`images/skopeo/tar.txt`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundArchive {
    /// `docker-archive` or `oci-archive`.
    pub transport: String,
    /// Path in the context.
    pub path: String,
    pub reference: Reference,
    pub place: Place,
}

/// Everything that a search found, sorted by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub images: Vec<FoundImage>,
    pub archives: Vec<FoundArchive>,
    pub skipped: Vec<Skipped>,
}
