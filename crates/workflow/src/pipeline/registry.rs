//! Registry hosts that come and go while the cluster runs: which of the other hosts begin to serve or
//! no longer do, and what all hosts have to know then. Must not know how a registry is started.

use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::host_names;
use crate::pipeline::step::{Order, Phase};
use imgctl_base::error::Result;
use imgctl_model::context::{ClusterContext, Host, registry_hosts_of};
use imgctl_runtime::registry::clients;

/// What changes for hosts that are members before and after.
pub(crate) struct Moves<'a> {
    begin: Vec<&'a Host>,
    end: Vec<&'a Host>,
    /// Reachable members; empty if the registry hosts stay the same.
    tell: Vec<&'a Host>,
    /// A host that serves, or is about to, is a member already.
    pub(crate) at_once: bool,
}

impl<'a> Moves<'a> {
    /// Compares the registry hosts of `context` with those before `new` hosts came and others left.
    /// `reachable` are the hosts that can be told.
    pub(crate) fn of(context: &'a ClusterContext, new: &[&Host], reachable: &[Host]) -> Self {
        let is_new = |host: &Host| new.iter().any(|one| one.address == host.address);
        let members: Vec<&Host> = context.hosts.iter().filter(|host| !is_new(host)).collect();
        if context.registry.is_none() || members.is_empty() {
            return Self { begin: Vec::new(), end: Vec::new(), tell: Vec::new(), at_once: false };
        }
        let former = registry_hosts_of(members.iter().copied().chain(&context.leaving));
        let has = |all: &[&Host], host: &Host| all.iter().any(|one| one.address == host.address);
        let now = context.registry_hosts();
        let is_same = former.len() == now.len() && now.iter().all(|host| has(&former, host));
        let only = |is: &dyn Fn(&Host) -> bool| -> Vec<&'a Host> {
            members.iter().copied().filter(|host| is(host)).collect()
        };
        Self {
            begin: only(&|host| has(&now, host) && !has(&former, host)),
            end: only(&|host| has(&former, host) && !has(&now, host)),
            tell: only(&|host| !is_same && reachable.iter().any(|one| one.address == host.address)),
            at_once: now.iter().any(|host| !is_new(host)),
        }
    }

    /// Whether members learn of other registry hosts.
    pub(crate) fn tells(&self) -> bool {
        !self.tell.is_empty()
    }

    /// Returns the phases that start missing registries and then update the clients on all members.
    pub(crate) fn follow(
        &self,
        execution: &ExecutionContext<'_>,
        context: &ClusterContext,
    ) -> Result<[Phase; 2]> {
        let start = Phase::new("registry-start", Order::Parallel)
            .over(self.begin.iter().copied(), |host| (execution.registry)(context, host))?;
        let tell = Phase::new("registry-clients", Order::Parallel).over(
            self.tell.iter().copied(),
            |host| {
                let mut actions = vec![host_names::action(execution.runtime, context, host)];
                actions.extend(clients::actions(context, host));
                Ok(actions)
            },
        )?;
        Ok([start, tell])
    }

    /// Returns the phase that stops the registry on members that no longer serve it.
    pub(crate) fn stop(
        &self,
        execution: &ExecutionContext<'_>,
        context: &ClusterContext,
    ) -> Result<Phase> {
        Phase::new("registry-stop", Order::Parallel)
            .over(self.end.iter().copied(), |host| (execution.clean_registry)(context, host))
    }
}

/// Returns the phase in which hosts start or stop sharing images (`is_new`), or learn which members there are.
/// Starting may restart containerd, so it happens on one host after the other.
pub(crate) fn sharing(context: &ClusterContext, hosts: &[Host], is_new: bool) -> Result<Phase> {
    let order = if is_new { Order::Serial } else { Order::Parallel };
    Phase::new("registry-peers", order).over(hosts, |host| {
        Ok(if is_new { clients::sharing(context, host) } else { clients::actions(context, host) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing::context;

    fn ids(hosts: &[&Host]) -> Vec<String> {
        hosts.iter().map(|host| host.address.name.replace("10.0.0.", "")).collect()
    }

    #[test]
    fn members_take_over_and_hand_over() {
        // The only registry host leaves: the first control plane takes over.
        let mut all = context(&["master", "node", "node,registry"]);
        all.leaving = all.hosts.split_off(2);
        let moves = Moves::of(&all, &[], &all.hosts);
        assert_eq!((ids(&moves.begin), ids(&moves.end)), (vec!["1".to_owned()], vec![]));
        assert!(moves.at_once);
        assert_eq!(ids(&moves.tell), ["1", "2"]);
        // A host with the role comes: the first control plane hands over.
        let all = context(&["master", "node", "node,registry"]);
        let new = [&all.hosts[2]];
        let moves = Moves::of(&all, &new, &all.hosts[..1]);
        assert_eq!((ids(&moves.begin), ids(&moves.end)), (vec![], vec!["1".to_owned()]));
        assert!(!moves.at_once);
        assert_eq!(ids(&moves.tell), ["1"]);
        // Others come: nothing to tell. A creation has no members.
        let all = context(&["master,registry", "node"]);
        assert!(Moves::of(&all, &[&all.hosts[1]], &all.hosts).tell.is_empty());
        let every: Vec<&Host> = all.hosts.iter().collect();
        assert!(Moves::of(&all, &every, &all.hosts).tell.is_empty());
    }
}
