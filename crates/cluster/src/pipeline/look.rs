//! First query of hosts before there is a plan: which hosts answer, and their facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::context::{ClusterContext, Host};
use crate::runtime::action::HostPool;
use imgctl_base::error::Result;
use imgctl_host::agent::protocol::Facts;
use imgctl_transfer::transfer::workers::map;

/// Answers of hosts, keyed by [`Host::id`].
pub(crate) type Looks = BTreeMap<String, Result<Facts>>;

/// Queries `hosts`, at most `parallel` at once.
pub fn look<'a>(
    hosts: impl IntoIterator<Item = &'a Host>,
    pool: &Arc<dyn HostPool + Send>,
    parallel: usize,
) -> Looks {
    let ask = |host: &Host| (host.id(), pool.agent(host).and_then(|agent| agent.facts()));
    map(hosts, parallel, ask).into_iter().collect()
}

/// Returns the cluster context with the values that the hosts reported: `HOST_NAME` and `ARCH`,
/// unless they are already set.
pub fn informed(context: &ClusterContext, looks: &Looks) -> ClusterContext {
    let mut context = context.clone();
    let is_set = |context: &ClusterContext, name: &str| {
        context.environment.contains_key(name)
            || context.images.iter().any(|image| image.environment.contains_key(name))
    };
    let arch_is_set = is_set(&context, "ARCH");
    for host in context.hosts.iter_mut().chain(&mut context.leaving) {
        let Some(Ok(facts)) = looks.get(&host.id()) else {
            continue;
        };
        let mut known = vec![("HOST_NAME", &facts.hostname)];
        if !arch_is_set {
            known.push(("ARCH", &facts.architecture));
        }
        for (name, value) in known {
            if !value.is_empty() {
                host.environment.entry(name.to_owned()).or_insert_with(|| value.clone());
            }
        }
    }
    context
}
