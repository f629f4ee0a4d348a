//! Workers' load balancers while an API server stops.

use crate::kubeadm::config::has_balancers;
use crate::upgrade::{Move, Place};
use crate::{Action, load_balancer};

/// Redirects workers to other API servers before `stopping`, the actions that stop this host's API
/// server. LVScare has no such list: it detects the state through `/readyz`.
pub(super) fn out_of_service(
    step: &Move<'_>,
    actions: Vec<Action>,
    stopping: &[&str],
) -> Vec<Action> {
    if step.place == Place::Worker || !has_balancers(step.to) {
        return actions;
    }
    let taken_out = |action: Action| {
        if stopping.contains(&action.name.as_str()) {
            load_balancer::taken_out_before(step.to, action)
        } else {
            action
        }
    };
    actions.into_iter().map(taken_out).collect()
}
