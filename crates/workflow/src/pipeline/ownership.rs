//! Whose a host is: each host of a cluster has the cluster's UID in a file of the cluster's data
//! directory, written before anything else is brought to it, and beside it the machine-id. A host of
//! another cluster is neither changed nor cleaned, and files alone do not make a host that was installed
//! anew a member.
//!
//! Evaluates the facts that hosts have reported. Hosts from before clusters had UIDs have no file; the
//! next change writes it.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::look::Looks;
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Step, journals};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::{Claim, Claimed, Facts, UID_FILE};
use imgctl_journal::past;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Action;

/// Verb of the plan that removes a cluster.
pub(crate) const RESET: &str = "reset";

/// What a host says about the cluster that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It has files of no cluster.
    Nobody,
    /// It has the UID of this cluster.
    Ours,
    /// It has files of a cluster of this name, and no UID.
    Unmarked,
    /// It belongs to another cluster, of this or another name.
    Other(Other),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) cluster: String,
    pub(crate) uid: Option<String>,
}

impl Other {
    /// Returns `prod (UID 1234)`.
    pub(crate) fn named(&self) -> String {
        named(&self.cluster, self.uid.as_deref())
    }
}

fn named(cluster: &str, uid: Option<&str>) -> String {
    match uid {
        Some(uid) => format!("{cluster} (UID {uid})"),
        None => cluster.to_owned(),
    }
}

/// Returns this cluster with its UID, for messages.
pub(crate) fn this(context: &ClusterContext) -> String {
    named(&context.name, context.uid.as_deref())
}

/// Returns whose host this is, by what it says itself.
pub(crate) fn owner(context: &ClusterContext, facts: &Facts) -> Owner {
    let other = |cluster: &String, uid: Option<&String>| {
        Owner::Other(Other { cluster: cluster.clone(), uid: uid.cloned() })
    };
    if let Some(uid) = facts.cluster_uids.get(&context.name) {
        return match &context.uid {
            Some(own) if own != uid => other(&context.name, Some(uid)),
            _ => Owner::Ours,
        };
    }
    // Files of this cluster count less than the UID of another one: a mere question leaves files.
    if let Some((cluster, uid)) = facts.cluster_uids.first_key_value() {
        return other(cluster, Some(uid));
    }
    if facts.clusters.contains(&context.name) {
        return Owner::Unmarked;
    }
    match facts.clusters.first() {
        // An adopted cluster may have had another name.
        Some(cluster) if !context.is_adopted() => other(cluster, None),
        _ => Owner::Nobody,
    }
}

/// Returns the cluster that a member of this one says it belongs to instead: one of the same name, or
/// one for which everything of this cluster was removed from the host.
pub(crate) fn taken(context: &ClusterContext, facts: &Facts) -> Option<Other> {
    match owner(context, facts) {
        Owner::Other(other)
            if other.cluster == context.name
                || (other.uid.is_some() && !facts.clusters.contains(&context.name)) =>
        {
            Some(other)
        }
        _ => None,
    }
}

/// Fails if a host of the cluster belongs to another one or was installed anew, or if the cluster is being
/// removed. Hosts that do not answer are not checked.
pub fn refuse_foreign(context: &ClusterContext, looks: &Looks) -> Result<()> {
    refuse_unfinished_reset(context)?;
    refuse_taken(context, looks)?;
    refuse_lost(context, &context.hosts, looks)
}

/// Fails if one of `hosts` was installed anew since it became a member.
pub fn refuse_lost<'a>(
    context: &ClusterContext,
    hosts: impl IntoIterator<Item = &'a Host>,
    looks: &Looks,
) -> Result<()> {
    for host in hosts {
        if let Some(Ok(facts)) = looks.get(&host.id())
            && let Some(why) = membership_lost(context, facts)
        {
            return Err(Error::check_failed(format!("{}: {why}", host.id())).hint(REPLACE));
        }
    }
    Ok(())
}

/// Fails if a host of the cluster says that it belongs to another one.
pub fn refuse_taken(context: &ClusterContext, looks: &Looks) -> Result<()> {
    for host in &context.hosts {
        if let Some(Ok(facts)) = looks.get(&host.id())
            && let Some(other) = taken(context, facts)
        {
            return Err(Error::check_failed(format!(
                "{} belongs to cluster {}, not to cluster {}",
                host.id(),
                other.named(),
                this(context)
            ))
            .hint(take_out(context, host)));
        }
    }
    Ok(())
}

/// Fails if a reset of the cluster is unfinished: some hosts may be cleaned although they still have files.
pub fn refuse_unfinished_reset(context: &ClusterContext) -> Result<()> {
    match past::unfinished_verb(&journals(context.state.directory()), RESET)? {
        Some(reset) => Err(Error::busy(format!(
            "cluster {} is being removed: a reset has stopped before its end (journal {})",
            context.name, reset.id
        ))
        .hint(format!(
            "`imgctl reset --cluster {}` continues; with --force, it skips hosts that do not answer",
            context.name
        ))),
        None => Ok(()),
    }
}

/// What to do with a member that was installed anew.
pub const REPLACE: &str = "`imgctl delete` it, with --force if its data is lost, and `imgctl add` it again; \
                           if it is the first control plane, `imgctl restore` a backup, or `imgctl reset` and \
                           create the cluster again";

/// Returns why a host is no longer a working member: what scripts did there is gone with its system or its
/// data.
pub fn membership_lost(context: &ClusterContext, facts: &Facts) -> Option<&'static str> {
    // Hosts from before clusters had UIDs, and hosts that others set up, have no mark.
    if context.is_adopted() || context.uid.is_none() {
        return None;
    }
    if has_nothing(context, facts) {
        return Some(
            "it has nothing of the cluster: it was installed anew, its data was removed, or a disk is \
             not mounted",
        );
    }
    is_other_machine(context, facts).then_some(
        "its machine-id is not that of the host which got the cluster's files: its system was installed \
         anew, or its disk came from another machine",
    )
}

fn is_other_machine(context: &ClusterContext, facts: &Facts) -> bool {
    let then = facts.cluster_machines.get(&context.name);
    !facts.machine_id.is_empty() && then.is_some_and(|then| *then != facts.machine_id)
}

/// Whether a host has neither the UID nor a tree of any cluster that could be this one. Asking alone
/// leaves files there.
pub(crate) fn has_nothing(context: &ClusterContext, facts: &Facts) -> bool {
    match owner(context, facts) {
        Owner::Nobody => true,
        Owner::Unmarked => !facts.cluster_trees.contains(&context.name),
        Owner::Ours | Owner::Other(_) => false,
    }
}

/// Returns the IDs of hosts that have nothing of this cluster.
pub(crate) fn blank(context: &ClusterContext, looks: &Looks) -> BTreeSet<String> {
    let is_blank = |facts: &Facts| {
        has_nothing(context, facts) || matches!(owner(context, facts), Owner::Other(_))
    };
    let hosts = context.hosts.iter().map(Host::id);
    hosts.filter(|id| matches!(looks.get(id), Some(Ok(facts)) if is_blank(facts))).collect()
}

/// Returns what to do with a member that belongs to another cluster now.
pub(crate) fn take_out(context: &ClusterContext, host: &Host) -> String {
    let flag = if host.is_control_plane() { "--masters" } else { "--nodes" };
    format!(
        "`imgctl delete --cluster {} {flag} {} --force` removes the host from this cluster and \
         changes nothing on it",
        context.name,
        host.id()
    )
}

/// Returns the error for a host that is to be cleaned and belongs to another cluster.
pub(crate) fn not_cleaned(context: &ClusterContext, host: &Host, other: &Other) -> Error {
    Error::check_failed(format!(
        "{} belongs to cluster {}, not to cluster {}: it is not cleaned",
        host.id(),
        other.named(),
        this(context)
    ))
}

/// Returns the phase that writes the cluster's UID on hosts that do not have it. With it, a host
/// belongs to the cluster. `taking` are hosts that may have the UID of another cluster.
pub fn phase(context: &ClusterContext, looks: &Looks, taking: &BTreeSet<String>) -> Phase {
    let mut phase = Phase::new("claim", Order::Parallel).on_failure(OnFailure::FinishPhase);
    let Some(uid) = &context.uid else { return phase };
    for host in &context.hosts {
        let Some(Ok(facts)) = looks.get(&host.id()) else { continue };
        let told = facts.cluster_uids.get(&context.name);
        if told == Some(uid) && !is_other_machine(context, facts) {
            continue;
        }
        let mut known = facts.cluster_uids.clone();
        if !taking.contains(&host.id()) {
            known.remove(&context.name);
        }
        phase = phase.lane(Lane::on(host, [claim(context, uid, known)]));
    }
    phase
}

/// Returns the step that writes the UID, unless another cluster has got the host since it was asked: then
/// it had the UIDs in `known`.
fn claim(context: &ClusterContext, uid: &str, known: BTreeMap<String, String>) -> Step {
    let root = context.paths.root();
    let says = format!("write {root}/{UID_FILE}: the host belongs to cluster {}", context.name);
    let (data, cluster) = root.rsplit_once('/').unwrap_or(("/", &root));
    let claim =
        Claim { data: data.to_owned(), cluster: cluster.to_owned(), uid: uid.to_owned(), known };
    let action = Action::depending_on("uid", says, uid, move |site| {
        let (cluster, uid) = match site.agent.claim(&claim)? {
            Claimed::Ours => return Ok(()),
            Claimed::Taken(cluster, uid) => (cluster, uid),
        };
        let other = Other { cluster, uid: Some(uid) };
        Err(Error::check_failed(format!(
            "{} belongs to cluster {} by now, not to cluster {}",
            site.host.id(),
            other.named(),
            this(site.context)
        ))
        .hint("another controller was faster: choose another host, or remove it from that cluster"))
    });
    Step::from(action).always()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::testing::{facts, hosts, sample_context};

    const OWN: &str = "aaaaaaaa-0000-4000-8000-000000000001";
    const OTHER: &str = "bbbbbbbb-0000-4000-8000-000000000002";

    fn context() -> ClusterContext {
        let mut context = sample_context("c", hosts(1, 1), std::path::Path::new("/nowhere"));
        context.uid = Some(OWN.to_owned());
        context
    }

    fn says(context: &ClusterContext, clusters: &[&str], uids: &[(&str, &str)]) -> Facts {
        let mut facts = facts(&context.hosts[1]);
        facts.clusters = clusters.iter().map(ToString::to_string).collect();
        facts.cluster_uids =
            uids.iter().map(|(name, uid)| ((*name).to_owned(), (*uid).to_owned())).collect();
        facts
    }

    #[test]
    fn a_host_says_whose_it_is() {
        let context = context();
        let of = |clusters: &[&str], uids: &[(&str, &str)]| {
            let facts = says(&context, clusters, uids);
            (owner(&context, &facts), taken(&context, &facts))
        };
        let other = |cluster: &str, uid: Option<&str>| Other {
            cluster: cluster.to_owned(),
            uid: uid.map(str::to_owned),
        };
        assert_eq!(of(&[], &[]), (Owner::Nobody, None));
        assert_eq!(of(&["c"], &[("c", OWN)]), (Owner::Ours, None));
        assert_eq!(of(&["c"], &[]), (Owner::Unmarked, None));
        let same_name = other("c", Some(OTHER));
        assert_eq!(of(&["c"], &[("c", OTHER)]), (Owner::Other(same_name.clone()), Some(same_name)));
        // Ours, and another cluster was there before.
        assert_eq!(of(&["b", "c"], &[("b", OTHER), ("c", OWN)]), (Owner::Ours, None));
        let given_away = other("d", Some(OTHER));
        assert_eq!(
            of(&["d"], &[("d", OTHER)]),
            (Owner::Other(given_away.clone()), Some(given_away.clone()))
        );
        // A member from before clusters had UIDs, on which another cluster was put by force: it goes
        // on, and is not cleaned.
        assert_eq!(of(&["c", "d"], &[("d", OTHER)]), (Owner::Other(given_away), None));
        assert_eq!(of(&["d"], &[]), (Owner::Other(other("d", None)), None));
    }

    #[test]
    fn a_host_of_another_cluster_is_refused_by_name() {
        let context = context();
        let host = &context.hosts[1];
        let looks: Looks = [(host.id(), Ok(says(&context, &["c"], &[("c", OTHER)])))].into();
        let error = refuse_taken(&context, &looks).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(&host.id()) && told.contains(OWN) && told.contains(OTHER), "{told}");
        let hint = format!("--nodes {} --force", host.id());
        assert!(error.hints()[0].contains(&hint), "{:?}", error.hints());
        let looks: Looks = [(host.id(), Ok(says(&context, &["c"], &[])))].into();
        refuse_taken(&context, &looks).unwrap();
        assert_eq!(phase(&context, &looks, &BTreeSet::new()).lanes.len(), 1);
        let looks: Looks = [(host.id(), Ok(says(&context, &["c"], &[("c", OWN)])))].into();
        assert!(phase(&context, &looks, &BTreeSet::new()).lanes.is_empty());
    }

    #[test]
    fn a_host_with_the_files_of_a_question_alone_has_nothing() {
        let context = context();
        let host = &context.hosts[0];
        let mut seen = facts(host);
        assert!(has_nothing(&context, &seen));
        seen.clusters = vec!["c".to_owned()];
        assert!(has_nothing(&context, &seen), "`status` was asked meanwhile");
        // A host from before clusters had UIDs.
        seen.cluster_trees = vec!["c".to_owned()];
        assert!(!has_nothing(&context, &seen));
        seen.cluster_trees.clear();
        seen.cluster_uids.insert("c".to_owned(), OWN.to_owned());
        assert!(!has_nothing(&context, &seen));
    }
}
