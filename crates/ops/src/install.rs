//! Creating a cluster, and changing it to what images, hosts or a Clusterfile ask for.

use std::collections::{BTreeMap, BTreeSet};

use crate::operation::Operation;
use crate::settings;
use crate::upgrade::{SettingsChoices, reconfigure};
use crate::work::{RunOptions, Work, declined, replacement};
use crate::{
    front_end::Consent, front_end::Outcome, members::add_new_hosts, session::Session, upgrade,
};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_model::state::own_name;
use imgctl_model::{
    clusterfile::Clusterfile, desired::HostFlags, image::ImageKind, local_addresses,
};
use imgctl_upgrade::document::few;
use imgctl_workflow::apps::prune::Prune;
use imgctl_workflow::pipeline::{change, nodes::Wait};

/// What a front end adds to a Clusterfile.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Variables that override all others.
    pub environment: BTreeMap<String, String>,
    /// Command to run instead of the image's own.
    pub command: Vec<String>,
    pub documents: Vec<Clusterfile>,
    /// Whether hosts share images; `None` keeps the setting.
    pub share_images: Option<bool>,
}

impl Additions {
    pub(crate) fn add_to(&self, to: &mut Clusterfile) {
        to.cluster.set_flag_environment(&self.environment);
        for documents in &self.documents {
            to.add_documents(documents.clone());
        }
        if self.share_images.is_some() {
            to.cluster.share_images = self.share_images;
        }
    }
}

#[derive(Clone, Debug)]
pub struct Installation {
    pub cluster: String,
    /// Images or image archives, in installation order.
    pub images: Vec<String>,
    /// Hosts of a new cluster, or hosts to add to an existing one.
    pub hosts: HostFlags,
    pub additions: Additions,
    /// Recipients (`age1…`), and files of recipients, to encrypt the cluster's state to.
    pub encrypt_state: Vec<String>,
    /// Which objects of former versions of the images are removed.
    pub prune: Prune,
    /// Also run the commands of images that the cluster already has.
    pub force: bool,
    pub wait: Wait,
    pub options: RunOptions,
}

/// Creates a cluster, or installs images on an existing one. A rootfs image that hosts of the
/// cluster do not have upgrades them.
pub fn run(request: &Installation, session: &Session<'_>) -> Result<()> {
    // Hosts that an upgrade had skipped are upgraded first; the rest of the run remains.
    if run_once(request, session)? == Next::Again {
        run_once(request, session)?;
    }
    Ok(())
}

/// What remains after a run.
#[derive(PartialEq)]
enum Next {
    Nothing,
    /// The same run, since it only upgraded hosts.
    Again,
}

fn run_once(request: &Installation, session: &Session<'_>) -> Result<Next> {
    let name = &request.cluster;
    let mut work = Work::begin_asking_hosts(Operation::Run, name, &request.options, session)?;
    work.prune = request.prune;
    work.encrypt_state(&request.encrypt_state)?;
    let images = session.loaded(&request.images)?;
    let flags = &here(&request.hosts);
    let existing = work.current.as_ref().filter(|current| current.exists());
    if let Some(current) = existing
        && is_newer(current, &images, &work)?
    {
        if !flags.is_empty() {
            return Err(two_in_one());
        }
        if request.prune != Prune::Nothing {
            return Err(Error::usage(
                "a newer rootfs image upgrades hosts, and --prune is for applications",
            )
            .hint("upgrade the cluster first, then run the applications with --prune"));
        }
        upgrade::begin_newer(&work, &images)?;
        return Ok(Next::Nothing);
    }
    let mut desired = match existing {
        Some(current) => {
            let mut desired = current.clone();
            desired.cluster.add_images(&images);
            add_new_hosts(&mut desired, flags, session)?;
            desired
        }
        // The first run failed: a retry without host flags means the same hosts.
        None => match &work.current {
            Some(unfinished) if flags.is_empty() => {
                let mut desired = unfinished.clone();
                desired.cluster.add_images(&images);
                desired.cluster.ssh = flags.ssh.or(&unfinished.cluster.ssh);
                desired
            }
            unfinished => {
                // Login flags are not repeated either.
                let mut flags = flags.clone();
                if let Some(unfinished) = unfinished {
                    flags.ssh = flags.ssh.or(&unfinished.cluster.ssh);
                }
                let flags = &flags;
                if flags.is_empty() {
                    agree_on_this_machine(name, flags, request.options.dry_run, session)?;
                }
                let mut made = Clusterfile::new(name, &images, flags, local_addresses::primary())?;
                made.cluster.command.clone_from(&request.additions.command);
                made
            }
        },
    };
    request.additions.add_to(&mut desired);
    let mut prepared = work.prepare(desired)?;
    let given = &request.additions.environment;
    settings::tell_misspelled(given, &prepared.context.images, session.front.as_ref())?;
    if !request.options.dry_run {
        let answers = settings::ask(&prepared.context, session.front.as_ref())?;
        if !answers.is_empty() {
            let mut desired = prepared.desired.clone();
            desired.cluster.set_flag_environment(&answers);
            prepared = work.prepare(desired)?;
        }
    }
    settings::check(&prepared.context)?;
    let mut change = work.change(&prepared, request.wait)?;
    change.replacement = replacement(&request.additions.command, &images)?;
    if request.prune != Prune::Nothing {
        change.prune.clone_from(&images);
    }
    if request.force {
        let again: Vec<_> =
            images.iter().filter(|image| !change.install.contains(image)).cloned().collect();
        change.install.extend(again);
    }
    let rootfs = prepared.context.rootfs().map(|image| image.name.clone());
    let rootfs = rootfs.filter(|name| images.contains(name));
    let ran = work.with_execution(&prepared, request.force, |execution| {
        if !change.prune.is_empty() && execution.applications.is_none() {
            return Err(Error::usage(format!(
                "cluster {name} has no Kubernetes API: nothing records the objects of applications"
            ))
            .hint("omit --prune"));
        }
        let planned = change::plan(execution, &prepared.context, &change)?;
        if planned.behind.is_empty() || rootfs.is_none() {
            return work.carry_out_plan(&planned, execution).map(Ran::Through);
        }
        Ok(Ran::Behind(planned.behind))
    })?;
    match ran {
        Ran::Through(outcome) => {
            session.front.show(&outcome)?;
            Ok(Next::Nothing)
        }
        Ran::Behind(hosts) => {
            if !change.add.is_empty() {
                return Err(two_in_one().hint(format!(
                    "an upgrade skipped {}: upgrade these before adding hosts",
                    few(&hosts.into_iter().collect::<Vec<_>>())
                )));
            }
            let to: Vec<String> = rootfs.into_iter().collect();
            let is_done = upgrade::begin_newer(&work, &to)?;
            let rest = is_done && !(change.install.is_empty() && change.prune.is_empty());
            Ok(if rest { Next::Again } else { Next::Nothing })
        }
    }
}

/// Returns the flags without `localhost` as the only control plane: it stands for this machine, under the
/// address that other hosts reach.
fn here(flags: &HostFlags) -> HostFlags {
    let mut flags = flags.clone();
    if flags.masters.as_deref().map(str::trim) == Some("localhost") {
        flags.local = true;
        flags.masters = flags.nodes.is_some().then(|| local_addresses::primary().to_string());
    }
    flags
}

/// Says that a new cluster consists of this machine alone, and asks whether that is meant.
fn agree_on_this_machine(
    name: &str,
    flags: &HostFlags,
    is_preview: bool,
    session: &Session<'_>,
) -> Result<()> {
    let machine = format!("{} ({})", own_name(), local_addresses::primary());
    let front = &session.front;
    if flags.local || is_preview {
        front.say(&format!("cluster {name} consists of this machine, {machine}"));
        return Ok(());
    }
    let what = format!("no host is named: this machine, {machine}, would become cluster {name}");
    if front.consent() == Consent::Nobody {
        return Err(Error::usage(what)
            .hint("name hosts with --masters, or this machine with --local or --masters localhost")
            .hint("for a cluster that exists, pass --cluster; `imgctl clusters` lists them"));
    }
    if front.confirm(&format!("{what}. Continue?"))? { Ok(()) } else { Err(declined()) }
}

enum Ran {
    Through(Outcome),
    /// These hosts have a different rootfs image than the cluster; nothing was changed.
    Behind(BTreeSet<String>),
}

fn two_in_one() -> Error {
    Error::usage("cannot change the rootfs image and the hosts of a cluster in one run")
        .hint("upgrade it first, then `imgctl add` the hosts")
}

/// Whether one of `images` is a rootfs that the cluster does not have.
fn is_newer(current: &Clusterfile, images: &[String], work: &Work<'_>) -> Result<bool> {
    let read = work.images(images)?;
    Ok(read.iter().filter(|image| image.kind == ImageKind::Rootfs).any(|image| {
        let digest = image.digest.to_string();
        let mounts = &current.cluster.status.mounts;
        !mounts
            .iter()
            .any(|mount| mount.image == image.name && mount.digest.as_ref() == Some(&digest))
    }))
}

#[derive(Clone, Debug)]
pub struct Application {
    pub clusterfile: Clusterfile,
    pub additions: Additions,
    /// Recipients (`age1…`), and files of recipients, to encrypt the cluster's state to.
    pub encrypt_state: Vec<String>,
    /// Continues even if hosts to be removed do not answer.
    pub force: bool,
    pub wait: Wait,
    pub settings: SettingsChoices,
    pub options: RunOptions,
}

/// Creates or changes a cluster to match a Clusterfile. Other settings of hosts that stay come first:
/// hosts that join get them as well.
pub fn apply(request: &Application, session: &Session<'_>) -> Result<()> {
    if apply_once(request, session)? == Next::Again {
        apply_once(request, session)?;
    }
    Ok(())
}

fn apply_once(request: &Application, session: &Session<'_>) -> Result<Next> {
    let mut desired = request.clusterfile.clone();
    let name = &request.clusterfile.cluster.name;
    let work = Work::begin_asking_hosts(Operation::Apply, name, &request.options, session)?;
    work.encrypt_state(&request.encrypt_state)?;
    // A file may be a copy of another cluster's.
    desired.cluster.uid = None;
    if let Some(current) = &work.current {
        // The recorded state holds the cluster's status; the file does not.
        desired.cluster.created.clone_from(&current.cluster.created);
        desired.cluster.status = current.cluster.status.clone();
    }
    request.additions.add_to(&mut desired);
    let prepared = work.prepare(desired)?;
    let given = &request.additions.environment;
    settings::tell_misspelled(given, &prepared.context.images, session.front.as_ref())?;
    settings::check(&prepared.context)?;
    if let Some(change) = reconfigure::differs(&work, &prepared)? {
        let went = reconfigure::begin(&work, &change, &request.settings);
        drop(work);
        let choices = reconfigure::choices(&request.settings);
        let is_done = upgrade::finish(went, name, &choices, &request.options, session)?;
        return Ok(if is_done && change.has_more { Next::Again } else { Next::Nothing });
    }
    for image in &prepared.change.unlisted {
        session.front.note(&format!(
            "{image} is no longer in the file but stays installed; run `imgctl uninstall {}` to \
             remove an application",
            quote(image)
        ));
    }
    let mut change = work.change(&prepared, request.wait)?;
    if !change.install.is_empty() {
        let own = &request.additions.command;
        let command = if own.is_empty() { &prepared.desired.cluster.command } else { own };
        change.replacement = replacement(command, &change.install)?;
    }
    work.carry_out(&prepared, request.force, |execution, context| {
        change::plan(execution, context, &change)
    })?;
    Ok(Next::Nothing)
}
