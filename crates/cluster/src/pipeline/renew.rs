//! Renews the certificates of a running cluster on its control planes, one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::context::ClusterContext;
use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::look;
use crate::pipeline::step::{Lane, Order, Phase, Plan, Step};
use crate::runtime::kubeadm::Kubeadm;
use crate::runtime::kubeadm::renew::{Wanted, remember};
use imgctl_base::error::Result;

/// Plans new names for the API's certificate and the certificates to renew. Either may be empty.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    kubeadm: &Kubeadm<'_>,
    names: &[String],
    renew: &[String],
) -> Result<Planned> {
    let looks = look::look(context.control_planes(), &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(imgctl_base::error::Error::new(
                error.kind(),
                format!("{host} does not answer: {error}"),
            ));
        }
    }
    let context = Arc::new(look::informed(context, &looks));
    let intent = format!("names {} renew {}", names.join(","), renew.join(","));
    let mut plan = Plan::new("cert", &context.name, &intent);
    if !names.is_empty() {
        let (kept, list) = (Arc::clone(&context), names.to_vec());
        let step = Step::local(
            "alt-names",
            "record the names for future control planes",
            &names.join(","),
            move |_| remember(&kept, &list),
        );
        plan.push(Phase::new("prepare", Order::Serial).lane(Lane::controller(vec![step])));
    }
    let mut phase = Phase::new("certificates", Order::Serial);
    for host in context.control_planes() {
        let mut actions = Vec::new();
        if !names.is_empty() {
            actions.extend(kubeadm.add_names(&context, host, names)?);
        }
        for what in renew {
            actions.extend(kubeadm.renew(&context, host, &Wanted::parse(what)?)?);
        }
        phase = phase.lane(Lane::on(host, actions));
    }
    plan.push(phase);
    Ok(Planned { plan, context, pool: Arc::clone(&execution.pool), behind: BTreeSet::new() })
}
