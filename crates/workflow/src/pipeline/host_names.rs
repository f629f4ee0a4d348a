//! The cluster's lines in the hosts files of its hosts: which there should be, which a host lacks (some
//! systems write the file anew when they boot), and how they are written.
//!
//! Must not know how a host changes the file.

use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::look::Looks;
use crate::pipeline::step::{Order, Phase, Step};
use imgctl_base::error::Result;
use imgctl_host::agent::protocol::{Facts, HostsBlock, HostsEntry};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::{Action, Runtime};

/// Returns the action that writes the cluster's block in the hosts file.
pub(crate) fn action(runtime: &dyn Runtime, context: &ClusterContext, host: &Host) -> Action {
    set("hosts", context, entries(runtime, context, host))
}

/// Returns the action that removes the block.
pub(crate) fn removal(context: &ClusterContext) -> Action {
    set("hosts-clean", context, Vec::new())
}

/// Returns the entries of the cluster's block: address and name.
fn entries(runtime: &dyn Runtime, context: &ClusterContext, host: &Host) -> Vec<HostsEntry> {
    let mut entries = Vec::new();
    if let Some(registry) = &context.registry {
        // Clients that know only the name try one address after the other: the own one, then in the
        // same order everywhere, so that what is pushed by the name is on one host.
        let mut serving = context.registry_hosts();
        serving.sort_by_key(|other| other.address != host.address);
        let entry = |other: &Host| (other.ip().to_owned(), registry.domain.clone());
        entries.extend(serving.into_iter().map(entry));
    }
    for entry in runtime.hosts_entries(context, host) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries
}

fn set(name: &str, context: &ClusterContext, entries: Vec<HostsEntry>) -> Action {
    let says = if entries.is_empty() {
        "remove imgctl's lines from the hosts file".to_owned()
    } else {
        format!("hosts file: {}", shown(&entries))
    };
    let block = HostsBlock { cluster: context.name.clone(), entries };
    Action::new(name, says, move |site| site.agent.set_hosts(&block).map(|_| ()))
}

fn shown(entries: &[HostsEntry]) -> String {
    let lines = entries.iter().map(|(address, name)| format!("{address} {name}"));
    lines.collect::<Vec<_>>().join(", ")
}

/// Returns what the hosts file of a member lacks, for the operator, and the actions that write it.
pub(crate) fn lacking(
    runtime: &dyn Runtime,
    context: &ClusterContext,
    host: &Host,
    facts: &Facts,
) -> Vec<(String, Action)> {
    // The hosts files of an adopted cluster are its administrator's.
    let Some(blocks) = facts.hosts_blocks.as_ref().filter(|_| !context.is_adopted()) else {
        return Vec::new();
    };
    let mut lacking = Vec::new();
    let expected = entries(runtime, context, host);
    let present = blocks.get(&context.name);
    let has = |entry: &&HostsEntry| present.is_some_and(|block| block.contains(entry));
    if !expected.iter().all(|entry| has(&entry)) {
        let missing: Vec<_> = expected.iter().filter(|entry| !has(entry)).cloned().collect();
        lacking.push((shown(&missing), action(runtime, context, host)));
    }
    for (block, action) in runtime.hosts_blocks(context, host) {
        if !blocks.contains_key(&block) {
            lacking.push((format!("the block {block}"), action));
        }
    }
    lacking
}

/// Returns the phase that writes what the hosts files of members lack.
pub(crate) fn repair<'h>(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    members: impl IntoIterator<Item = &'h Host>,
    looks: &Looks,
) -> Result<Phase> {
    Phase::new("names", Order::Parallel).over(members, |host| {
        let Some(Ok(facts)) = looks.get(&host.id()) else { return Ok(Vec::new()) };
        let lacking = lacking(execution.runtime, context, host, facts);
        Ok(lacking.into_iter().map(|(_, action)| Step::from(action).always()).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pipeline::testing::Bare;
    use imgctl_model::testing;

    #[test]
    fn lines_that_a_host_has_lost_are_known_and_foreign_ones_do_not_matter() {
        let context = testing::context(&["master", "node"]);
        let host = context.hosts[1].clone();
        let line = (context.hosts[0].ip().to_owned(), "sealos.hub".to_owned());
        let lacks = |blocks: Option<Vec<(&str, Vec<HostsEntry>)>>| {
            let owned = |all: Vec<(&str, Vec<HostsEntry>)>| {
                all.into_iter().map(|(name, lines)| (name.to_owned(), lines)).collect()
            };
            let blocks: Option<BTreeMap<_, _>> = blocks.map(owned);
            let facts = Facts { hosts_blocks: blocks, ..Facts::default() };
            let lacking = lacking(&Bare, &context, &host, &facts);
            lacking.into_iter().map(|(what, _)| what).collect::<Vec<_>>()
        };
        let shown = format!("{} sealos.hub", line.0);
        let name = context.name.as_str();
        assert_eq!(lacks(Some(vec![])), [shown.as_str()]);
        assert_eq!(lacks(Some(vec![("other", vec![line.clone()])])), [shown.as_str()]);
        assert_eq!(lacks(Some(vec![(name, vec![])])), [shown.as_str()]);
        let more = ("10.0.0.99".to_owned(), "own".to_owned());
        assert!(lacks(Some(vec![(name, vec![more, line])])).is_empty());
        // An agent that cannot read the file is no complaint.
        assert!(lacks(None).is_empty());
    }
}
