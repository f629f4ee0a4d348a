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

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    /// What a hostile host of the cluster tells the others.
    #[test]
    fn what_hosts_tell_is_read_or_refused() {
        let told =
            Told { from: "10.0.0.1".to_owned(), has: vec![Digest::of(b"x")], ..Told::default() };
        let valid = serde_json::to_vec(&told).unwrap();
        bolero::check!().for_each(|input: &[u8]| {
            for bytes in [input.to_vec(), damaged(&valid, input)] {
                let Ok(told) = serde_json::from_slice::<Told>(&bytes) else { continue };
                let again: Told =
                    serde_json::from_slice(&serde_json::to_vec(&told).unwrap()).unwrap();
                assert_eq!((again.from, again.has, again.gone), (told.from, told.has, told.gone));
            }
        });
    }
}
