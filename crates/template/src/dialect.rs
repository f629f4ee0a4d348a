//! The dialects of Go templates that imgctl renders: which functions there are, and how strict they
//! are.

use crate::limits::{self, Limits};
use crate::value::Numbers;

/// Functions that a template has in addition to Go's built-in ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The sprig functions, for `*.tmpl` files of cluster images and for Clusterfiles.
    ClusterImage,
    /// Docker's `--format` functions: `json`, `join LIST SEP`, `split`, `lower`, `upper`…
    Format,
    /// The functions of Helm.
    Chart,
}

impl Dialect {
    /// Returns whether arguments must have the types that a function takes, as in Go. Otherwise they
    /// are converted.
    pub(crate) fn is_typed(self) -> bool {
        self == Self::Chart
    }

    pub(crate) fn numbers(self) -> Numbers {
        if self == Self::Chart { Numbers::Floats } else { Numbers::Whole }
    }

    pub(crate) fn limits(self) -> &'static Limits {
        if self == Self::Chart { &limits::CHART } else { &limits::PLAIN }
    }
}

/// Result of a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// `<no value>`, as Go's `missingkey=default`; so has a member of it.
    NoValue,
    /// Nil, as Go's `missingkey=zero`, which Helm sets: a member of it is an error.
    Zero,
    /// An error that names the key.
    Error,
}
