//! The dialects of Go templates that imgctl renders: which functions there are, how strict they are, and
//! how much work a template may do: templates come from images and charts, which may be hostile.

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
        if self == Self::Chart { &CHART } else { &PLAIN }
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
    /// For a member of the data itself, an error that names its members, as for a field of a Go struct;
    /// below that as [`Missing::NoValue`].
    Field,
}

/// Maximum size of the text that a template or function produces, in bytes.
pub(crate) const LONGEST_TEXT: usize = 64 << 20;
/// Maximum length of a list that a function counts out.
pub(crate) const MOST_NUMBERS: usize = 1 << 20;
/// Maximum depth at which a named template includes itself, as in Helm.
pub(crate) const MOST_INCLUDES: usize = 1000;

/// Size of the native stack that rendering a chart needs, in bytes; untouched pages use no memory.
pub const CHART_STACK: usize = 512 << 20;

/// Limits that differ between dialects.
pub(crate) struct Limits {
    /// Loop iterations.
    pub(crate) turns: u64,
    /// Nesting depth of evaluation.
    pub(crate) nested: usize,
    /// Memory of all texts and values of a rendering, in bytes.
    pub(crate) made: usize,
    /// Memory that one call may need while it runs, in bytes.
    pub(crate) once: usize,
    /// Evaluated pieces of templates, calls, KiB that calls read or write, and searches for expressions.
    pub(crate) steps: u64,
}

/// For charts, whose helpers call each other deeply: [`CHART_STACK`] holds that many levels.
pub(crate) const CHART: Limits = Limits {
    turns: 2_000_000,
    nested: 20_000,
    made: 512 << 20,
    once: 128 << 20,
    steps: 100_000_000,
};
/// For all other templates, which run on the caller's stack; 2 MiB hold that many levels.
pub(crate) const PLAIN: Limits =
    Limits { turns: 1_000_000, nested: 200, made: 96 << 20, once: 48 << 20, steps: 5_000_000 };
