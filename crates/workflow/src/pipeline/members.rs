//! Hosts that join and leave a cluster.

use std::{collections::BTreeSet, sync::Arc};

use crate::pipeline::step::{Lane, OnFailure, Order, Phase};
use crate::pipeline::{bootstrap, execution_context::ExecutionContext};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::{Agent, protocol::OutputLine};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::{
    Action,
    action::HostPool,
    nodes::{LOST, is_lost},
};

/// Returns the phase in which the first control plane creates the cluster.
pub fn init(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Phase> {
    Phase::new("init", Order::Serial).over(context.first(), |first| {
        let actions = execution.runtime.init(context, first)?;
        with_health(execution, context, first, actions)
    })
}

/// Returns the phases in which the other hosts join: control planes one by one, then workers.
pub fn join(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    new: &[&Host],
) -> Result<Vec<Phase>> {
    let runtime = execution.runtime;
    let order = if runtime.workers_in_parallel() { Order::Parallel } else { Order::Serial };
    let (masters, workers): (Vec<&Host>, Vec<&Host>) =
        new.iter().partition(|host| host.is_control_plane());
    let masters = Phase::new("join", Order::Serial).over(masters, |host| {
        with_health(execution, context, host, runtime.join_control_plane(context, host)?)
    });
    let workers = Phase::new("join-workers", order).over(workers, |host| {
        with_health(execution, context, host, runtime.join_worker(context, host)?)
    });
    Ok(vec![masters?, workers?])
}

fn with_health(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    host: &Host,
    mut actions: Vec<Action>,
) -> Result<Vec<Action>> {
    actions.extend(execution.runtime.health(context, host)?);
    Ok(actions)
}

/// Returns the phase that updates the remaining hosts after others have joined or left.
pub fn settle(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Phase> {
    let settle = |host| execution.runtime.settle(context, host);
    Phase::new("settle", Order::Parallel).over(&context.hosts, settle)
}

/// Returns the phases in which hosts leave: they are taken out of the cluster first, then cleaned.
/// `lost` hosts do not answer, so they are only taken out.
pub fn leave(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    leaving: &[&Host],
    lost: &BTreeSet<String>,
    name: &str,
) -> Result<[Phase; 2]> {
    let mut out = Phase::new(name, Order::Serial);
    // A failed cleanup must not prevent the cleanup of other hosts.
    let mut clean =
        Phase::new(&format!("{name}-clean"), Order::Parallel).on_failure(OnFailure::FinishPhase);
    for host in leaving {
        let is_lost = lost.contains(&host.id());
        let actions = execution.runtime.leave(context, host, &execution.draining)?;
        let actions =
            actions.into_iter().map(|action| if is_lost { forgiving(action) } else { action });
        out = out.lane(Lane::on(host, actions));
        if !is_lost {
            clean = clean.lane(Lane::on(host, bootstrap::clean(execution, context, host)?));
        }
    }
    Ok([out, clean])
}

/// Returns the action for an unreachable host: work that needs the host itself is skipped.
fn forgiving(action: Action) -> Action {
    let does = Arc::clone(&action.does);
    let mut says = action.says.clone();
    says.push("(the host is unreachable: only what other hosts can do)".to_owned());
    Action {
        says,
        does: Arc::new(move |site| match does(site) {
            Err(error) if is_lost(&error) => {
                (site.output)(OutputLine { text: format!("skipped: {error}"), error_stream: true });
                Ok(())
            }
            done => done,
        }),
        ..action
    }
}

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

impl Agent for Lost {
    fn host(&self) -> &str {
        &self.0
    }

    fn inner(&self) -> Result<&dyn Agent> {
        Err(Error::network(format!("{} {LOST}", self.0)))
    }
}
