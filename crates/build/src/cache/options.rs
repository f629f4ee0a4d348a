//! Cache options of a build: which caches to read, which to write, and how.

use std::time::Duration;

use crate::cache::places::Place;

/// Which records of a cache are trusted (`trust=` of `--cache-from`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// All: anyone who can write the cache decides the result of RUN steps.
    #[default]
    All,
    /// Only those that the build verifies against its own inputs.
    Content,
}

/// Which records are exported (`mode=` of `--cache-to`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Those whose layers are in the result.
    #[default]
    Min,
    /// Those of all stages.
    Max,
}

/// A cache to read (`--cache-from`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub place: Place,
    pub trust: Trust,
}

/// A cache to write (`--cache-to`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub place: Place,
    pub mode: Mode,
    /// Records that no build has used for this long are dropped.
    pub max_age: Duration,
    /// Whether a failure is only a warning.
    pub ignore_error: bool,
}

/// Age at which records are dropped unless the target says otherwise.
pub const DEFAULT_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// The caches of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    pub from: Vec<Source>,
    pub to: Vec<Target>,
    /// Records travel in the image's config.
    pub inline: bool,
}
