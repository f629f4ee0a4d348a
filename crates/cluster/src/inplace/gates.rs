//! Determines whether another Pod may be taken out of service now. Pure.

use crate::inplace::object::Pod;
use crate::inplace::plan::Group;
use crate::inplace::world::World;

/// `Err` contains the reason why it may not. `flying`: UIDs of Pods that this run took out of
/// service and that are not ready again.
pub(crate) fn may_start(
    world: &World,
    pod: &Pod,
    group: &Group,
    flying: &[&str],
) -> Result<(), String> {
    if let Some(node) = world.nodes.get(&pod.spec.node_name)
        && let Some(trouble) = node.trouble()
    {
        return Err(trouble);
    }
    if !pod.is_ready() {
        // It is already out of service.
        return Ok(());
    }
    let serves = |pod: &&Pod| pod.is_ready() && !flying.contains(&pod.metadata.uid.as_str());
    let key = world.group(pod);
    let ready = world.members(&key).filter(serves).count();
    let missing = group.desired.saturating_sub(ready);
    if missing + 1 > group.max_unavailable {
        return Err(format!(
            "{missing} of {} Pods of {} are out of service, and at most {} may be",
            group.desired,
            group.full_name(),
            group.max_unavailable
        ));
    }
    for budget in world.budgets_of(pod) {
        let (name, status) = (&budget.metadata.name, &budget.status);
        let selector = budget.spec.selector.as_ref();
        let counted =
            |pod: &&Pod| selector.is_some_and(|selector| selector.matches(&pod.metadata.labels));
        let alive = || {
            let pods = world.pods.iter();
            pods.filter(|pod| !pod.is_finished() && !pod.is_going()).filter(counted)
        };
        // The budget's controller may not have observed yet that they are out of service.
        let out = alive().filter(|pod| flying.contains(&pod.metadata.uid.as_str())).count();
        let healthy = alive().filter(serves).count();
        let out = i64::try_from(out).unwrap_or(i64::MAX);
        let healthy = i64::try_from(healthy).unwrap_or(0);
        if status.disruptions_allowed - out < 1 || healthy - 1 < status.desired_healthy {
            return Err(format!(
                "PodDisruptionBudget {}/{name} allows no disruption ({healthy} healthy, {} needed)",
                world.namespace, status.desired_healthy
            ));
        }
    }
    Ok(())
}
