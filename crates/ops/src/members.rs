//! Adding and removing hosts of a cluster.

use crate::adopted;
use crate::operation::Operation;
use crate::session::Session;
use crate::work::{Prepared, RunOptions, Work};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_host::host::address::{self, Address, SSH_PORT};
use imgctl_model::clusterfile::{ClusterDocument, Clusterfile};
use imgctl_model::{desired::HostFlags, diff::other_role};
use imgctl_workflow::pipeline::{change, nodes::Wait};

#[derive(Clone, Debug)]
pub struct Addition {
    pub cluster: String,
    pub hosts: HostFlags,
    /// Rootfs image for the new hosts of a cluster that was adopted and has none.
    pub image: Option<String>,
    /// Also adds hosts with the files of another cluster.
    pub force: bool,
    pub wait: Wait,
    pub options: RunOptions,
}

pub fn add(request: &Addition, session: &Session<'_>) -> Result<()> {
    let work =
        Work::begin_asking_hosts(Operation::Add, &request.cluster, &request.options, session)?;
    let mut desired = work.existing()?.clone();
    if request.hosts.is_empty() {
        return Err(Error::usage("no hosts to add").hint("pass --masters or --nodes"));
    }
    if let Some(image) = image_of(request, &work, session)? {
        desired.cluster.images.insert(0, image);
    }
    add_new_hosts(&mut desired, &request.hosts, session)?;
    converge(&work, desired, request.wait, request.force)
}

/// Returns the rootfs image that an adopted cluster gets with its new hosts.
fn image_of(request: &Addition, work: &Work<'_>, session: &Session<'_>) -> Result<Option<String>> {
    let name = &request.cluster;
    if !work.has_no_image() {
        return match &request.image {
            Some(image) if !work.existing()?.cluster.images.contains(image) => Err(Error::usage(
                format!("cluster {name} has a rootfs image already"),
            )
            .hint(format!("omit --image; `imgctl upgrade {}` changes the image", quote(image)))),
            _ => Ok(None),
        };
    }
    let (image, needed) = (request.image.as_ref(), work.options.source.needed());
    adopted::chosen_image(work.existing()?, image, needed, session).map(Some)
}

#[derive(Clone, Debug)]
pub struct Removal {
    pub cluster: String,
    /// Control planes, as listed.
    pub masters: Option<String>,
    /// Workers.
    pub nodes: Option<String>,
    /// Also removes hosts that do not answer, without cleaning them up.
    pub force: bool,
    pub options: RunOptions,
}

pub fn remove(request: &Removal, session: &Session<'_>) -> Result<()> {
    let mut work =
        Work::begin_asking_hosts(Operation::Delete, &request.cluster, &request.options, session)?;
    let mut desired = work.existing()?.clone();
    let list =
        |list: &Option<String>| address::parse_list(list.as_deref().unwrap_or_default(), SSH_PORT);
    let (masters, nodes) = (list(&request.masters)?, list(&request.nodes)?);
    let leaving = [masters.as_slice(), &nodes].concat();
    if leaving.is_empty() {
        return Err(Error::usage("no hosts to remove").hint("pass --masters or --nodes"));
    }
    // A host that never became a member can be removed as well: an earlier run may have left
    // something on it.
    for group in work.state.touched()? {
        let alone = ClusterDocument { hosts: vec![group.clone()], ..ClusterDocument::default() };
        if alone.addresses()?.iter().any(|own| leaving.contains(own)) {
            desired.cluster.hosts.push(group.clone());
            work.also.push(group);
        }
    }
    for (hosts, is_master) in [(&masters, true), (&nodes, false)] {
        for host in hosts {
            refuse_other_role(&desired.cluster, host, is_master)?;
        }
    }
    desired.cluster.remove_hosts(&leaving)?;
    let prepared = work.prepare_removal(desired)?;
    carry_out(&work, &prepared, Wait::Never, request.force)
}

/// Changes the cluster to `desired`.
pub(crate) fn converge(
    work: &Work<'_>,
    desired: Clusterfile,
    wait: Wait,
    force: bool,
) -> Result<()> {
    carry_out(work, &work.prepare(desired)?, wait, force)
}

fn carry_out(work: &Work<'_>, prepared: &Prepared, wait: Wait, force: bool) -> Result<()> {
    let change = work.change(prepared, wait)?;
    work.carry_out(prepared, force, |execution, context| change::plan(execution, context, &change))
}

/// Fails if a host that leaves has another role than the flag that names it: a control plane must not
/// go by a slip.
fn refuse_other_role(cluster: &ClusterDocument, host: &Address, is_master: bool) -> Result<()> {
    let is_control_plane = cluster.is_control_plane(host)?;
    if is_control_plane == is_master {
        return Ok(());
    }
    let (is, flag) = if is_control_plane {
        ("a control plane, not a worker", "--masters")
    } else {
        ("a worker, not a control plane", "--nodes")
    };
    let name = &cluster.name;
    Err(Error::usage(format!("{host} is {is} of cluster {name}; nothing was removed"))
        .hint(format!("if it is to leave: `imgctl delete --cluster {name} {flag} {host}`")))
}

/// Adds the hosts of the flags that the cluster does not have; existing hosts may be named again.
pub(crate) fn add_new_hosts(
    desired: &mut Clusterfile,
    flags: &HostFlags,
    session: &Session<'_>,
) -> Result<()> {
    let present = desired.cluster.addresses()?;
    let default = flags.ssh.port.unwrap_or(SSH_PORT);
    let mut known = Vec::new();
    let mut unknown = |list: &Option<String>, is_master: bool| -> Result<Option<String>> {
        let Some(list) = list else { return Ok(None) };
        let mut new = Vec::new();
        for address in address::parse_list(list, default)? {
            if present.contains(&address) {
                if desired.cluster.is_control_plane(&address)? != is_master {
                    return Err(other_role(&address, is_master));
                }
                known.push(address.to_string());
            } else {
                new.push(imgctl_base::address::join_port(&address.name, address.port));
            }
        }
        Ok((!new.is_empty()).then(|| new.join(",")))
    };
    let mut new = flags.clone();
    new.masters = unknown(&flags.masters, true)?;
    new.nodes = unknown(&flags.nodes, false)?;
    if !known.is_empty() && (new.masters.is_some() || new.nodes.is_some()) {
        session.front.note(&format!(
            "{} already belongs to cluster {}",
            known.join(", "),
            desired.cluster.name
        ));
    }
    if new.masters.is_none() && new.nodes.is_none() && new.registry.is_none() {
        return Ok(());
    }
    desired.cluster.add_hosts(&new).map(|_| ())
}
