//! Detects evictions that PodDisruptionBudgets do not allow, before a drain starts.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::drain::{PodName, pods, verdict::is_finished};
use crate::selector::selects;

/// Reason why evictions are blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PdbProblem {
    /// More than one PodDisruptionBudget selects a Pod: the server never evicts it.
    Several { pod: PodName, budgets: Vec<String> },
    /// A budget allows no disruption now.
    NoneAllowed {
        /// Namespace and name.
        budget: String,
        /// The given Pods that the budget blocks.
        pods: Vec<PodName>,
        healthy: i64,
        desired: i64,
        expected: i64,
        /// It would allow none even if all Pods were healthy: a single replica, `maxUnavailable:
        /// 0`.
        never: bool,
    },
    /// The controller has not observed the latest change of the budget.
    Stale { budget: String },
}

impl fmt::Display for PdbProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Several { pod, budgets } => write!(
                f,
                "Pod {pod} can never be evicted: more than one PodDisruptionBudget selects it ({})",
                budgets.join(", ")
            ),
            Self::NoneAllowed { budget, pods, healthy, desired, expected, never } => {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                let when = if *never { "ever" } else { "now" };
                write!(
                    f,
                    "PodDisruptionBudget {budget} allows no eviction {when} ({healthy} Pods are \
                     healthy, {desired} must be, {expected} are expected): {}",
                    pods.join(", ")
                )
            }
            Self::Stale { budget } => write!(
                f,
                "PodDisruptionBudget {budget} was changed and its controller has not observed it \
                 yet"
            ),
        }
    }
}

/// Returns what blocks the eviction of `pods`, according to the current budgets.
pub fn blocked(budgets: &[Value], pods: &[Value]) -> Vec<PdbProblem> {
    let mut found = Vec::new();
    let mut held: Vec<Vec<PodName>> = vec![Vec::new(); budgets.len()];
    let mut is_used = vec![false; budgets.len()];
    for pod in pods.iter().filter(|pod| heeds_budgets(pod)) {
        let meta = &pod["metadata"];
        let matching: Vec<usize> = (0..budgets.len())
            .filter(|at| {
                let budget = &budgets[*at];
                budget["metadata"]["namespace"] == meta["namespace"]
                    && selects(&budget["spec"]["selector"], &meta["labels"])
            })
            .collect();
        match matching.as_slice() {
            [] => {}
            [at] => {
                is_used[*at] = true;
                if !allows(&budgets[*at], pod) {
                    held[*at].push(PodName::of(pod));
                }
            }
            several => found.push(PdbProblem::Several {
                pod: PodName::of(pod),
                budgets: several.iter().map(|at| name(&budgets[*at])).collect(),
            }),
        }
    }
    for ((budget, pods), is_used) in budgets.iter().zip(held).zip(is_used) {
        let number = |name: &str| budget["status"][name].as_i64().unwrap_or(0);
        let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
        if is_used && number("observedGeneration") < generation {
            found.push(PdbProblem::Stale { budget: name(budget) });
        } else if !pods.is_empty() {
            found.push(PdbProblem::NoneAllowed {
                budget: name(budget),
                pods,
                healthy: number("currentHealthy"),
                desired: number("desiredHealthy"),
                expected: number("expectedPods"),
                never: number("expectedPods") <= number("desiredHealthy"),
            });
        }
    }
    found
}

/// Returns whether a budget would allow the eviction of this Pod alone.
fn allows(budget: &Value, pod: &Value) -> bool {
    let number = |name: &str| budget["status"][name].as_i64().unwrap_or(0);
    if number("disruptionsAllowed") > 0 {
        return true;
    }
    let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
    let policy = budget["spec"]["unhealthyPodEvictionPolicy"].as_str();
    !is_ready(pod) && (policy == Some("AlwaysAllow") || (healthy >= desired && desired > 0))
}

/// Returns whether the server checks budgets before it evicts this Pod.
fn heeds_budgets(pod: &Value) -> bool {
    let is_pending = pod["status"]["phase"] == "Pending";
    !is_finished(pod) && !is_pending && !pods::is_terminating(pod)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    conditions.is_some_and(|all| all.iter().any(is_ready))
}

fn name(budget: &Value) -> String {
    PodName::of(budget).to_string()
}
