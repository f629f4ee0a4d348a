//! Hosts that join and leave a cluster.

use std::{collections::BTreeSet, sync::Arc};

use crate::cluster::context::{ClusterContext, Host};
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Step};
use crate::pipeline::{bootstrap, execution_context::ExecutionContext};
use crate::runtime::{Action, action::HostPool};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_host::agent::protocol::{
    CheckedOut, Checkout, Facts, FileToWrite, HostsBlock, Inventory, InventoryQuestion, Outcome,
    OutputLine, PeerSource, Run,
};
use imgctl_host::agent::tunnel::Tunnel;
use imgctl_host::agent::{Agent, BlobOpener};

/// Returns the phase in which the first control plane creates the cluster.
pub fn init(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Phase> {
    let mut phase = Phase::new("init", Order::Serial);
    if let Some(first) = context.first() {
        let mut actions = execution.runtime.init(context, first)?;
        actions.extend(execution.runtime.health(context, first)?);
        phase = phase.lane(Lane::on(first, actions));
    }
    Ok(phase)
}

/// Returns the phases in which the other hosts join: control planes one by one, then workers.
pub fn join(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    new: &[&Host],
) -> Result<Vec<Phase>> {
    let mut masters = Phase::new("join", Order::Serial);
    let order =
        if execution.runtime.workers_in_parallel() { Order::Parallel } else { Order::Serial };
    let mut workers = Phase::new("join-workers", order);
    for host in new.iter().filter(|host| host.is_control_plane()) {
        let mut actions = execution.runtime.join_control_plane(context, host)?;
        actions.extend(execution.runtime.health(context, host)?);
        masters = masters.lane(Lane::on(host, actions));
    }
    for host in new.iter().filter(|host| !host.is_control_plane()) {
        let mut actions = execution.runtime.join_worker(context, host)?;
        actions.extend(execution.runtime.health(context, host)?);
        workers = workers.lane(Lane::on(host, actions));
    }
    Ok(vec![masters, workers])
}

/// Returns the phase that updates the remaining hosts after others have joined or left.
pub fn settle(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Phase> {
    let mut phase = Phase::new("settle", Order::Parallel);
    for host in &context.hosts {
        phase = phase.lane(Lane::on(host, execution.runtime.settle(context, host)?));
    }
    Ok(phase)
}

/// Returns the phases in which hosts leave: they are taken out of the cluster first, then cleaned.
/// `lost` hosts do not answer, so they are only taken out.
pub fn leave(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    leaving: &[&Host],
    lost: &BTreeSet<String>,
    name: &str,
) -> Result<Vec<Phase>> {
    let mut out = Phase::new(name, Order::Serial);
    // A failed cleanup must not prevent the cleanup of other hosts.
    let mut clean =
        Phase::new(&format!("{name}-clean"), Order::Parallel).on_failure(OnFailure::FinishPhase);
    for host in leaving {
        let is_lost = lost.contains(&host.id());
        let actions = execution.runtime.leave(context, host)?;
        let actions =
            actions.into_iter().map(|action| if is_lost { forgiving(action) } else { action });
        out = out.lane(Lane::on(host, actions));
        if !is_lost {
            clean = clean.lane(Lane::on(host, bootstrap::clean(execution, context, host)?));
        }
    }
    Ok(vec![out, clean])
}

/// Returns the action for an unreachable host: work that needs the host itself is skipped.
fn forgiving(action: Action) -> Action {
    let does = Arc::clone(&action.does);
    let mut says = action.says.clone();
    says.push("(the host is unreachable: only what other hosts can do)".to_owned());
    Action {
        says,
        does: Arc::new(move |site| match does(site) {
            Err(error) if error.kind() == Kind::Network && error.to_string().contains(GONE) => {
                (site.output)(OutputLine { text: format!("skipped: {error}"), error_stream: true });
                Ok(())
            }
            done => done,
        }),
        ..action
    }
}

/// Returns the steps of a reset on one host.
pub(crate) fn reset_lane(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
) -> Result<Lane> {
    let steps: Vec<Step> =
        bootstrap::clean(execution, context, host)?.into_iter().map(Step::from).collect();
    Ok(Lane::on(host, steps))
}

const GONE: &str = "is treated as lost";

/// Host pool in which some hosts are given up as lost.
pub(crate) struct WithLosses {
    pub pool: Arc<dyn HostPool + Send>,
    pub lost: BTreeSet<String>,
}

impl HostPool for WithLosses {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        if self.lost.contains(&host.id()) {
            Ok(Arc::new(Lost(host.id())))
        } else {
            self.pool.agent(host)
        }
    }
}

/// Agent of a lost host: every request to it fails.
struct Lost(String);

impl Lost {
    fn gone<T>(&self) -> Result<T> {
        Err(Error::new(Kind::Network, format!("{} {GONE}", self.0)))
    }
}

impl Agent for Lost {
    fn host(&self) -> &str {
        &self.0
    }

    fn facts(&self) -> Result<Facts> {
        self.gone()
    }

    fn inventory(&self, _question: &InventoryQuestion) -> Result<Inventory> {
        self.gone()
    }

    fn send_blob(
        &self,
        _blob: &Descriptor,
        _open: &BlobOpener<'_>,
        _sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.gone()
    }

    fn offer(&self) -> Result<PeerSource> {
        self.gone()
    }

    fn withdraw(&self) -> Result<()> {
        self.gone()
    }

    fn fetch(
        &self,
        _from: &PeerSource,
        _blobs: &[Descriptor],
        _fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        self.gone()
    }

    fn checkout(&self, _request: &Checkout, _done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        self.gone()
    }

    fn run(&self, _request: &Run, _output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        self.gone()
    }

    fn cancel(&self, _directory: &str, _key: &str) -> Result<()> {
        self.gone()
    }

    fn write_file(&self, _file: &FileToWrite) -> Result<bool> {
        self.gone()
    }

    fn read_file(&self, _path: &str, _limit: u64) -> Result<Option<Vec<u8>>> {
        self.gone()
    }

    fn remove(&self, _paths: &[String]) -> Result<Vec<String>> {
        self.gone()
    }

    fn set_hosts(&self, _block: &HostsBlock) -> Result<bool> {
        self.gone()
    }

    fn tunnel(&self, _address: &str, _port: u16) -> Result<Tunnel> {
        self.gone()
    }
}
