//! Renewal of k3s' certificates: k3s itself renews, when it starts, those that expire within 120 days (90
//! before release 1.31.7 and its siblings). All there is to do is to restart it in time.

use crate::action::Line;
use crate::k3s::host::HOST;
use crate::renewal::change::Machine;
use crate::renewal::inventory::Found;
use imgctl_base::error::Result;

/// Shortest window in which every release renews, in seconds.
const WINDOW: i64 = 90 * 86_400;
/// Returns the certificates that k3s would renew if it started at `now`.
pub(crate) fn due(found: &[Found], now: i64) -> Vec<&Found> {
    let is_due = |one: &&Found| {
        let left = one.certificate.not_after - now;
        one.is_due(now) && left < WINDOW
    };
    found.iter().filter(is_due).collect()
}

pub(crate) fn restart(machine: &Machine<'_>) -> Result<()> {
    let line = Line::script(&[HOST, include_str!("scripts/restart-k3s.sh")]);
    machine.run("restart-k3s", &line).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::authority::{Algorithm, Authority, Key, Leaf};
    use crate::certificates::inspect;
    use std::time::Duration;

    #[test]
    fn k3s_is_restarted_when_it_renews() {
        let key = Key::generate(Algorithm::EcdsaP256).unwrap();
        let authority = Authority::create("k3s", key, Duration::from_secs(86_400)).unwrap();
        let leaf = Leaf::client("admin", None);
        let signed = authority.sign(&leaf, Algorithm::EcdsaP256, Duration::from_secs(600)).unwrap();
        let mut certificate = inspect::read(&signed.certificate).unwrap();
        let day = 86_400;
        (certificate.not_before, certificate.not_after) = (0, 365 * day);
        let found = [Found { file: "f".to_owned(), certificate, in_file: 1, life: 365 * day }];
        for (at, wanted) in [(200, 0), (250, 0), (274, 0), (276, 1), (400, 1)] {
            assert_eq!(due(&found, at * day).len(), wanted, "day {at}");
        }
    }
}
