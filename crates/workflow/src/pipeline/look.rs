//! First query of hosts before there is a plan: which hosts answer, and their facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::workers::map;
use imgctl_host::agent::protocol::Facts;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::HostPool;

/// Answers of hosts, keyed by [`Host::id`].
pub(crate) type Looks = BTreeMap<String, Result<Facts>>;

/// Queries `hosts`, at most `parallel` at once.
pub fn look<'a>(
    hosts: impl IntoIterator<Item = &'a Host>,
    pool: &Arc<dyn HostPool + Send>,
    parallel: usize,
) -> Looks {
    let ask = |host: &Host| (host.id(), pool.agent(host).and_then(|agent| agent.facts()));
    map(hosts, parallel, ask).into_iter().collect()
}

/// Returns the machine-ids that the hosts reported.
pub(crate) fn machines(looks: &Looks) -> BTreeMap<String, String> {
    let known = looks.iter().filter_map(|(id, look)| Some((id, &look.as_ref().ok()?.machine_id)));
    known
        .filter(|(_, machine)| !machine.is_empty())
        .map(|(id, machine)| (id.clone(), machine.clone()))
        .collect()
}

/// Returns the error for a host that does not answer; the caller adds a hint.
///
/// # Errors
/// Fails for a host that answers but cannot be used, because it shows another host key or accepts no login. That
/// error has its own hints.
pub(crate) fn lost(host: &str, error: &Error) -> Result<Error> {
    if error.kind() != Kind::Denied {
        return Ok(Error::new(error.kind(), format!("{host} does not answer: {error}")));
    }
    let mut refused = Error::new(error.kind(), format!("{host} cannot be used: {error}"));
    for hint in error.hints() {
        refused = refused.hint(hint);
    }
    Err(refused)
}

/// Returns the cluster context with the values that the hosts reported: `HOST_NAME` and `ARCH`,
/// unless they are already set.
pub fn informed(context: &ClusterContext, looks: &Looks) -> ClusterContext {
    let mut context = context.clone();
    let is_set = |context: &ClusterContext, name: &str| {
        context.environment.contains_key(name)
            || context.images.iter().any(|image| image.environment.contains_key(name))
    };
    let arch_is_set = is_set(&context, "ARCH");
    for host in context.hosts.iter_mut().chain(&mut context.leaving) {
        let Some(Ok(facts)) = looks.get(&host.id()) else {
            continue;
        };
        let mut known = vec![("HOST_NAME", &facts.hostname)];
        if !arch_is_set {
            known.push(("ARCH", &facts.architecture));
        }
        for (name, value) in known {
            if !value.is_empty() {
                host.environment.entry(name.to_owned()).or_insert_with(|| value.clone());
            }
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_another_key_is_not_one_that_is_away() {
        let other_key = Error::denied("the key of h1 is not the one in known_hosts:3")
            .hint("find out which")
            .context("cannot connect to h1");
        let told = lost("h1", &other_key).unwrap_err();
        assert!(told.message().starts_with("h1 cannot be used: cannot connect"), "{told}");
        assert_eq!((told.kind(), told.hints()), (Kind::Denied, vec!["find out which"]));
        let told = lost("h1", &Error::network("no route")).unwrap();
        assert_eq!(told.message(), "h1 does not answer: no route");
        assert!(told.hints().is_empty());
    }
}
