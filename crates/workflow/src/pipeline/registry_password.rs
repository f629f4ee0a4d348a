//! Plans another password for the embedded registry: both are valid until every host has the new one.

use std::sync::Arc;

use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate, Then};
use crate::pipeline::step::{Order, Phase, Plan, Step};
use crate::pipeline::{look, ownership, record};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};
use imgctl_model::registry_password::PasswordChange;
use imgctl_runtime::Action;
use imgctl_runtime::registry::hosts_toml::Login;
use imgctl_runtime::registry::{passwords, passwords::Logins};

struct Making<'a> {
    execution: &'a ExecutionContext<'a>,
    context: &'a ClusterContext,
    access: &'a RegistryAccess,
}

impl Making<'_> {
    /// Returns the phase in which registry hosts begin to accept `users`. It is serial, so that the other
    /// hosts serve while one restarts.
    fn accept(&self, name: &str, users: &[&Login]) -> Result<Phase> {
        let phase = Phase::new(name, Order::Serial);
        phase.over(self.context.registry_hosts(), |host| {
            let steps = (self.execution.registry)(self.context, host)?;
            let start = steps.into_iter().find(|action| action.name == "registry-start");
            let users = users.iter().map(|&login| login.clone()).collect();
            Ok(vec![passwords::accept(name, self.context, host, self.access, users, start)])
        })
    }

    fn go_over(&self, name: &str, from: &Login, to: &Login) -> Result<Phase> {
        // k3s reads its file only when it starts, and control planes must not start together.
        let order = match self.execution.runtime.name() {
            "k3s" => Order::Serial,
            _ => Order::Parallel,
        };
        Phase::new(name, order).over(&self.context.hosts, |host: &Host| -> Result<Vec<Action>> {
            Ok(passwords::go_over(name, self.context, host, self.access, (from, to)))
        })
    }
}

/// Queries the hosts and returns the plan. Changes nothing on them. `context` has the new password,
/// `former` the present one.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    former: &RegistryAccess,
    change: &PasswordChange,
) -> Result<Planned> {
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(look::lost(host, error)?.hint(
                "all hosts get the new password: bring the host back, or remove it with `imgctl delete`",
            ));
        }
    }
    ownership::refuse_foreign(context, &looks)?;
    let context = Arc::new(look::informed(context, &looks));
    let access = context.registry.as_ref().ok_or_else(|| {
        Error::usage(format!("cluster {} has no registry of its own", context.name))
    })?;
    let logins = Logins::of(former, access);
    let Logins { former, between, new } = &logins;
    let mut files =
        execution.files.plan(&context, &context.hosts, &execution.pool, Then::Switch)?;
    // Hosts with another rootfs image keep their trees.
    let behind = std::mem::take(&mut files.leave_rootfs);
    if !behind.is_empty() {
        let mut others = context.hosts.clone();
        others.retain(|host| !behind.contains(&host.id()));
        files = execution.files.plan(&context, &others, &execution.pool, Then::Switch)?;
    }
    if let Some((host, error)) = files.failed.first() {
        return Err(Error::new(error.kind(), format!("{}: {error}", host.id())));
    }

    let mut plan = Plan::new("registry-passwd", &context.name, &change.id);
    plan.notes.push(
        "the former password is valid until every host has the new one; logins outside of the cluster's \
         hosts (imagePullSecrets, CI) have to be changed by whoever made them"
            .to_owned(),
    );
    let making = Making { execution, context: &context, access };
    let (state, begun) = (context.state.clone(), change.clone());
    let says = "store the new password on this machine until the change has ended";
    let begin = Step::local("password", says, "", move |_| begun.begin(&state));
    plan.push(Phase::local("prepare", vec![begin]));
    plan.push(making.accept("accept-both", &[former, between])?);
    plan.push(making.go_over("clients-next", former, between)?);
    plan.push(making.accept("accept-new", &[between, new])?);
    plan.push(files.phase("sync"));
    plan.push(making.go_over("clients-new", between, new)?);
    plan.push(making.accept("accept-last", &[new])?);
    let (state, kept) = (context.state.clone(), change.clone());
    let keep = Step::local("password", "store the new password as the cluster's", "", move |_| {
        kept.keep(&state)
    });
    let mark = record::mark(execution, PhaseUpdate::Success);
    plan.extend(record::phases(execution, &context, vec![keep, mark]));
    let state = context.state.clone();
    let says = "forget that the password was being changed";
    let end = Step::local("password", says, "", move |_| PasswordChange::end(&state));
    plan.push(Phase::local("end", vec![end]));
    Ok(Planned { behind, ..Planned::new(plan, Arc::clone(&context), execution) })
}
