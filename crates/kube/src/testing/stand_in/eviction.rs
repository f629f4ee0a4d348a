//! Evictions, and what PodDisruptionBudgets allow.

use serde_json::{Value, json};

use crate::api::{Answer, ApiError};
use crate::selector::selects;
use crate::testing::stand_in::path::Path;
use crate::testing::stand_in::{Key, State, status};

const BUDGETS: &str = "policy/poddisruptionbudgets";

impl State {
    /// Handles `POST pods/NAME/eviction`.
    pub(super) fn evict(&mut self, path: &Path, eviction: &Value) -> Answer<Value> {
        if eviction["metadata"]["name"].as_str() != Some(&path.name) {
            return Err(status::bad_request("name in URL does not match name in Eviction object"));
        }
        if self.is_terminating(path) {
            return Err(status::terminating(path));
        }
        let pod = self.get(path)?;
        let options = &eviction["deleteOptions"];
        let ignores_budgets =
            matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
                || !pod["metadata"]["deletionTimestamp"].is_null();
        if !ignores_budgets {
            self.charge(&pod, path.is_dry_run())?;
        }
        self.delete(path, options)?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}))
    }

    /// Charges one disruption to the budget of a Pod, if it has one.
    fn charge(&mut self, pod: &Value, is_dry: bool) -> Answer<()> {
        let budgets = self.budgets_of(pod);
        let [key] = budgets.as_slice() else {
            return if budgets.is_empty() { Ok(()) } else { Err(status::two_budgets()) };
        };
        let mut budget = self.objects[key].clone();
        let number = |name: &str| budget["status"][name].as_i64().unwrap_or(0);
        let (current, desired) = (number("currentHealthy"), number("desiredHealthy"));
        if !is_ready(pod) {
            let policy = budget["spec"]["unhealthyPodEvictionPolicy"].as_str();
            if policy == Some("AlwaysAllow") || (current >= desired && desired > 0) {
                return Ok(());
            }
        }
        let name = &key.2;
        let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
        if number("observedGeneration") < generation {
            let cause =
                format!("The disruption budget {name} is still being processed by the server.");
            return Err(status::too_many(cause, Some(10)));
        }
        match number("disruptionsAllowed") {
            ..0 => Err(ApiError {
                code: 403,
                reason: "Forbidden".to_owned(),
                message: format!(
                    "poddisruptionbudgets.policy \"{name}\" is forbidden: pdb disruptions allowed is negative"
                ),
                ..ApiError::default()
            }),
            0 => Err(status::too_many(
                format!(
                    "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
                ),
                None,
            )),
            allowed => {
                if !is_dry {
                    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
                    self.keep(key, budget);
                }
                Ok(())
            }
        }
    }

    fn budgets_of(&self, pod: &Value) -> Vec<Key> {
        let meta = &pod["metadata"];
        let matching = self.objects.iter().filter(|((resource, namespace, _), budget)| {
            resource == BUDGETS
                && meta["namespace"] == namespace.as_str()
                && selects(&budget["spec"]["selector"], &meta["labels"])
        });
        matching.map(|(key, _)| key.clone()).collect()
    }

    /// Acts as the disruption controller.
    pub(super) fn settle_budgets(&mut self) {
        if self.budgets_are_frozen {
            return;
        }
        let keys = self.objects.keys().filter(|(resource, ..)| resource == BUDGETS);
        for key in keys.cloned().collect::<Vec<_>>() {
            let status = self.budget_status(&key);
            if self.objects[&key]["status"] != status {
                let mut budget = self.objects[&key].clone();
                budget["status"] = status;
                self.keep(&key, budget);
            }
        }
    }

    fn budget_status(&self, key: &Key) -> Value {
        let budget = &self.objects[key];
        let pods: Vec<&Value> = self
            .objects
            .iter()
            .filter(|((resource, namespace, _), _)| resource == "/pods" && *namespace == key.1)
            .map(|(_, pod)| pod)
            .filter(|pod| selects(&budget["spec"]["selector"], &pod["metadata"]["labels"]))
            .filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
            .collect();
        let living = |pod: &&&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let healthy = pods.iter().filter(living).filter(|pod| is_ready(pod)).count();
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let expected = self.expected(&key.1, &pods);
        let spec = &budget["spec"];
        let desired = match (spec.get("maxUnavailable"), spec.get("minAvailable")) {
            (Some(most), _) => (expected - scaled(most, expected)).max(0),
            (_, Some(least)) => scaled(least, expected),
            _ => 0,
        };
        let allowed = match expected {
            0 => 0,
            _ => (healthy - desired).max(0),
        };
        json!({
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
        })
    }

    /// Returns the expected number of Pods: the replicas that their controllers want, or one for
    /// each Pod whose controller is missing or unknown.
    fn expected(&self, namespace: &str, pods: &[&Value]) -> i64 {
        let mut seen: Vec<&str> = Vec::new();
        let mut expected = 0;
        for pod in pods {
            let owners = pod["metadata"]["ownerReferences"].as_array();
            let owner = owners.and_then(|all| all.iter().find(|one| one["controller"] == true));
            let replicas = owner.and_then(|owner| {
                let (kind, name) = (owner["kind"].as_str()?, owner["name"].as_str()?);
                let resource = format!("apps/{}s", kind.to_ascii_lowercase());
                let key = (resource, namespace.to_owned(), name.to_owned());
                self.objects.get(&key)?["spec"]["replicas"].as_i64()
            });
            match (owner.and_then(|owner| owner["uid"].as_str()), replicas) {
                (Some(uid), Some(_)) if seen.contains(&uid) => {}
                (Some(uid), Some(replicas)) => {
                    seen.push(uid);
                    expected += replicas;
                }
                _ => expected += 1,
            }
        }
        expected
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// Returns a number, or a percentage of `of` rounded up.
fn scaled(value: &Value, of: i64) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let text = value.as_str().unwrap_or_default();
    let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
    (percent * of + 99).div_euclid(100)
}
