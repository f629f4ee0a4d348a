//! What hosts tell each other besides content.

use serde::{Deserialize, Serialize};

use imgctl_base::image::Digest;

/// Paths that hosts ask each other for.
pub(super) const HOLDERS: &str = "/peers/v1/holders/";
pub(super) const TOLD: &str = "/peers/v1/told";
/// Counters of the host.
pub(super) const COUNTS: &str = "/peers/v1/counts";
/// Maximum size of what another host tells at once, in bytes: 100,000 digests.
pub(super) const LONGEST: usize = 8 << 20;

/// What a host tells one that keeps records of its content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    /// Address of the host.
    pub(super) from: String,
    pub(super) has: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<Digest>,
    /// `has` is complete, and the answer must be complete as well.
    #[serde(default)]
    pub(super) all: bool,
}
