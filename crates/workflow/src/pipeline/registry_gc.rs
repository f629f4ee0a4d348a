//! Plans the garbage collection of the embedded registry: one registry host after the other, so that
//! the others serve meanwhile.

use std::sync::Arc;

use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::step::{Order, Phase, Plan, Step};
use crate::pipeline::{look, ownership};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_host::agent::tree::registry_gc::{CollectRequest, Collected};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Action;
use imgctl_runtime::registry::collect;

/// What stays.
pub struct Kept<'a> {
    /// Returns the layers of the images to keep, for hosts of an OCI architecture.
    pub layers: &'a dyn Fn(&str) -> Result<Vec<Digest>>,
    /// Says which images these are.
    pub says: String,
    /// Content younger than this stays, in seconds.
    pub grace_seconds: u64,
}

/// Queries the hosts and returns the plan. Changes nothing on them.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    kept: &Kept<'_>,
) -> Result<Planned> {
    if context.registry.is_none() {
        return Err(Error::usage(format!("cluster {} has no registry of its own", context.name)));
    }
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(look::lost(host, error)?
                .hint("imgctl must know the images of its containers: bring the host back"));
        }
    }
    ownership::refuse_foreign(context, &looks)?;
    let context = Arc::new(look::informed(context, &looks));
    let running = collect::running(&context, &*execution.pool, execution.parallel)?;
    let mut plan = Plan::new("registry-gc", &context.name, &kept.says);
    plan.notes.push(kept.says.clone());
    let mut phase = Phase::new("collect", Order::Serial);
    for host in context.registry_hosts() {
        let agent = execution.pool.agent(host)?;
        let architecture = agent.facts()?.architecture;
        let request = CollectRequest {
            root: context.paths.root(),
            keep: (kept.layers)(&architecture)?,
            running: running.clone(),
            grace_seconds: kept.grace_seconds,
            dry_run: true,
        };
        let found = collect::collect(&*agent, &request)?;
        if found == Collected::default() {
            plan.notes.push(format!("{}: nothing to remove", host.id()));
            continue;
        }
        let actions = actions(execution, &context, host, request, &found)?;
        let steps = actions.into_iter().map(|action| Step::from(action).always());
        phase = phase.lane(crate::pipeline::step::Lane::on(host, steps));
    }
    plan.push(phase);
    plan.destroys = !plan.phases.is_empty();
    Ok(Planned::new(plan, Arc::clone(&context), execution))
}

fn actions(
    execution: &ExecutionContext<'_>,
    context: &Arc<ClusterContext>,
    host: &Host,
    request: CollectRequest,
    found: &Collected,
) -> Result<Vec<Action>> {
    let mut says: Vec<String> =
        found.manifests.iter().map(|manifest| format!("remove {manifest}")).collect();
    says.push(format!("{} blobs, {} MB", found.blobs, found.bytes / 1_000_000));
    let (parallel, whole) = (execution.parallel, Arc::clone(context));
    let collect = Action::new("registry-collect", says.join("\n"), move |site| {
        // Pods may have started meanwhile.
        let running = collect::running(&whole, site.pool, parallel)?;
        let request = CollectRequest { running, dry_run: false, ..request.clone() };
        let gone = collect::collect(site.agent, &request)?;
        site.say(&format!(
            "{} images, {} blobs, {} MB removed",
            gone.manifests.len(),
            gone.blobs,
            gone.bytes / 1_000_000
        ));
        Ok(())
    });
    // docker-distribution remembers blobs that are gone, and would tell a push that they are there.
    let again = |action: &Action| {
        ["registry-users", "registry-start", "registry-answers"].contains(&&*action.name)
    };
    let mut actions = vec![collect];
    actions.extend((execution.registry)(context, host)?.into_iter().filter(again));
    Ok(actions)
}
