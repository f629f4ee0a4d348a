//! Plans the change of one host's address in a running cluster.
//!
//! The cluster context has the host at its new address already, and every step reaches it there.
//! What a runtime does on the host is its own matter ([`imgctl_runtime::Runtime::renumber`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::pipeline::check::{self, Problem, Question};
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate, Then};
use crate::pipeline::look::{self, Looks};
use crate::pipeline::step::{Lane, Order, Phase, Plan, Step, journals};
use crate::pipeline::{change::Planned, host_names, ownership, record};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::agent::protocol::Facts;
use imgctl_journal::past;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::renumber::Renumbering;
use imgctl_model::state::archive_upgrades;
use imgctl_runtime::registry::clients;

const VERB: &str = "renumber";

/// What is known about a change besides the cluster context.
pub struct Request<'a> {
    pub change: &'a Renumbering,
    /// The host at its old address.
    pub former: &'a Host,
    /// Returns whether the SSH host keys recorded for two hosts are the same; `None` if there is no
    /// record for one of them.
    pub same_key: &'a dyn Fn(&Host, &Host) -> Result<Option<bool>>,
}

/// How far earlier runs have brought a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No run of this controller has begun it.
    Unknown,
    Unfinished,
    Done,
}

/// Returns what the newest journal of this change says.
pub fn progress(state: &std::path::Path, cluster: &str, change: &Renumbering) -> Result<Progress> {
    let directory = journals(state);
    let intent = empty(cluster, change).intent;
    for id in past::list(&directory)? {
        let past = past::Past::read(&past::path_of(&directory, &id))?;
        if past.intent == intent {
            return Ok(if past.is_done() { Progress::Done } else { Progress::Unfinished });
        }
    }
    Ok(Progress::Unknown)
}

fn empty(cluster: &str, change: &Renumbering) -> Plan {
    let names = format!("{}={}", change.old.name, change.new.name);
    let mut plan = Plan::new(VERB, cluster, &names);
    // What runs before it left unfinished was planned with the old address.
    plan.destroys = true;
    plan
}

/// Queries the hosts and returns the plan. Changes nothing on them.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    request: &Request<'_>,
) -> Result<Planned> {
    let old = request.change.old.name.as_str();
    execution.runtime.check(context)?;
    // Says that the runtime cannot do it before any host is asked.
    execution.runtime.renumber(context, moved(context, request.change)?, old)?;
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    let context = Arc::new(look::informed(context, &looks));
    let host = moved(&context, request.change)?;
    refuse_silence(&context, &looks, request.change)?;
    ownership::refuse_unfinished_reset(&context)?;
    ownership::refuse_taken(&context, &looks)?;
    let keeps_old = verify(execution, &context, request, &looks)?;
    // This check comes second: a new address that belongs to another machine is the better message.
    ownership::refuse_lost(&context, &context.hosts, &looks)?;

    let files = execution.files.plan(&context, &context.hosts, &execution.pool, Then::Switch)?;
    let bytes: BTreeMap<String, u64> =
        files.hosts.iter().map(|files| (files.host.id(), files.bytes)).collect();
    let mut findings = check::findings(&Question {
        context: &context,
        runtime: execution.runtime,
        looks: &looks,
        new: &[],
        bytes: &bytes,
        force: false,
        begun: &BTreeSet::new(),
    });
    check::refuse_switch(&context, &files.leave_rootfs, &mut findings);
    if let Some((id, problems)) = findings.problems.iter().next() {
        return Err(Problem::error(id, problems));
    }
    if let Some((host, error)) = files.failed.first() {
        return Err(Error::new(error.kind(), format!("{}: {error}", host.id())));
    }

    let mut plan = empty(&context.name, request.change);
    plan.notes = notes(execution, &context, host, old, keeps_old);
    let mark = record::mark(execution, PhaseUpdate::InProcess);
    plan.push(Phase::local("prepare", vec![mark, end_upgrades(&context)]));
    plan.push(ownership::phase(&context, &looks, &BTreeSet::new()));
    plan.push(files.phase("sync"));
    let names = Phase::new("names", Order::Parallel);
    let entries = |host| {
        let mut actions = vec![host_names::action(execution.runtime, &context, host)];
        actions.extend(clients::actions(&context, host));
        Ok(actions)
    };
    plan.push(names.over(&context.hosts, entries)?);
    if context.serves_registry(host) {
        plan.push(Phase::on("registry", host, (execution.registry)(&context, host)?));
    }
    let mut actions = execution.runtime.renumber(&context, host, old)?;
    actions.extend(execution.runtime.health(&context, host)?);
    plan.push(Phase::on(VERB, host, actions));
    let mut others = Phase::new("others", Order::Parallel);
    for other in &context.hosts {
        others =
            others.lane(Lane::on(other, execution.runtime.follow(&context, other, host, old)?));
    }
    plan.push(others);
    // The cluster is well before the next host moves.
    let gate = Phase::new("gate", Order::Serial);
    let rest = context.control_planes().filter(|other| other.address != host.address);
    plan.push(gate.over(rest, |other| execution.runtime.health(&context, other))?);
    let mark = record::mark(execution, PhaseUpdate::Success);
    plan.extend(record::phases(execution, &context, vec![mark]));
    Ok(Planned::new(plan, Arc::clone(&context), execution))
}

/// Ends the possibility to roll back earlier upgrades: their backups have the old address, and their
/// records name the host by it.
fn end_upgrades(context: &ClusterContext) -> Step {
    let state = context.state.directory().to_owned();
    let says = "rename the records of earlier upgrades, which cannot be rolled back any more";
    Step::local("upgrades", says, "", move |_| {
        archive_upgrades(&state, jiff::Timestamp::now().as_second())
    })
}

/// Returns the host whose address changes.
fn moved<'a>(context: &'a ClusterContext, change: &Renumbering) -> Result<&'a Host> {
    context
        .hosts
        .iter()
        .find(|host| host.address.name == change.new.name)
        .ok_or_else(|| Error::not_found(format!("there is no host {}", change.new)))
}

/// Fails if a host does not answer: all of them learn the new address.
fn refuse_silence(context: &ClusterContext, looks: &Looks, change: &Renumbering) -> Result<()> {
    for host in &context.hosts {
        let Some(Err(error)) = looks.get(&host.id()) else {
            continue;
        };
        let message = error.chain().join(": ");
        return Err(if host.address.name == change.new.name {
            Error::new(
                error.kind(),
                format!("{} cannot be reached at {}: {message}", change.old, change.new),
            )
            .hint(format!(
                "imgctl does not configure networks: give the host the address {} on an interface, \
                 with SSH and the same login, then run the same command again",
                change.new.name
            ))
        } else {
            look::lost(&host.id(), error)?.hint(
                "every host of the cluster learns the new address: bring the host back, or remove \
                 it with `imgctl delete --force`",
            )
        });
    }
    Ok(())
}

fn refused(what: String, hint: &str) -> Error {
    Error::new(Kind::CheckFailed, what).hint(hint)
}

/// Verifies that the machine at the new address is the host. Returns whether it still has the old
/// address as well.
fn verify(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    request: &Request<'_>,
    looks: &Looks,
) -> Result<bool> {
    let host = moved(context, request.change)?;
    let Some(Ok(facts)) = looks.get(&host.id()) else {
        return Err(Error::failed(format!("{} has not reported", host.id())));
    };
    let others = context.hosts.iter().filter(|other| other.address != host.address);
    let others: Vec<(String, &Facts)> = others
        .filter_map(|other| Some((other.id(), looks.get(&other.id())?.as_ref().ok()?)))
        .collect();
    identity(&context.name, request.change, facts, &others)?;
    if has(facts, &request.change.old.name) {
        return Ok(true);
    }
    // The host has moved. Whoever has the old address now, it is not this machine.
    let answers = execution.pool.agent(request.former).and_then(|agent| agent.facts());
    if let Ok(there) = answers {
        return Err(refused(
            format!(
                "{} and {} are two machines: {} ({}) and {} ({})",
                request.change.old.name,
                request.change.new.name,
                there.hostname,
                there.machine_id,
                facts.hostname,
                facts.machine_id
            ),
            "renumber changes the address of one machine; to replace a machine, `imgctl add` the \
             new one and `imgctl delete` the old one",
        ));
    }
    if (request.same_key)(request.former, host)? == Some(false) {
        return Err(refused(
            format!(
                "{} has another SSH host key than {} had: it may be another machine",
                request.change.new.name, request.change.old.name
            ),
            "if its keys were renewed, remove the entry of the old address from known_hosts \
             (ssh-keygen -R) and run the same command again",
        ));
    }
    Ok(false)
}

/// Checks what a machine reports about itself.
fn identity(
    cluster: &str,
    change: &Renumbering,
    facts: &Facts,
    others: &[(String, &Facts)],
) -> Result<()> {
    let new = change.new.name.as_str();
    if !has(facts, new) {
        return Err(refused(
            format!(
                "the machine behind {new} ({}) has no interface with that address; it has {}",
                facts.hostname,
                facts.addresses.join(", ")
            ),
            "members of a cluster listen on the address that the others reach them at: give it to \
             an interface of the host",
        ));
    }
    let is_twin = |(_, other): &&(String, &Facts)| {
        !facts.machine_id.is_empty() && other.machine_id == facts.machine_id
    };
    if let Some((id, _)) = others.iter().find(is_twin) {
        return Err(refused(
            format!(
                "{new} is {id} of cluster `{cluster}`, not {}: both report the machine-id {}",
                change.old.name, facts.machine_id
            ),
            "name the host that has the new address",
        ));
    }
    if !facts.clusters.iter().any(|known| known == cluster) {
        return Err(refused(
            format!(
                "the machine at {new} ({}) is not {}: it has no files of cluster `{cluster}`",
                facts.hostname, change.old.name
            ),
            "renumber changes the address of a member; `imgctl add` makes a machine a member",
        ));
    }
    Ok(())
}

fn has(facts: &Facts, address: &str) -> bool {
    let Ok(wanted) = address.parse::<IpAddr>() else {
        return false;
    };
    facts.addresses.iter().any(|own| own.parse() == Ok(wanted))
}

/// Returns what the operator has to know before agreeing.
fn notes(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
    old: &str,
    keeps_old: bool,
) -> Vec<String> {
    let new = host.ip();
    let mut notes = vec![format!(
        "{old} becomes {new}: whoever uses {old} directly (DNS records, external load balancers, \
         NodePorts, kubeconfigs and clients elsewhere) must be told"
    )];
    notes.push(if keeps_old {
        format!(
            "the host still has {old}: leave it there until this command has succeeded; reboot the \
             host, or restart its services, when you take it away"
        )
    } else {
        format!("the host no longer has {old}: what listened there is down until it has moved")
    });
    if context.state.path("upgrade").exists() {
        notes.push(
            "earlier upgrades cannot be rolled back any more: their backups have the old address"
                .to_owned(),
        );
    }
    if execution.runtime.has_api() {
        notes.push(format!(
            "on {new} the kubelet restarts, and the Pods of DaemonSets that use the host's network \
             (kube-proxy, network plugins); other Pods keep running"
        ));
        if host.is_control_plane() && context.control_planes().count() < 3 {
            notes.push("the API does not answer while etcd restarts on that host".to_owned());
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(machine: &str, addresses: &[&str]) -> Facts {
        Facts {
            hostname: "h1".to_owned(),
            machine_id: machine.to_owned(),
            addresses: addresses.iter().map(|own| (*own).to_owned()).collect(),
            clusters: vec!["c".to_owned()],
            ..Facts::default()
        }
    }

    #[test]
    fn only_the_host_itself_is_accepted() {
        let change = Renumbering::parse("10.0.0.1=10.9.0.1").unwrap();
        let other = facts("two", &["10.0.0.2"]);
        let others = [("10.0.0.2".to_owned(), &other)];
        let asked = |facts: &Facts| {
            identity("c", &change, facts, &others).map_err(|error| error.to_string())
        };
        assert_eq!(asked(&facts("one", &["10.0.0.1", "10.9.0.1"])), Ok(()));
        assert_eq!(asked(&facts("one", &["10.9.0.1"])), Ok(()));
        let nat = asked(&facts("one", &["192.168.0.1"])).unwrap_err();
        assert!(nat.contains("no interface") && nat.contains("192.168.0.1"), "{nat}");
        let twin = asked(&facts("two", &["10.0.0.2", "10.9.0.1"])).unwrap_err();
        assert!(twin.contains("10.9.0.1 is 10.0.0.2 of cluster `c`"), "{twin}");
        let mut foreign = facts("three", &["10.9.0.1"]);
        foreign.clusters = vec!["other".to_owned()];
        let foreign = asked(&foreign).unwrap_err();
        assert!(foreign.contains("no files of cluster `c`"), "{foreign}");
    }
}
