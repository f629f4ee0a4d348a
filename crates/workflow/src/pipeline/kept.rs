//! What imgctl keeps on a member: its files, the registry, and the timer of its certificates. What of
//! that something else has stopped or removed, and how it is made again.
//!
//! Must not know how either is installed.

use std::{collections::BTreeMap, sync::Arc};

use crate::pipeline::asked::Asked;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::look::Looks;
use crate::pipeline::step::{Order, Phase, Step, journals};
use imgctl_base::error::{Error, Result};
use imgctl_base::workers::map;
use imgctl_host::agent::protocol::Facts;
use imgctl_journal::past;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::Line;
use imgctl_runtime::{registry, renewal::timer};

/// Words of the answer, one a line.
const REGISTRY: &str = "registry";
const TIMER: &str = "timer";

/// What a member lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lacking {
    registry: bool,
    timer: bool,
}

impl Lacking {
    fn of(answer: &str) -> Self {
        let has = |word: &str| answer.lines().any(|line| line.trim() == word);
        Self { registry: has(REGISTRY), timer: has(TIMER) }
    }
}

/// Returns an error for each of `hosts` that lacks its files although a run has sent them and none has removed
/// them: scripts of the image cannot clean such a host. A host with another machine-id has nothing to clean.
pub(crate) fn without_files(
    context: &ClusterContext,
    hosts: &[Host],
    looks: &Looks,
) -> Result<BTreeMap<String, Error>> {
    let lacking = |host: &&Host| match looks.get(&host.id()) {
        Some(Ok(facts)) => !facts.cluster_trees.contains(&context.name),
        _ => false,
    };
    let lacking: Vec<String> = hosts.iter().filter(lacking).map(Host::id).collect();
    if lacking.is_empty() || context.cleaning_rootfs().is_none() {
        return Ok(BTreeMap::new());
    }
    let journals = journals(context.state.directory());
    let mut machines = past::machines_with_files(&journals, lacking.iter().map(String::as_str))?;
    machines.retain(|host, then| match looks.get(host) {
        Some(Ok(facts)) => then.is_empty() || *then == facts.machine_id,
        _ => false,
    });
    let told = |host: &String| {
        Error::check_failed(format!(
            "{host} has lost the files of the cluster below {}: the image's scripts cannot clean it",
            context.paths.root()
        ))
        .hint(
            "if they are on a disk that is not mounted, mount it; if somebody has removed them, `imgctl run` \
             puts them back",
        )
    };
    Ok(machines.keys().map(|host| (host.clone(), told(host))).collect())
}

/// Whether a member should have units of imgctl. Those of an adopted cluster are its administrator's.
fn has_units(context: &ClusterContext, facts: &Facts) -> bool {
    facts.systemd && !context.is_adopted()
}

/// Returns the command that names the timer if a member lacks it; `None` if it should have none.
fn timer_question(context: &ClusterContext, facts: &Facts) -> Option<String> {
    (has_units(context, facts) && context.renews_certificates()).then(|| {
        let is_there = timer::is_there(context);
        format!("{{ {is_there}; }} >/dev/null 2>&1 || echo {TIMER}\n")
    })
}

/// Returns the query whose answer names what the member lacks; `None` if nothing should be there.
fn question(context: &ClusterContext, host: &Host, facts: &Facts) -> Option<Line> {
    let mut question = Line::query("");
    let registry = context.registry.as_ref().filter(|_| context.serves_registry(host));
    if let Some(access) = registry.filter(|_| has_units(context, facts)) {
        let Line { line, environment, .. } = registry::serves(context, access);
        question.line.push_str(&format!("(\n{line}\n) || echo {REGISTRY}\n"));
        question.environment = environment;
    }
    question.line.extend(timer_question(context, facts));
    question.line.push_str("true");
    (question.line != "true").then_some(question)
}

/// Asks a member what it lacks.
fn lacking(asked: &Asked<'_>, key: &str, facts: &Facts) -> Result<Lacking> {
    match question(asked.context, asked.host, facts) {
        Some(line) => Ok(Lacking::of(&asked.line(key, &line)?)),
        None => Ok(Lacking::default()),
    }
}

/// Asks a member whether it lacks the timer of its certificates.
pub(crate) fn lacks_timer(asked: &Asked<'_>, key: &str, facts: &Facts) -> Result<bool> {
    match timer_question(asked.context, facts) {
        Some(line) => Ok(Lacking::of(&asked.line(key, &Line::query(format!("{line}true")))?).timer),
        None => Ok(false),
    }
}

/// Returns the phase that makes again what members lack. A member that does not answer the question is
/// left to the steps that follow.
pub(crate) fn repair<'h>(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    members: impl IntoIterator<Item = &'h Host>,
    looks: &Looks,
) -> Result<Phase> {
    let pool = Arc::clone(&execution.pool);
    let ask = |host: &Host| {
        let Some(Ok(facts)) = looks.get(&host.id()) else { return Lacking::default() };
        if question(context, host, facts).is_none() {
            return Lacking::default();
        }
        let asked = pool.agent(host).and_then(|agent| {
            let asked = Asked { context, host, agent: &*agent, pool: pool.as_ref() };
            lacking(&asked, "kept", facts)
        });
        asked.unwrap_or_default()
    };
    let members: Vec<&Host> = members.into_iter().collect();
    let found = map(members.iter().copied(), execution.parallel, |host| (host.id(), ask(host)));
    let found: BTreeMap<String, Lacking> = found.into_iter().collect();
    Phase::new("repair", Order::Parallel).over(members, |host| {
        let lacking = found.get(&host.id()).copied().unwrap_or_default();
        let mut actions = Vec::new();
        if lacking.registry {
            actions.extend((execution.registry)(context, host)?);
        }
        if lacking.timer {
            let runtime = execution.runtime.name();
            actions.extend(timer::actions(context, host, runtime, execution.validity)?);
        }
        Ok(actions.into_iter().map(|action| Step::from(action).always()).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing;

    #[test]
    fn members_are_asked_for_what_should_be_there() {
        let context = testing::context(&["master", "node"]);
        let systemd = Facts { systemd: true, ..Facts::default() };
        let asks = |context: &ClusterContext, host: usize, facts: &Facts| {
            let line = question(context, &context.hosts[host], facts)?.line;
            let has = |word: &str| line.contains(&format!("|| echo {word}\n"));
            Some((has(REGISTRY), has(TIMER)))
        };
        assert_eq!(asks(&context, 0, &systemd), Some((true, true)));
        assert_eq!(asks(&context, 1, &systemd), Some((false, true)));
        // Without systemd, imgctl has no units there.
        assert_eq!(asks(&context, 0, &Facts::default()), None);
        let without = ClusterContext { renew_certificates: Some(false), ..context };
        assert_eq!(asks(&without, 0, &systemd), Some((true, false)));
        assert_eq!(asks(&without, 1, &systemd), None);
    }

    #[test]
    fn answers_name_what_is_missing() {
        assert_eq!(Lacking::of(""), Lacking::default());
        assert_eq!(Lacking::of("timer\n"), Lacking { registry: false, timer: true });
        assert_eq!(Lacking::of("registry\ntimer\n"), Lacking { registry: true, timer: true });
    }
}
