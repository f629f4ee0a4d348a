//! Cache options of a build: which caches to read, which to write, and how.

use std::time::Duration;

use crate::cache::places::Place;
use crate::cache::signed::Signer;
use imgctl_trust::PublicKey;

/// Which records of a cache are trusted (`trust=` of `--cache-from`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that the key has signed, and those that the build verifies against its own inputs.
    #[default]
    Content,
    /// All: anyone who can write the cache decides what is in the image.
    All,
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
    /// Records that it has signed are trusted.
    pub key: Option<PublicKey>,
}

/// A cache to write (`--cache-to`).
#[derive(Clone, Debug)]
pub struct Target {
    pub place: Place,
    pub mode: Mode,
    /// Records that no build has used for this long are dropped.
    pub max_age: Duration,
    /// Whether a failure is only a warning.
    pub ignore_error: bool,
    /// Signs the records that this build writes.
    pub signer: Option<Signer>,
}

/// Age at which records are dropped unless the target says otherwise.
pub const DEFAULT_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Which records of a cache stay when it is pruned: those within all limits, the most recently used
/// ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Time since the last use.
    pub max_age: Option<Duration>,
    /// Size of the layers that they name, in bytes.
    pub max_size: Option<u64>,
    /// Number of records.
    pub keep: Option<usize>,
    /// None stays.
    pub all: bool,
}

/// The caches of a build.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    pub from: Vec<Source>,
    pub to: Vec<Target>,
    /// Records travel in the image's config.
    pub inline: bool,
    /// Whether layers may stay in the registries of the caches, because the result is only pushed. The
    /// store then does not name the image.
    pub leave: bool,
}
