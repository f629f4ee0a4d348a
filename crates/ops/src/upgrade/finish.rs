//! What follows a run of an upgrade: hosts on which it failed are rolled back (`--on-failure
//! rollback`), and spare hosts take over from those that they replace (`--strategy replace`).
//!
//! A spare joins before the host that it replaces leaves, one pair after the other, so that neither
//! quorum nor capacity ever drops.

use std::time::Duration;

use crate::members::{add_new_hosts, converge};
use crate::operation::Operation;
use crate::session::Session;
use crate::upgrade::choices::GivenChoices;
use crate::upgrade::rollback::{RollbackRequest, Scope, close_untouched, roll_back};
use crate::upgrade::windows;
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::host::address::{self, Address, SSH_PORT};
use imgctl_journal::event::Outcome;
use imgctl_kube::succession;
use imgctl_model::clusterfile::{Clusterfile, Ssh};
use imgctl_model::{context::MASTER, desired::HostFlags};
use imgctl_runtime::nodes;
use imgctl_upgrade::document::{Choices, Direction, Document, OnFailure};
use imgctl_upgrade::upgrade_store::{UpgradeStatus, UpgradeStore};
use imgctl_workflow::pipeline::nodes::Wait;

/// Time for the Nodes of spare hosts to become Ready, where there is a network plugin.
const WAIT: Wait = Wait::WhereNetwork(Duration::from_secs(300));

/// Completes an upgrade, whose run ended with `went` (`true`: all of its hosts are at the target),
/// after all windows that it waits for. Returns whether it is complete. The cluster's lock must be free.
pub(crate) fn finish(
    went: Result<bool>,
    cluster: &str,
    choices: &Choices,
    options: &RunOptions,
    session: &Session<'_>,
) -> Result<bool> {
    let is_done = match windows::go_on(went, cluster, options, session) {
        Err(failure) if failure.kind() != Kind::Interrupted => {
            let failure = take_back(failure, cluster, options, session);
            return Err(close_settings(failure, cluster, options, session));
        }
        went => went?,
    };
    if !is_done {
        return Ok(false);
    }
    for pair in pairs(choices)? {
        // A control plane joins in a separate run: in a shared run, the old one would leave first.
        for part in [Part::Join, Part::Leave] {
            step(&pair, part, cluster, options, session)
                .map_err(|error| error.hint("run the same `imgctl upgrade` again to continue"))?;
        }
    }
    Ok(true)
}

/// Rolls back the hosts on which an upgrade failed, each as with `imgctl rollback --scope
/// node=HOST`, if the operator chose this. Returns `failure` with what was done.
fn take_back(failure: Error, cluster: &str, options: &RunOptions, session: &Session<'_>) -> Error {
    let (open, hosts) = match failed(cluster, session) {
        Ok(Some(found)) => found,
        Ok(None) => return failure,
        Err(error) => {
            let why = error.chain().join(": ");
            return failure.hint(format!("nothing was rolled back: {why}"));
        }
    };
    // The operator has already agreed to roll back failed hosts.
    for host in hosts {
        let before = if open.is_reconfiguration() {
            "its former settings"
        } else {
            open.from.version.as_str()
        };
        session.front.note(&format!("{host} failed: rolling it back to {before}"));
        let request = RollbackRequest {
            cluster: cluster.to_owned(),
            scope: Some(Scope::Node(host.clone())),
            id: None,
            preview: false,
            from_snapshot: None,
            choices: GivenChoices::of_failed(&open.choices),
            options: options.of_another_run(),
        };
        if let Err(error) = roll_back(&request, true, session) {
            let why = error.chain().join(": ");
            return failure.hint(format!("cannot roll back {host}: {why}"));
        }
        if open.is_reconfiguration() {
            session.front.note(&format!("{host} has its former settings"));
            continue;
        }
        session.front.note(&format!(
            "{host} is back at {before}; fix what failed, then run `imgctl upgrade resume`"
        ));
    }
    failure
}

/// Closes a failed change of settings if no host has them, so that corrected ones can be applied.
/// Returns `failure` with what was done.
fn close_settings(
    failure: Error,
    cluster: &str,
    options: &RunOptions,
    session: &Session<'_>,
) -> Error {
    let is_open = session
        .state(cluster)
        .and_then(|state| UpgradeStore::of(state.files()).open())
        .is_ok_and(|open| {
            let is_it = |open: &Document| open.is_reconfiguration();
            open.as_ref().is_some_and(|open| is_it(open) && open.direction == Direction::Forward)
        });
    if !is_open {
        return failure;
    }
    match close_untouched(cluster, options, session) {
        Ok(true) => {
            let causes = failure.chain();
            let logs = failure.hints().into_iter().filter(|hint| hint.starts_with("log:"));
            let logs: Vec<String> = logs.map(str::to_owned).collect();
            let error = Error::new(failure.kind(), "the settings are as they were on every host")
                .lines(causes.iter().map(|cause| format!("  because: {cause}")));
            let error = logs.into_iter().fold(error, Error::hint);
            error.hint("correct the Clusterfile, then run `imgctl apply` again")
        }
        Ok(false) => failure
            .hint("hosts have the new settings: `imgctl rollback` takes them back everywhere"),
        Err(error) => failure.hint(format!("it stays open: {}", error.chain().join(": "))),
    }
}

/// Returns the failed upgrade and the hosts on which it failed; `None` if there is nothing to roll
/// back.
fn failed(cluster: &str, session: &Session<'_>) -> Result<Option<(Document, Vec<String>)>> {
    let state = session.state(cluster)?;
    let upgrades = UpgradeStore::of(state.files());
    let Some(open) = upgrades.open()? else {
        return Ok(None);
    };
    if open.choices.on_failure != OnFailure::Rollback
        || open.direction != Direction::Forward
        || upgrades.status(&open.id)? != Some(UpgradeStatus::Failed)
    {
        return Ok(None);
    }
    let Some(past) = upgrades.journal(state.directory(), &open)? else {
        return Ok(None);
    };
    let is_failed = |step: &&String| {
        let of_host = ["control-plane", "canary", "workers"];
        of_host.iter().any(|phase| step.starts_with(phase))
            && past.steps.get(*step).and_then(|step| step.outcome) == Some(Outcome::Failed)
    };
    let mut hosts: Vec<String> = Vec::new();
    for step in past.order.iter().filter(is_failed) {
        if let Some(host) = step.split('/').nth(1)
            && !hosts.iter().any(|known| known == host)
            && past.order.iter().any(|other| other.ends_with(&format!("/{host}/switch")))
        {
            hosts.push(host.to_owned());
        }
    }
    Ok((!hosts.is_empty()).then_some((open, hosts)))
}

/// A spare host and the host that it replaces, as given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    spare: String,
    old: String,
}

/// Parses the pairs of `--spare NEW=OLD`.
pub(crate) fn pairs(choices: &Choices) -> Result<Vec<Pair>> {
    let read = |text: &String| match text.split_once('=') {
        Some((spare, old)) if !spare.is_empty() && !old.is_empty() => {
            Ok(Pair { spare: spare.to_owned(), old: old.to_owned() })
        }
        _ => Err(Error::usage(format!("--spare {text} does not name the host to replace"))
            .hint("write --spare NEW=OLD: the spare, and the host of the cluster to replace")),
    };
    choices.spares.iter().map(read).collect()
}

/// Excludes hosts that are replaced from the plan; hosts that have already left are not in it.
pub(crate) fn leave_out(document: &mut Document, pairs: &[Pair]) -> Result<()> {
    for pair in pairs {
        let is_old = |id: &String| *id == pair.old || id.split(':').next() == Some(&pair.old);
        let Some(id) = document.hosts.keys().find(|id| is_old(id)).cloned() else {
            continue;
        };
        if document.control_planes.first() == Some(&id) {
            return Err(Error::usage(format!(
                "{id} is the first control plane, which cannot be replaced"
            ))
            .hint("omit it from --spare: it is upgraded itself"));
        }
        if let Some(host) = document.hosts.get_mut(&id) {
            host.skipped = Some(format!("{} takes over", pair.spare));
        }
        document.control_planes.retain(|other| *other != id);
        document.canary.retain(|other| *other != id);
        for batch in &mut document.batches {
            batch.retain(|other| *other != id);
        }
    }
    document.batches.retain(|batch| !batch.is_empty());
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Join,
    Leave,
}

fn step(
    pair: &Pair,
    part: Part,
    cluster: &str,
    options: &RunOptions,
    session: &Session<'_>,
) -> Result<()> {
    let operation = match part {
        Part::Join => Operation::AddSpare,
        Part::Leave => Operation::Delete,
    };
    let work = Work::begin_asking_hosts(operation, cluster, options, session)?;
    let mut desired = work.existing()?.clone();
    let Some((old, is_master)) = member(&desired, &pair.old)? else {
        return Ok(());
    };
    match part {
        Part::Join => {
            if member(&desired, &pair.spare)?.is_some() {
                return Ok(());
            }
            let list = Some(pair.spare.clone());
            let flags = HostFlags {
                masters: list.clone().filter(|_| is_master),
                nodes: list.filter(|_| !is_master),
                ssh: Ssh::of_login(&session.ssh.login, session.ssh.port),
                ..HostFlags::default()
            };
            add_new_hosts(&mut desired, &flags, session)?;
        }
        Part::Leave => {
            take_over(&work, &desired, pair)?;
            desired.cluster.remove_hosts(&[old])?;
        }
    }
    converge(&work, desired, WAIT, false)
}

/// Gives the Node of the spare what people and controllers have given the Node that it replaces.
fn take_over(work: &Work<'_>, cluster: &Clusterfile, pair: &Pair) -> Result<()> {
    let prepared = work.prepare(cluster.clone())?;
    let name = |text: &str| -> Result<String> {
        let found = address::parse_list(text, SSH_PORT)?.into_iter().next();
        Ok(found.map_or_else(|| text.to_owned(), |address| address.name))
    };
    let (old, spare) = (name(&pair.old)?, name(&pair.spare)?);
    let taken = work.with_execution(&prepared, false, |execution| {
        if !execution.runtime.has_api() {
            return Ok(None);
        }
        let api = nodes::api(&prepared.context, &*execution.pool)?;
        succession::take_over(&*api, &old, &spare)
    })?;
    if let Some((old, spare)) = taken {
        let what = "labels, annotations, taints and provider's ID";
        work.session
            .front
            .note(&format!("Node {spare} has the {what} of Node {old} that it lacked"));
    }
    Ok(())
}

/// Returns the host of the cluster named `name`, and whether it is a control plane.
fn member(cluster: &Clusterfile, name: &str) -> Result<Option<(Address, bool)>> {
    let wanted = address::parse_list(name, SSH_PORT)?;
    for (address, group) in cluster.cluster.one_by_one()? {
        if wanted.iter().any(|wanted| wanted.name == address.name) {
            let is_master = group.roles.iter().any(|role| role == MASTER);
            return Ok(Some((address, is_master)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_say_whom_they_replace() {
        let of = |spares: &[&str]| {
            pairs(&Choices {
                spares: spares.iter().map(|spare| (*spare).to_owned()).collect(),
                ..Choices::default()
            })
        };
        let pair = &of(&["10.0.0.9=10.0.0.2"]).unwrap()[0];
        assert_eq!((&*pair.spare, &*pair.old), ("10.0.0.9", "10.0.0.2"));
        for wrong in ["10.0.0.9", "=10.0.0.2", "10.0.0.9="] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
