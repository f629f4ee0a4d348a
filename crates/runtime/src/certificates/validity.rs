//! Validity periods of certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use imgctl_base::error::{Error, Result};

const DAY: u64 = 86_400;
const HOUR: u64 = 3600;
/// Shortest validity of a certificate. A timer on hosts renews it several times before it expires.
const SHORTEST: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub(crate) authorities: Duration,
    pub leaves: Duration,
}

impl Default for Validity {
    /// Ten years for authorities and one year for leaves, as in kubeadm.
    fn default() -> Self {
        Self {
            authorities: Duration::from_secs(3650 * DAY),
            leaves: Duration::from_secs(365 * DAY),
        }
    }
}

impl Validity {
    /// Returns a hundred years for everything, as in sealos.
    pub fn sealos() -> Self {
        let century = Duration::from_secs(876_000 * HOUR);
        Self { authorities: century, leaves: century }
    }

    /// Returns validity periods of `leaves` for certificates, and of the default or `leaves` for
    /// authorities, whichever is longer.
    pub fn of_leaves(leaves: Duration) -> Result<Self> {
        let standard = Self::default();
        if leaves < SHORTEST || leaves > Self::sealos().leaves {
            return Err(Error::usage(format!(
                "certificates cannot be valid for {}",
                Self::hours(leaves)
            ))
            .hint(
                "use a duration between 10 minutes and 100 years, for example --certificate-validity \
                 8760h",
            ));
        }
        Ok(Self { authorities: standard.authorities.max(leaves), leaves })
    }

    /// Formats a duration like kubeadm's configuration and the controller manager's flags.
    pub fn hours(duration: Duration) -> String {
        let seconds = duration.as_secs();
        format!("{}h{}m0s", seconds / HOUR, seconds % HOUR / 60)
    }
}

/// Returns the seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Says how much time is left: `312 days`, `7 hours`, `4 minutes`.
pub fn left(seconds: i64) -> String {
    match seconds {
        ..=0 => "expired".to_owned(),
        1..=7199 => format!("{} minutes", seconds / 60),
        7200..=172_799 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
