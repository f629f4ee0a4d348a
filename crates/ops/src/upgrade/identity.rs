//! Whether a resumed upgrade finds the cluster that it was planned for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::upgrade::images::ClusterSnapshot;
use imgctl_base::error::{Error, Result};
use imgctl_kube::api::Api;
use imgctl_model::context::Host;
use imgctl_upgrade::document::Document;

/// Its UID is that of the cluster.
const SYSTEM: &str = "/api/v1/namespaces/kube-system";
/// Time in which an API server that starts answers as it should.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

/// Fails unless the cluster and its hosts are those of the plan. If the API does not answer, only the
/// hosts are compared.
pub(super) fn check(document: &Document, known: &ClusterSnapshot<'_>) -> Result<()> {
    if let (Some(before), Some(Ok(api))) = (&document.identity.kube_system, &known.api) {
        let now = namespace(&**api, PATIENCE)?;
        if now.is_some_and(|now| now["metadata"]["uid"] != before.as_str()) {
            return Err(Error::check_failed(format!(
                "this is not the cluster that {} was planned for",
                document.id
            ))
            .hint("run `imgctl upgrade abort` to discard the plan"));
        }
    }
    let now: BTreeSet<String> = known.target().hosts.iter().map(Host::id).collect();
    let then: BTreeSet<String> = document.hosts.keys().cloned().collect();
    if now != then {
        let list = |ids: Vec<&String>| ids.into_iter().cloned().collect::<Vec<_>>().join(", ");
        return Err(Error::check_failed(format!(
            "the hosts differ from those of the plan {}: added {}, removed {}",
            document.id,
            list(now.difference(&then).collect()),
            list(then.difference(&now).collect())
        ))
        .hint("make a new plan"));
    }
    Ok(())
}

/// Returns the namespace kube-system; `None` if the API server goes away. One that has just started,
/// as each does during an upgrade, refuses everybody until it has read its roles.
fn namespace(api: &dyn Api, patience: Duration) -> Result<Option<Value>> {
    let began = Instant::now();
    loop {
        let error = match api.get(SYSTEM) {
            Ok(now) => return Ok(Some(now)),
            Err(error) => error,
        };
        if error.is_outage() {
            return Ok(None);
        }
        let may_start = matches!(error.code, 401 | 403 | 429);
        if !may_start || began.elapsed() >= patience {
            return Err(error.into());
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_kube::api::ApiError;
    use imgctl_kube::testing::stand_in::StandIn;
    use serde_json::json;

    fn cluster() -> StandIn {
        let api = StandIn::new();
        api.add(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "uid-1"},
        }));
        api
    }

    fn failing(code: u16) -> ApiError {
        ApiError { code, reason: "Forbidden".to_owned(), ..ApiError::default() }
    }

    #[test]
    fn a_server_that_has_just_started_may_refuse_for_a_while() {
        let api = cluster();
        api.fail_next("get", SYSTEM, failing(403));
        let found = namespace(&api, PATIENCE).unwrap().unwrap();
        assert_eq!(found["metadata"]["uid"], "uid-1");
        api.fail_next("get", SYSTEM, failing(403));
        let refused = namespace(&api, Duration::ZERO).unwrap_err();
        assert!(refused.to_string().contains("403"), "{refused}");
    }

    #[test]
    fn a_server_that_goes_away_is_not_another_cluster() {
        let api = cluster();
        api.fail_next("get", SYSTEM, failing(0));
        assert_eq!(namespace(&api, PATIENCE).unwrap(), None);
        api.fail_next("get", SYSTEM, failing(404));
        namespace(&api, PATIENCE).unwrap_err();
    }
}
