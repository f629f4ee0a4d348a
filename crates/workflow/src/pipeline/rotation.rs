//! Plans the rotation of authorities: hosts trust the former and the new one, get certificates of the new
//! one, trust it alone; one control plane after the other.

use std::sync::Arc;

use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate};
use crate::pipeline::record;
use crate::pipeline::step::{Order, Phase, Plan, Step};
use crate::pipeline::{look, ownership};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Action;
use imgctl_runtime::certificates::{
    rotation,
    rotation::{Signs, Trust},
};
use imgctl_runtime::rotation::{Rotator, Which};

/// What is to be rotated, and how far.
#[derive(Clone, Debug)]
pub struct Request {
    /// Empty: all authorities of the cluster.
    pub which: Vec<Which>,
    /// Go back to the former authorities.
    pub undo: bool,
    /// Stop before the former authorities are dropped.
    pub keep_former: bool,
    /// Pods keep running, also those that do not know the new authorities.
    pub keep_pods: bool,
}

struct Making<'a> {
    rotator: &'a dyn Rotator,
    context: &'a ClusterContext,
    which: &'a [Which],
    /// Whether workers may be changed at the same time.
    workers: Order,
}

impl Making<'_> {
    /// Adds a phase over control planes, one after the other, and one over workers.
    fn over(
        &self,
        plan: &mut Plan,
        name: &str,
        actions: impl Fn(&Host) -> Result<Vec<Action>>,
    ) -> Result<()> {
        let with_gate = |host: &Host| -> Result<Vec<Action>> {
            let mut all = actions(host)?;
            if !all.is_empty() {
                all.extend(self.rotator.gate(self.context, host)?);
            }
            Ok(all)
        };
        let masters = self.context.control_planes();
        plan.push(Phase::new(name, Order::Serial).over(masters, with_gate)?);
        let workers = self.context.workers();
        plan.push(Phase::new(&format!("{name}-workers"), self.workers).over(workers, with_gate)?);
        Ok(())
    }

    fn trust(&self, plan: &mut Plan, name: &str, trust: Trust) -> Result<()> {
        self.over(plan, name, |host| self.rotator.trust(self.context, host, self.which, trust))
    }

    fn sign(&self, plan: &mut Plan, name: &str, signs: Signs) -> Result<()> {
        self.over(plan, name, |host| self.rotator.sign(self.context, host, self.which, signs))
    }
}

/// Queries the hosts and returns the plan. Changes nothing on them.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    request: &Request,
) -> Result<Planned> {
    let rotator = execution.runtime.rotator()?;
    let mut which = request.which.clone();
    let known = rotator.authorities(context);
    if which.is_empty() {
        which.clone_from(&known);
    }
    which.sort_unstable();
    which.dedup();
    if let Some(other) = which.iter().find(|one| !known.contains(one)) {
        return Err(Error::usage(format!("this cluster has no authority `{}`", other.name())));
    }
    if request.undo {
        refuse_undo(context)?;
    }
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(look::lost(host, error)?
                .hint("all hosts get the new authority: bring the host back, or remove it"));
        }
    }
    ownership::refuse_foreign(context, &looks)?;
    let context = Arc::new(look::informed(context, &looks));
    let first = context.first().ok_or_else(|| Error::usage("there is no control plane"))?;
    let workers =
        if execution.runtime.workers_in_parallel() { Order::Parallel } else { Order::Serial };
    let making = Making { rotator, context: &context, which: &which, workers };
    let names: Vec<&str> = which.iter().map(|one| one.name()).collect();
    let direction = if request.undo { "back" } else { "forth" };
    let mut plan =
        Plan::new("cert", &context.name, &format!("rotate {direction} {}", names.join(",")));
    plan.destroys = request.undo;
    let names = names.join(", ");
    if request.undo {
        plan.notes.push(format!("the former authorities stay: {names}"));
        making.sign(&mut plan, "sign-back", Signs::Former)?;
        making.trust(&mut plan, "trust-back", Trust::Former)?;
        plan.push(Phase::on("announce", first, rotator.announce(&which, Trust::Former, false)));
        plan.push(Phase::on("end", first, [rotator.end(&which, Signs::Former)]));
    } else {
        plan.notes.push(format!(
            "new authorities: {names}. Until the phase `drop`, `imgctl cert --rotate-ca --undo` goes back; \
             whoever has a copy of a kubeconfig or of an authority needs the new one before it"
        ));
        if execution.runtime.has_api() {
            plan.notes.push(if request.keep_pods {
                "Pods that started before do not know the new authority: restart them yourself \
                         between the phases `announce` and `sign`, or they lose the API"
                    .to_owned()
            } else {
                "Pods of Deployments, DaemonSets and StatefulSets are replaced, as `kubectl \
                          rollout restart` does it; Pods that nobody replaces lose the API"
                    .to_owned()
            });
        }
        plan.push(Phase::on("begin", first, [rotator.begin(&which)]));
        making.trust(&mut plan, "trust", Trust::Both)?;
        let restart = !request.keep_pods;
        plan.push(Phase::on("announce", first, rotator.announce(&which, Trust::Both, restart)));
        making.sign(&mut plan, "sign", Signs::New)?;
        if request.keep_former {
            plan.notes.push(
                "the former authorities stay trusted: the same command without \
                             --keep-old-ca drops them"
                    .to_owned(),
            );
            plan.is_partial = true;
            return Ok(Planned::new(plan, Arc::clone(&context), execution));
        }
        let state = context.state.clone();
        let says = "from here on there is no way back to the former authorities";
        let mark = Step::local("mark", says, "", move |_| rotation::begin_dropping(&state));
        plan.push(Phase::local("drop-begin", vec![mark]));
        making.trust(&mut plan, "drop", Trust::New)?;
        plan.push(Phase::on("announce-new", first, rotator.announce(&which, Trust::New, false)));
        plan.push(Phase::on("end", first, [rotator.end(&which, Signs::New)]));
    }
    let mark = record::mark(execution, PhaseUpdate::Success);
    plan.extend(record::phases(execution, &context, vec![mark]));
    Ok(Planned::new(plan, Arc::clone(&context), execution))
}

fn refuse_undo(context: &ClusterContext) -> Result<()> {
    if !rotation::is_open(&context.state) {
        return Err(Error::not_found("no authority is being rotated: there is nothing to undo"));
    }
    if rotation::is_dropping(&context.state) {
        return Err(Error::usage(
            "the former authorities are being dropped: hosts may trust only the new ones",
        )
        .hint("run `imgctl cert --rotate-ca` again to complete it"));
    }
    Ok(())
}
