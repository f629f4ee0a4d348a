//! Other addresses for hosts of a running cluster, one host at a time.

use crate::front_end::Outcome;
use crate::operation::Operation;
use crate::session::Session;
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_host::host::connect::Connections;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::renumber::Renumbering;
use imgctl_workflow::pipeline::executor::Summary;
use imgctl_workflow::pipeline::{renumber, renumber::Progress};

#[derive(Clone, Debug)]
pub struct Renumber {
    pub cluster: String,
    /// In the order in which the hosts move.
    pub changes: Vec<Renumbering>,
    pub options: RunOptions,
}

/// Changes the addresses of hosts. Each host is a run of its own. The Clusterfile lists the
/// new address from the start of the run, because the host is reached there; the same request again
/// resumes a run that stopped.
pub fn renumber(request: &Renumber, session: &Session<'_>) -> Result<()> {
    let mut work =
        Work::begin_asking_hosts(Operation::Renumber, &request.cluster, &request.options, session)?;
    let current = work.existing()?.clone();
    // All of them are checked before the first host is touched.
    let changes = planned(&request.changes, &current, &work)?;
    if changes.is_empty() && !request.options.dry_run {
        let (cluster, summary) = (request.cluster.clone(), Summary::default());
        return session.front.show(&Outcome::Changed { cluster, summary, now: None });
    }
    for change in changes {
        let mut desired = work.existing()?.clone();
        let former = former(&desired, &change, session)?;
        desired.cluster.renumber(&change)?;
        // The host does not leave, nor does another one join.
        work.current = Some(desired.clone());
        let prepared = work.prepare(desired)?;
        refuse_other_images(&prepared.desired, &prepared.context)?;
        let same_key = |one: &Host, other: &Host| same_key(one, other, session);
        let asked = renumber::Request { change: &change, former: &former, same_key: &same_key };
        work.carry_out(&prepared, false, |execution, context| {
            renumber::plan(execution, context, &asked)
        })?;
    }
    Ok(())
}

/// Returns the changes that are left to do, with the ports that the Clusterfile has.
fn planned(
    changes: &[Renumbering],
    current: &Clusterfile,
    work: &Work<'_>,
) -> Result<Vec<Renumbering>> {
    let mut left = Vec::new();
    let mut cluster = current.cluster.clone();
    for (at, change) in changes.iter().enumerate() {
        let earlier = changes.get(..at).unwrap_or_default();
        if earlier.iter().any(|one| one.old.name == change.old.name) {
            return Err(Error::usage(format!("{} is renumbered twice", change.old.name)));
        }
        if let Some(exact) = cluster.renumber(change)? {
            left.push(exact);
            continue;
        }
        // The host is listed under its new address: a run has begun, or done, exactly this.
        let state = work.state.directory();
        match renumber::progress(state, work.state.name(), change)? {
            Progress::Unfinished => left.push(listed(change, current)?),
            Progress::Done => work.session.front.note(&format!(
                "{} has its new address {} already",
                change.old.name, change.new.name
            )),
            Progress::Unknown => {
                return Err(Error::not_found(format!(
                    "host {} does not belong to cluster `{}`, and {} does",
                    change.old.name, cluster.name, change.new.name
                )));
            }
        }
    }
    Ok(left)
}

/// Returns the change with the address that the Clusterfile lists for the host now.
fn listed(change: &Renumbering, current: &Clusterfile) -> Result<Renumbering> {
    let all = current.cluster.addresses()?;
    let new = all.into_iter().find(|own| own.name == change.new.name);
    let new = new.unwrap_or_else(|| change.new.clone());
    let mut old = change.old.clone();
    old.port = new.port;
    Ok(Renumbering { old, new })
}

/// Returns the host at its old address, with the login that it has in the Clusterfile.
fn former(current: &Clusterfile, change: &Renumbering, session: &Session<'_>) -> Result<Host> {
    let hosts = session.with_surroundings(|around| current.cluster.hosts(around))?;
    let own = |name: &str| hosts.iter().find(|host| host.address.name == name).cloned();
    if let Some(host) = own(&change.old.name) {
        return Ok(host);
    }
    let host = own(&change.new.name)
        .ok_or_else(|| Error::not_found(format!("there is no host {}", change.old)))?;
    Ok(Host { address: change.old.clone(), local: false, ..host })
}

/// Compares what known_hosts says; hosts that are not reached over SSH have nothing to compare.
fn same_key(one: &Host, other: &Host, session: &Session<'_>) -> Result<Option<bool>> {
    if session.pool.is_some() || one.local || other.local {
        return Ok(None);
    }
    let connections = Connections::new(session.ssh.settings.clone())?;
    connections.share_a_key((&one.address, &one.login), (&other.address, &other.login))
}

/// Fails if a name in the Clusterfile now refers to another image than the installed one: hosts get
/// their files again, and must get the same.
fn refuse_other_images(current: &Clusterfile, context: &ClusterContext) -> Result<()> {
    for image in &context.images {
        let digest = image.digest.to_string();
        let mount = current.cluster.status.mounts.iter().find(|mount| mount.image == image.name);
        let installed = mount.and_then(|mount| mount.digest.as_ref());
        if let Some(installed) = installed.filter(|installed| **installed != digest) {
            return Err(Error::check_failed(format!(
                "image {} is no longer what the cluster has: it is {digest}, and {installed} is \
                 installed",
                image.name
            ))
            .hint(format!(
                "run `imgctl upgrade {0}` first, or name the installed image {0} again",
                quote(&image.name)
            )));
        }
    }
    Ok(())
}
