//! Groups workers into batches: how many at the same time, and in which order.

use std::collections::BTreeMap;

use crate::observation::{HostSeen, Observation};
use crate::request::Request;
use imgctl_base::error::{Error, Result};

/// Parses a share of `total`, `10%` or `3`: at least one, at most all.
///
/// # Errors
/// If the text is neither form, is zero, or exceeds 100 %; the message names `option`.
pub(super) fn share(text: &str, total: usize, option: &str) -> Result<usize> {
    let wrong = || {
        Error::usage(format!("`{text}` is not a valid value for {option}"))
            .hint("use a number of hosts (`3`) or a share of the workers (`10%`)")
    };
    let text = text.trim();
    let (number, percent) = match text.strip_suffix('%') {
        Some(number) => (number, true),
        None => (text, false),
    };
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: usize = plain.then(|| number.parse().ok()).flatten().ok_or_else(wrong)?;
    if number == 0 || (percent && number > 100) {
        return Err(wrong());
    }
    let count = if percent { total.saturating_mul(number) / 100 } else { number };
    Ok(count.clamp(1, total.max(1)))
}

/// The resulting numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Workers upgraded at the same time.
    pub together: usize,
    /// Maximum number of workers out of service at the same time.
    pub budget: usize,
    /// Workers already out of service.
    pub(crate) spent: usize,
}

impl Size {
    /// Computes the sizes if `unhealthy` of `workers` are out of service.
    pub(super) fn of(batch: &str, budget: &str, workers: usize, unhealthy: usize) -> Result<Self> {
        let batch = share(batch, workers, "--batch")?;
        let budget = share(budget, workers, "--max-unavailable")?;
        let left = budget.saturating_sub(unhealthy);
        Ok(Self { together: batch.min(left.max(1)), budget, spent: unhealthy })
    }

    /// Returns whether no healthy worker may be touched.
    pub(crate) fn is_spent(self) -> bool {
        self.spent >= self.budget
    }
}

/// All workers count, including skipped ones, because they can also be out of service.
pub(super) fn size(observation: &Observation, request: &Request<'_>) -> Result<Size> {
    let workers = || observation.hosts.iter().filter(|host| !host.is_control_plane());
    let unhealthy = workers().filter(|host| !observation.is_healthy(host)).count();
    let choices = &request.choices;
    Size::of(&choices.batch, &choices.max_unavailable, workers().count(), unhealthy)
}

/// Divides workers into batches: the healthy ones in order, then each unhealthy one alone, because
/// it may not recover.
pub(super) fn cut(healthy: &[String], unhealthy: &[String], together: usize) -> Vec<Vec<String>> {
    healthy
        .chunks(together.max(1))
        .map(<[String]>::to_vec)
        .chain(unhealthy.iter().map(|id| vec![id.clone()]))
        .collect()
}

/// Selects the `count` workers whose loss has the least impact: those with the fewest Pods that are
/// the only one of their owner; on a tie, the first in the Clusterfile.
pub(crate) fn canaries<'a>(
    workers: &[&'a HostSeen],
    observation: &Observation,
    count: usize,
) -> Vec<&'a HostSeen> {
    let lonely = lonely_pods(observation);
    let mut ordered: Vec<&HostSeen> = workers.to_vec();
    ordered.sort_by_key(|host| {
        let node = host.node.as_deref().unwrap_or_default();
        lonely.get(node).copied().unwrap_or(0)
    });
    ordered.truncate(count);
    ordered
}

/// Number of Pods without replicas on each Node.
pub(crate) fn lonely_pods(observation: &Observation) -> BTreeMap<&str, usize> {
    let pods = observation.api.as_ref().map_or(&[][..], |api| &api.pods);
    let moving = || {
        pods.iter()
            .filter(|pod| !pod.finished && !pod.mirror && !pod.owner.starts_with("DaemonSet/"))
    };
    let mut replicas: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for pod in moving().filter(|pod| !pod.owner.is_empty()) {
        *replicas.entry((&pod.namespace, &pod.owner)).or_default() += 1;
    }
    let mut lonely = BTreeMap::new();
    for pod in moving() {
        let key = (pod.namespace.as_str(), pod.owner.as_str());
        if replicas.get(&key).copied().unwrap_or(1) == 1 {
            *lonely.entry(pod.node.as_str()).or_default() += 1;
        }
    }
    lonely
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_at_least_one_and_at_most_all() {
        for (text, total, expected) in [
            ("10%", 3, 1),
            ("10%", 0, 1),
            ("10%", 30, 3),
            ("10%", 39, 3),
            ("100%", 7, 7),
            ("3", 2, 2),
            ("3", 20, 3),
            ("1", 0, 1),
        ] {
            assert_eq!(share(text, total, "--batch").unwrap(), expected, "{text} of {total}");
        }
        for text in
            ["", "%", "0", "0%", "101%", "-1", "+1", "1.5", "ten", "10 %", "99999999999999999999"]
        {
            let error = share(text, 5, "--batch").unwrap_err();
            assert!(error.to_string().contains("--batch"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_out_of_service_counts() {
        for (batch, budget, workers, unhealthy, together, is_spent) in [
            ("10%", "1", 3, 0, 1, false),
            ("100%", "100%", 8, 0, 8, false),
            ("100%", "4", 8, 1, 3, false),
            ("5", "4", 8, 3, 1, false),
            ("5", "4", 8, 4, 1, true),
            ("5", "1", 8, 1, 1, true),
            ("1", "1", 0, 0, 1, false),
        ] {
            let size = Size::of(batch, budget, workers, unhealthy).unwrap();
            assert_eq!((size.together, size.is_spent()), (together, is_spent), "{batch} {budget}");
        }
    }

    proptest! {
            #[test]
            fn batches_hold_everybody_once_and_never_too_many(
                healthy in 0usize..60, unhealthy in 0usize..6,
                batch in 1usize..120, percent in any::<bool>(),
                budget in 1usize..100, budget_percent in any::<bool>(),
            ) {
                let written = |number: usize, percent| if percent {
    format!("{}%", number.min(100))
    } else {
    number.to_string()
    };
                let workers = healthy + unhealthy;
                let size = Size::of(
                    &written(batch, percent), &written(budget, budget_percent), workers, unhealthy,
                ).unwrap();
                let name = |prefix: &str, count: usize| -> Vec<String> {
                    (0..count).map(|at| format!("{prefix}{at}")).collect()
                };
                let (well, ill) = (name("w", healthy), name("i", unhealthy));
                let batches = cut(&well, &ill, size.together);
                let all: Vec<String> = batches.concat();
                prop_assert_eq!(&all[..healthy], &well[..]);
                prop_assert_eq!(&all[healthy..], &ill[..]);
                for one in &batches {
                    prop_assert!(!one.is_empty());
                    let touched = one.iter().filter(|id| id.starts_with('w')).count();
                    prop_assert!(touched <= 1 || touched + unhealthy <= size.budget);
                }
            }
        }
}
