//! Batches: shares of a number of Pods, and the batch sizes that follow from them.

use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Result};

/// `3` or `10%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Share {
    Count(usize),
    Percent(u8),
}

impl Share {
    /// Parses `3` or `10%`; zero is an error.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is neither a number nor a percentage"))
                .hint("use a number from 1 up such as 3, or a percentage such as 10%")
        };
        let share = match text.trim().strip_suffix('%') {
            Some(percent) => Self::Percent(percent.parse().map_err(|_| wrong())?),
            None => Self::Count(text.trim().parse().map_err(|_| wrong())?),
        };
        match share {
            Self::Count(0) | Self::Percent(0 | 101..) => Err(wrong()),
            share => Ok(share),
        }
    }

    /// Returns the share of `total`: percentages are rounded up, and the result is at most `total`.
    pub fn up(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count.min(total),
            Self::Percent(percent) => (total * usize::from(percent)).div_ceil(100),
        }
    }

    /// Returns the share of `total` that may be unavailable: percentages are rounded down, and the
    /// result is at least one.
    pub fn down(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count.min(total),
            Self::Percent(percent) => total * usize::from(percent) / 100,
        }
        .max(1)
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        match share {
            Share::Count(count) => count.to_string(),
            Share::Percent(percent) => format!("{percent}%"),
        }
    }
}

impl TryFrom<String> for Share {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

/// Returns the sizes of the batches: first all Pods that are not ready (they lose nothing), then as
/// many as it takes to reach each share of the ready Pods in turn, and finally all remaining Pods.
pub fn sizes(unready: usize, ready: usize, shares: &[Share]) -> Vec<usize> {
    let mut sizes = vec![unready];
    let mut reached = 0;
    for share in shares.iter().copied().chain([Share::Percent(100)]) {
        let next = share.up(ready).max(reached);
        sizes.push(next - reached);
        reached = next;
    }
    sizes.retain(|size| *size > 0);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(text: &str) -> Vec<Share> {
        text.split(',').map(|one| Share::parse(one).unwrap()).collect()
    }

    #[test]
    fn batches_grow_to_their_shares() {
        let usual = shares("1,10%,50%,100%");
        assert_eq!(sizes(0, 20, &usual), [1, 1, 8, 10]);
        assert_eq!(sizes(2, 3, &usual), [2, 1, 1, 1]);
        assert_eq!(sizes(0, 1, &usual), [1]);
        assert_eq!(sizes(0, 0, &usual), [0; 0]);
        assert_eq!(sizes(0, 5, &shares("2")), [2, 3]);
        assert_eq!(Share::parse("10%").unwrap().up(3), 1);
        assert_eq!(Share::parse("10%").unwrap().down(3), 1);
        assert_eq!(Share::parse("50%").unwrap().down(5), 2);
        for wrong in ["0", "0%", "101%", "x", "", "-1", "1.5"] {
            assert!(Share::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_pod_is_in_exactly_one_batch(
            unready in 0_usize..300,
            ready in 0_usize..300,
            counts in proptest::collection::vec((any::<bool>(), 1_usize..100), 0..8),
        ) {
            let shares: Vec<Share> = counts
                .into_iter()
                .map(|(percent, count)| {
                    if percent {
                        Share::Percent(u8::try_from(count).unwrap())
                    } else {
                        Share::Count(count)
                    }
                })
                .collect();
            let sizes = sizes(unready, ready, &shares);
            prop_assert_eq!(sizes.iter().sum::<usize>(), unready + ready);
            prop_assert!(!sizes.contains(&0));
            if unready > 0 {
                prop_assert_eq!(sizes[0], unready);
            } else if let (Some(Share::Count(count)), Some(first)) = (shares.first(), sizes.first()) {
                prop_assert!(first <= count);
            }
        }

        #[test]
        fn one_may_always_be_missing_and_never_more_than_all(total in 1_usize..500, percent in 1_u8..=100) {
            let down = Share::Percent(percent).down(total);
            prop_assert!((1..=total).contains(&down));
            prop_assert!(Share::Percent(percent).up(total) <= total);
        }
    }
}
