//! Limits on the work of a template: templates come from images and charts, which may be hostile.

/// Maximum size of the text that a template or function produces, in bytes.
pub(crate) const LONGEST_TEXT: usize = 64 << 20;
/// Maximum size of all strings and lists that one engine produces, in bytes.
pub(crate) const MOST_MADE: usize = 2 << 30;
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
}

/// For charts, whose helpers call each other deeply: [`CHART_STACK`] holds that many levels.
pub(crate) const CHART: Limits = Limits { turns: 2_000_000, nested: 20_000 };
/// For all other templates, which run on the caller's stack; 2 MiB hold that many levels.
pub(crate) const PLAIN: Limits = Limits { turns: 1_000_000, nested: 200 };
