//! Checks that the API can do what an upgrade requires.

use super::look::{Look, error, warning};
use crate::runtime::version::minor;
use crate::upgrade::document::Finding;

pub(super) fn answers(look: &Look<'_>) -> Vec<Finding> {
    let problem = look.observation.api_problem.as_ref();
    let silent = problem.filter(|_| look.api().is_none()).map(|why| {
        error("api", format!("cannot query the API: {why}"))
            .hint("run `imgctl status` to check the control planes")
    });
    let unknown = look.api().into_iter().flat_map(|api| &api.unknown);
    let parts = unknown
        .filter(|(part, _)| *part != "kubeadm-config")
        .map(|(part, why)| warning("api", format!("cannot query {part}: {why}")));
    silent.into_iter().chain(parts).collect()
}

pub(super) fn services(look: &Look<'_>) -> Vec<Finding> {
    let dead = look.api().into_iter().flat_map(|api| &api.unavailable_services);
    dead.map(|(name, why)| {
        warning("api-services", format!("APIService {name} is not available: {why}"))
            .hint("restore the server behind it, or delete the APIService")
    })
    .collect()
}

pub(super) fn webhooks(look: &Look<'_>) -> Vec<Finding> {
    let dead = look.api().into_iter().flat_map(|api| &api.webhooks);
    dead.map(|hook| {
        let what = format!(
            "webhook {} of {} must answer (failurePolicy: Fail), but {} has no ready endpoints",
            hook.name, hook.configuration, hook.service
        );
        error("webhooks", what).hint(
            "restore its Pods, or remove the webhook during the upgrade: evicted Pods could not be \
             recreated",
        )
    })
    .collect()
}

/// APIs that clients have used since the API server started, and that the upgrade removes.
pub(super) fn removed(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api().filter(|_| look.is_forward()) else {
        return Vec::new();
    };
    let new = look.new_minors();
    let used = api
        .deprecated
        .iter()
        .filter(|used| minor(&used.removed_release).is_some_and(|minor| new.contains(&minor)));
    used.map(|used| {
        let group = match used.group.as_str() {
            "" => used.version.clone(),
            group => format!("{group}/{}", used.version),
        };
        let what = format!(
            "a client uses {} of {group}, which v{} removes",
            used.resource, used.removed_release
        );
        error("removed-apis", what).hint(
            "find the client in the API server's audit log (annotation k8s.io/removed-release) and \
             move it to the newer version; the metric apiserver_requested_deprecated_apis resets \
             when API servers restart",
        )
    })
    .collect()
}

pub(super) fn lease(look: &Look<'_>) -> Vec<Finding> {
    let holder = look.api().and_then(|api| api.lease_holder.as_ref());
    holder
        .map(|holder| {
            error("lock", format!("{holder} is working on this cluster"))
                .hint("wait, or see `imgctl upgrade status`")
        })
        .into_iter()
        .collect()
}
