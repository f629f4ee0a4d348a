//! Removes a whole cluster: workers in parallel, control planes one by one, the first one last.
//!
//! Also works on clusters that were never finished. Reports what is left behind and treats it as a
//! failure.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::context::ClusterContext;
use crate::cluster::host::Host;
use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate};
use crate::pipeline::look;
use crate::pipeline::members;
use crate::pipeline::record;
use crate::pipeline::redact;
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Plan, Step};
use imgctl_base::error::{Error, Result};

/// Queries the hosts and returns the plan.
pub fn plan(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Planned> {
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    let context = Arc::new(look::informed(context, &looks));
    let mut plan = Plan::new("reset", &context.name, "");
    plan.destroys = true;
    let order = |host: &&Host| !host.is_control_plane();
    let (workers, masters): (Vec<&Host>, Vec<&Host>) = context.hosts.iter().partition(order);
    let mut unreachable = Phase::new("lost", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut first = Phase::new("workers", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut last = Phase::new("control-planes", Order::Serial).on_failure(OnFailure::GoOn);
    let reversed: Vec<&Host> = masters.into_iter().rev().collect();
    for (host, is_worker) in workers
        .into_iter()
        .map(|host| (host, true))
        .chain(reversed.into_iter().map(|host| (host, false)))
    {
        if let Some(Err(error)) = looks.get(&host.id()) {
            let message = format!("{} does not answer: {error}", host.id());
            if execution.force {
                plan.notes.push(format!("{message}; it is not cleaned up"));
                continue;
            }
            unreachable = unreachable.lane(gone(host, error.kind(), message));
            continue;
        }
        let lane = members::reset_lane(execution, &context, host)?;
        if is_worker { first = first.lane(lane) } else { last = last.lane(lane) }
    }
    plan.push(first);
    plan.push(last);
    plan.push(unreachable);
    // Only after everything is removed; otherwise the next attempt still needs the Clusterfile.
    plan.push(Phase::new("record", Order::Serial).lane(Lane::controller(vec![record::mark(
        "record",
        "rename the Clusterfile to Clusterfile.<time>",
        &execution.state_store,
        PhaseUpdate::Gone,
    )])));
    plan.redact(&redact::of_cluster(&context));
    Ok(Planned { plan, context, pool: Arc::clone(&execution.pool), behind: BTreeSet::new() })
}

/// Reports a host that cannot be cleaned as a separate failure, after the others are clean.
fn gone(host: &Host, kind: imgctl_base::error::Kind, message: String) -> Lane {
    let step = Step::local("host", "it does not answer: this will fail", "", move |_| {
        Err(Error::new(kind, message.clone()).hint(
            "bring it back and run the same command again, or pass --force to leave it as it is",
        ))
    });
    Lane { host: Some(host.clone()), steps: vec![step.always()] }
}
