//! Removes one application from a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::context::ClusterContext;
use crate::cluster::image::ImageKind;
use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate};
use crate::pipeline::image_commands;
use crate::pipeline::look;
use crate::pipeline::record;
use crate::pipeline::redact;
use crate::pipeline::step::{Lane, Order, Phase, Plan};
use imgctl_base::error::{Error, Result};

/// Plans the removal of `image` (as in `spec.image`). The keeper writes the Clusterfile without it.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    image: &str,
) -> Result<Planned> {
    let found = context.images.iter().find(|one| one.name == image);
    let Some(found) = found else {
        let known: Vec<&str> = context.images.iter().map(|one| one.name.as_str()).collect();
        return Err(Error::not_found(format!("cluster {} has no image {image}", context.name))
            .hint(format!("it has {}", known.join(", "))));
    };
    if found.kind != ImageKind::Application {
        return Err(Error::usage(format!(
            "{image} is not an application: its files are part of every host's tree"
        ))
        .hint("run an image that reverts it, or reset the cluster"));
    }
    let first = context
        .first()
        .ok_or_else(|| Error::usage(format!("cluster {} has no control plane", context.name)))?;
    let looks = look::look([first], &execution.pool, execution.parallel);
    if let Some(Err(error)) = looks.get(&first.id()) {
        return Err(Error::new(error.kind(), format!("{} does not answer: {error}", first.id())));
    }
    let context = Arc::new(look::informed(context, &looks));
    let mut plan = Plan::new("uninstall", &context.name, image);
    plan.destroys = true;
    if let (Some(first), Some(found)) =
        (context.first(), context.images.iter().find(|one| one.name == image))
    {
        plan.push(
            Phase::new("uninstall", Order::Serial)
                .lane(Lane::on(first, image_commands::uninstall(&context, found, first))),
        );
    }
    let mark = record::mark(
        "record",
        "write the Clusterfile without it",
        &execution.state_store,
        PhaseUpdate::Success,
    );
    for phase in record::phases(execution, &context, vec![mark]) {
        plan.push(phase);
    }
    plan.redact(&redact::of_cluster(&context));
    Ok(Planned { plan, context, pool: Arc::clone(&execution.pool), behind: BTreeSet::new() })
}
