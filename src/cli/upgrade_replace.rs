//! The strategy `replace`: hosts do not move to the new version; spare hosts that have it take
//! over.
//!
//! A spare joins before the host that it replaces leaves, one pair after the other, so that neither
//! quorum nor capacity ever drops.

use crate::cli::cluster_work::{Work, WorkArgs, change_of};
use crate::cli::commands::run::add_new_hosts;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options;
use crate::cli::work_report::report;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::clusterfile::{Clusterfile, Ssh};
use imgctl_cluster::cluster::desired::HostFlags;
use imgctl_cluster::cluster::host::MASTER;
use imgctl_cluster::pipeline::change;
use imgctl_cluster::upgrade::document::{Choices, Document};
use imgctl_host::host::address::{self, Address, SSH_PORT};

/// A spare host and the host that it replaces, as given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    spare: String,
    old: String,
}

/// Parses the pairs of `--spare NEW=OLD`.
pub(crate) fn pairs(choices: &Choices) -> Result<Vec<Pair>> {
    let read = |text: &String| match text.split_once('=') {
        Some((spare, old)) if !spare.is_empty() && !old.is_empty() => {
            Ok(Pair { spare: spare.to_owned(), old: old.to_owned() })
        }
        _ => Err(Error::usage(format!("--spare {text} does not name the host to replace"))
            .hint("write --spare NEW=OLD: the spare, and the host of the cluster to replace")),
    };
    choices.spares.iter().map(read).collect()
}

/// Excludes hosts that are replaced from the plan; hosts that have already left are not in it.
pub(crate) fn leave_out(document: &mut Document, pairs: &[Pair]) -> Result<()> {
    for pair in pairs {
        let is_old = |id: &String| *id == pair.old || id.split(':').next() == Some(&pair.old);
        let Some(id) = document.hosts.keys().find(|id| is_old(id)).cloned() else {
            continue;
        };
        if document.control_planes.first() == Some(&id) {
            return Err(Error::usage(format!(
                "{id} is the first control plane, which cannot be replaced"
            ))
            .hint("omit it from --spare: it is upgraded itself"));
        }
        if let Some(host) = document.hosts.get_mut(&id) {
            host.skipped = Some(format!("{} takes over", pair.spare));
        }
        document.control_planes.retain(|other| *other != id);
        document.canary.retain(|other| *other != id);
        for batch in &mut document.batches {
            batch.retain(|other| *other != id);
        }
    }
    document.batches.retain(|batch| !batch.is_empty());
    Ok(())
}

/// Flags for replacing hosts.
pub(crate) struct Replacing<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) ssh: &'a SshArgs,
    pub(crate) work: &'a WorkArgs,
    pub(crate) registry: &'a RegistryArgs,
}

/// Replaces hosts pair by pair, skipping pairs that are done.
pub(crate) fn replace(pairs: &[Pair], replacing: &Replacing<'_>, context: &Context) -> Result<()> {
    for pair in pairs {
        // A control plane joins in a separate run: in a shared run, the old one would leave first.
        for part in [Part::Join, Part::Leave] {
            step(pair, part, replacing, context)
                .map_err(|error| error.hint("run the same `imgctl upgrade` again to continue"))?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Join,
    Leave,
}

fn step(pair: &Pair, part: Part, replacing: &Replacing<'_>, context: &Context) -> Result<()> {
    let verb = match part {
        Part::Join => "add",
        Part::Leave => "delete",
    };
    let work = Work::begin(verb, replacing.cluster, replacing.work, context)?.over(replacing.ssh);
    let mut desired = work.existing()?.clone();
    let Some((old, is_master)) = member(&desired, &pair.old)? else {
        return Ok(());
    };
    match part {
        Part::Join => {
            if member(&desired, &pair.spare)?.is_some() {
                return Ok(());
            }
            let (login, _) = replacing.ssh.resolve(context)?;
            let list = Some(pair.spare.clone());
            let flags = HostFlags {
                masters: list.clone().filter(|_| is_master),
                nodes: list.filter(|_| !is_master),
                registry: None,
                ssh: Ssh::of_login(&login, replacing.ssh.port),
            };
            add_new_hosts(&mut desired, &flags, context)?;
        }
        Part::Leave => {
            desired.cluster.remove_hosts(&[old])?;
        }
    }
    let prepared = work.prepare(desired, replacing.registry)?;
    let mut change = change_of(verb, &prepared, None, &[], work.current.as_ref());
    change.wait = wait_options::DEFAULT;
    let summary = work.carry_out(&prepared, replacing.ssh, false, |means, scene| {
        change::plan(means, scene, &change)
    })?;
    match summary {
        Some(summary) => report(&summary, replacing.cluster, context),
        None => Ok(()),
    }
}

/// Returns the host of the cluster named `name`, and whether it is a control plane.
fn member(cluster: &Clusterfile, name: &str) -> Result<Option<(Address, bool)>> {
    let wanted = address::parse_list(name, SSH_PORT)?;
    for (address, group) in cluster.cluster.one_by_one()? {
        if wanted.iter().any(|wanted| wanted.name == address.name) {
            let is_master = group.roles.iter().any(|role| role == MASTER);
            return Ok(Some((address, is_master)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_say_whom_they_replace() {
        let of = |spares: &[&str]| {
            pairs(&Choices {
                spares: spares.iter().map(|spare| (*spare).to_owned()).collect(),
                ..Choices::default()
            })
        };
        let pair = &of(&["10.0.0.9=10.0.0.2"]).unwrap()[0];
        assert_eq!((&*pair.spare, &*pair.old), ("10.0.0.9", "10.0.0.2"));
        for wrong in ["10.0.0.9", "=10.0.0.2", "10.0.0.9="] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
