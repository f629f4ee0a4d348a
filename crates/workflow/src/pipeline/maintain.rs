//! Operations that keep a cluster's members or remove them all: reset, removal of an application,
//! renewed certificates.

use std::sync::Arc;

use crate::pipeline::change::{self, Planned};
use crate::pipeline::check::Refusal;
use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate};
use crate::pipeline::ownership::{self, Owner};
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Plan, Step, concluding};
use crate::pipeline::{bootstrap, image_commands, kept, look, record};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ImageKind;
use imgctl_runtime::kubeadm::Kubeadm;
use imgctl_runtime::kubeadm::renew::{Wanted, remember};

/// Plans the removal of a whole cluster, also of one that was never finished: workers in parallel,
/// control planes one by one, the first one last. What is left behind is a failure. By force, the cluster
/// is gone once no host that answers has its files, because no later run could remove more.
pub fn reset(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Planned> {
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    let context = Arc::new(look::informed(context, &looks));
    let mut plan = Plan::new(ownership::RESET, &context.name, "");
    plan.destroys = true;
    let mut unreachable = Phase::new("lost", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut refused = Vec::new();
    let mut others = Phase::new("foreign", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut without_files = kept::without_files(&context, &context.hosts, &looks)?;
    let mut bare = Phase::new("without-files", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut cleaned = Vec::new();
    let mut first = Phase::new("workers", Order::Parallel).on_failure(OnFailure::GoOn);
    let mut last = Phase::new("control-planes", Order::Serial).on_failure(OnFailure::GoOn);
    let workers = context.hosts.iter().filter(|host| !host.is_control_plane());
    let masters = context.hosts.iter().rev().filter(|host| host.is_control_plane());
    for host in workers.chain(masters) {
        if let Some(Err(error)) = looks.get(&host.id()) {
            let told = match look::lost(&host.id(), error) {
                Ok(away) => away.hint(BRING_BACK),
                // Its own hints come first.
                Err(refused) => refused.hint(FORCE),
            };
            let message = told.message().to_owned();
            if execution.force {
                plan.notes.push(format!("{message}; it is not cleaned up"));
                continue;
            }
            unreachable = unreachable.lane(gone(host, &told));
            refused.push(told);
            continue;
        }
        if let Some(Ok(facts)) = looks.get(&host.id())
            && let Owner::Other(other) = ownership::owner(&context, facts)
        {
            let error = ownership::not_cleaned(&context, host, &other);
            if execution.force {
                plan.notes.push(error.message().to_owned());
                continue;
            }
            let error = error.hint(FORGET);
            others =
                others.lane(left(host, "it belongs to another cluster: this will fail", &error));
            refused.push(error);
            continue;
        }
        match without_files.remove(&host.id()) {
            Some(error) if execution.force => plan.notes.push(error.message().to_owned()),
            Some(error) => {
                let error = error.hint(BARE);
                bare = bare.lane(left(host, "it has lost its files: this will fail", &error));
                refused.push(error);
                continue;
            }
            None => {}
        }
        let mut steps = concluding(bootstrap::clean(execution, &context, host)?);
        if let Some(files) = steps.last_mut().filter(|_| execution.force) {
            // Hosts lose their files also if something else cannot be removed.
            files.concludes = false;
        }
        let lane = Lane::on(host, steps);
        cleaned.push(host.clone());
        if host.is_control_plane() { last = last.lane(lane) } else { first = first.lane(lane) }
    }
    plan.push(first);
    plan.push(last);
    plan.push(unreachable);
    plan.push(others);
    plan.push(bare);
    // Only after everything is removed; otherwise the next attempt still needs the Clusterfile.
    let mut mark = record::mark(execution, PhaseUpdate::Gone);
    let mut end = Phase::new("record", Order::Serial);
    if execution.force {
        (mark.closes, mark.concludes) = (Some(GONE), true);
        let step = files_are_gone(&context, cleaned);
        end = end.on_failure(OnFailure::GoOn).lane(Lane { host: None, steps: vec![step, mark] });
    } else {
        end = end.lane(Lane { host: None, steps: vec![mark] });
    }
    plan.push(end);
    let refusal = Refusal::of(&refused);
    Ok(Planned { refusal, ..Planned::new(plan, context, execution) })
}

const BRING_BACK: &str =
    "bring it back and run the same command again, or pass --force to leave it unchanged";
const FORCE: &str = "or pass --force to leave the host unchanged";
const FORGET: &str = "pass --force to forget it and leave it unchanged";

const GONE: &str =
    "the cluster is gone all the same: remove by hand what these steps have left behind";
const BARE: &str = "or pass --force to remove the rest and leave what they have started";

/// Returns the step that fails while one of `hosts` has files of the cluster: the next attempt needs the
/// Clusterfile then.
fn files_are_gone(context: &ClusterContext, hosts: Vec<Host>) -> Step {
    let (cluster, root) = (context.name.clone(), context.paths.root());
    let says = format!("see that no host has {root} any more");
    Step::local("files-are-gone", says, "", move |step| {
        for host in &hosts {
            if step.pool.agent(host)?.facts()?.clusters.contains(&cluster) {
                return Err(Error::check_failed(format!("{} still has {root}", host.id())));
            }
        }
        Ok(())
    })
    .always()
}

/// Reports a host that cannot be cleaned as a separate failure, after the others are clean.
fn gone(host: &Host, told: &Error) -> Lane {
    let says = match told.kind() {
        Kind::Denied => "it cannot be used: this will fail",
        _ => "it does not answer: this will fail",
    };
    left(host, says, told)
}

/// Reports a host that is not touched, in the same way.
fn left(host: &Host, says: &str, told: &Error) -> Lane {
    let (kind, message) = (told.kind(), told.message().to_owned());
    let hints: Vec<String> = told.hints().iter().map(ToString::to_string).collect();
    let step = Step::local("host", says, "", move |_| {
        let error = Error::new(kind, message.clone());
        Err(hints.iter().fold(error, |error, hint| error.hint(hint.as_str())))
    });
    Lane { host: Some(host.clone()), steps: vec![step.always()] }
}

/// Plans the removal of `image` (as in `spec.image`). The keeper writes the Clusterfile without it.
pub fn uninstall(
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
        return Err(look::lost(&first.id(), error)?);
    }
    ownership::refuse_foreign(context, &looks)?;
    let context = Arc::new(look::informed(context, &looks));
    let mut plan = Plan::new("uninstall", &context.name, image);
    plan.destroys = true;
    if let (Some(first), Some(found)) =
        (context.first(), context.images.iter().find(|one| one.name == image))
    {
        let actions = match execution.applications {
            Some(own) => own.uninstall(&context, found, first, &mut plan)?,
            None => image_commands::uninstall(&context, found, first),
        };
        plan.push(Phase::on("uninstall", first, actions));
    }
    let mut mark = record::mark(execution, PhaseUpdate::Success);
    mark.says = vec!["write the Clusterfile without it".to_owned()];
    plan.extend(record::phases(execution, &context, vec![mark]));
    Ok(Planned::new(plan, context, execution))
}

/// Plans the timers that renew certificates on hosts, or their removal, as the cluster context has it.
pub fn timers(execution: &ExecutionContext<'_>, context: &ClusterContext) -> Result<Planned> {
    let looks = look::look(&context.hosts, &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(look::lost(host, error)?);
        }
    }
    ownership::refuse_foreign(context, &looks)?;
    let context = Arc::new(look::informed(context, &looks));
    let mut plan =
        Plan::new("cert", &context.name, &format!("timers {}", context.renews_certificates()));
    let mut phase = change::renewal(execution, &context, &context.hosts)?;
    // A newer imgctl on this machine brings itself.
    for step in phase.lanes.iter_mut().flat_map(|lane| &mut lane.steps) {
        step.always = true;
    }
    plan.push(phase);
    let mark = record::mark(execution, PhaseUpdate::Success);
    plan.extend(record::phases(execution, &context, vec![mark]));
    Ok(Planned::new(plan, context, execution))
}

/// Plans new names for the API's certificate and the certificates to renew. Either may be empty.
pub fn renew(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    kubeadm: &Kubeadm<'_>,
    names: &[String],
    renew: &[String],
) -> Result<Planned> {
    let looks = look::look(context.control_planes(), &execution.pool, execution.parallel);
    for (host, look) in &looks {
        if let Err(error) = look {
            return Err(look::lost(host, error)?);
        }
    }
    ownership::refuse_foreign(context, &looks)?;
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
        plan.push(Phase::local("prepare", vec![step]));
    }
    plan.push(Phase::new("certificates", Order::Serial).over(
        context.control_planes(),
        |host| {
            let mut actions = Vec::new();
            if !names.is_empty() {
                actions.extend(kubeadm.add_names(&context, host, names)?);
            }
            for what in renew {
                actions.extend(kubeadm.renew(&context, host, &Wanted::parse(what)?)?);
            }
            Ok(actions)
        },
    )?);
    Ok(Planned::new(plan, context, execution))
}
