//! Checks that the API can do what an upgrade requires.

use super::look::{Look, error, warning};
use crate::runtime::version::minor;
use crate::upgrade::document::Finding;

pub(super) fn answers(look: &Look<'_>) -> Vec<Finding> {
    let problem = look.observation.api_problem.as_ref();
    let silent = problem.filter(|_| look.api().is_none()).map(|why| {
        error("api", format!("the API cannot be asked: {why}"))
            .hint("`imgctl status` tells how the control planes are")
    });
    let unknown = look.api().into_iter().flat_map(|api| &api.unknown);
    let parts = unknown
        .filter(|(part, _)| *part != "kubeadm-config")
        .map(|(part, why)| warning("api", format!("{part} cannot be asked: {why}")));
    silent.into_iter().chain(parts).collect()
}

pub(super) fn services(look: &Look<'_>) -> Vec<Finding> {
    let dead = look
        .api()
        .into_iter()
        .flat_map(|api| &api.unavailable_services);
    dead.map(|(name, why)| {
        warning(
            "api-services",
            format!("APIService {name} is not available: {why}"),
        )
        .hint("bring back what serves it, or delete the APIService")
    })
    .collect()
}

pub(super) fn webhooks(look: &Look<'_>) -> Vec<Finding> {
    let dead = look.api().into_iter().flat_map(|api| &api.webhooks);
    dead.map(|hook| {
        let what = format!(
            "webhook {} of {} must answer (failurePolicy: Fail), but nobody serves {}",
            hook.name, hook.configuration, hook.service
        );
        error("webhooks", what).hint(
            "bring its Pods back, or take the webhook away while the upgrade runs: Pods that are \
             evicted could not be made anew",
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
            "somebody uses {} of {group}, which v{} has no more",
            used.resource, used.removed_release
        );
        error("removed-apis", what).hint(
            "find who it is in the API server's audit log (annotation k8s.io/removed-release) and \
             move it to the newer version; the metric \
             apiserver_requested_deprecated_apis forgets when API servers start anew",
        )
    })
    .collect()
}

pub(super) fn lease(look: &Look<'_>) -> Vec<Finding> {
    let holder = look.api().and_then(|api| api.lease_holder.as_ref());
    holder
        .map(|holder| {
            error("lock", format!("{holder} is at work on this cluster"))
                .hint("wait, or see `imgctl upgrade status`")
        })
        .into_iter()
        .collect()
}
