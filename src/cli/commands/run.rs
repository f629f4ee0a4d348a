//! `imgctl run`.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;

use crate::cli::cluster_options::{self, ClusterArg, DesiredArgs, HostsArgs};
use crate::cli::cluster_work::{Work, WorkArgs, change_of, replacement};
use crate::cli::commands::upgrade;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_report::report;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_cluster::cluster::clusterfile::{Clusterfile, Ssh};
use imgctl_cluster::cluster::desired::HostFlags;
use imgctl_cluster::cluster::image::ImageKind;
use imgctl_cluster::cluster::local_addresses;
use imgctl_cluster::pipeline::change;
use imgctl_cluster::pipeline::executor::Summary;
use imgctl_cluster::upgrade::document::few;
use imgctl_host::host::address;
use imgctl_transfer::transfer::{self, Input, LoadOptions};

/// Create a cluster from images, or install images on an existing one
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "The first run creates the cluster from the images, one of which is a rootfs image. Without hosts, the
cluster consists of this machine alone, reached without SSH. On an existing cluster, missing images
are installed and missing hosts are added. After a failure, run the same command again: it resumes
where it stopped, and does nothing when everything is done.

Examples:
  imgctl run etcd-cluster:v1 --masters 10.0.0.11,10.0.0.12,10.0.0.13
  imgctl run labring/kubernetes:v1.29.9 labring/helm:v3.14 labring/cilium:v1.15 --masters 10.0.0.1 --nodes 10.0.0.2-10.0.0.9
  imgctl run kubernetes.tar --masters 10.0.0.1 -u ops --sudo-passwd-file pw --dry-run
  imgctl run labring/ingress-nginx:v1.11 --env replicas=3"
)]
pub(crate) struct RunArgs {
    /// Images or image archives, in installation order
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    hosts: HostsArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    /// Also run the commands of images that the cluster already has
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Creates or extends the cluster.
pub(crate) fn run(args: &RunArgs, context: &Context) -> Result<()> {
    run_once(args, context, false)
}

/// `is_second`: hosts that an upgrade had skipped are upgraded now; the rest of the run remains.
fn run_once(args: &RunArgs, context: &Context, is_second: bool) -> Result<()> {
    let name = &args.cluster.cluster;
    let work = Work::begin("run", name, &args.work, context)?.over(&args.ssh);
    let images = loaded(&args.images, context)?;
    let (login, _) = args.ssh.resolve(context)?;
    let flags = args.hosts.flags(Ssh::of_login(&login, args.ssh.port));
    let existing = work.current.as_ref().filter(|current| current.exists());
    if let Some(current) = existing
        && is_newer(current, &images, args, context)?
    {
        if !flags.is_empty() {
            return Err(two_in_one());
        }
        return upgrade::run_newer(&work, &images, &args.ssh, &args.registry).map(|_| ());
    }
    let mut desired = match existing {
        Some(current) => {
            let mut desired = current.clone();
            desired.cluster.add_images(&images);
            add_new_hosts(&mut desired, &flags, context)?;
            desired
        }
        // The first run failed: a retry without host flags means the same hosts.
        None => match &work.current {
            Some(unfinished) if flags.is_empty() => {
                let mut desired = unfinished.clone();
                desired.cluster.add_images(&images);
                desired
            }
            _ => {
                let mut made = Clusterfile::new(name, &images, &flags, local_addresses::primary())?;
                made.cluster.command.clone_from(&args.desired.cmd);
                made
            }
        },
    };
    desired.cluster.set_flag_environment(&args.desired.environment()?);
    args.desired.add_documents(&mut desired, context)?;
    let prepared = work.prepare(desired, &args.registry)?;
    let again: Vec<String> = match args.force {
        true => images.clone(),
        false => Vec::new(),
    };
    let replacement = replacement(&args.desired.cmd, &images)?;
    let mut change = change_of("run", &prepared, replacement, &again, work.current.as_ref());
    change.wait = args.wait.wait()?;
    let rootfs = prepared.scene.rootfs().map(|image| image.name.clone());
    let rootfs = rootfs.filter(|name| images.contains(name));
    let ran = work.with_means(&prepared, &args.ssh, args.force, |means| {
        let planned = change::plan(means, &prepared.scene, &change)?;
        match planned.behind.is_empty() || rootfs.is_none() {
            true => work.carry_out_plan(&planned, means).map(Ran::Through),
            false => Ok(Ran::Behind(planned.behind)),
        }
    })?;
    match ran {
        Ran::Through(Some(summary)) => report(&summary, name, context),
        Ran::Through(None) => Ok(()),
        Ran::Behind(hosts) => {
            if !change.add.is_empty() {
                return Err(two_in_one().hint(format!(
                    "an upgrade skipped {}: upgrade these before adding hosts",
                    few(&hosts.into_iter().collect::<Vec<_>>())
                )));
            }
            let to: Vec<String> = rootfs.into_iter().collect();
            let is_done = upgrade::run_newer(&work, &to, &args.ssh, &args.registry)?;
            drop(work);
            match is_done && !is_second && !change.install.is_empty() {
                true => run_once(args, context, true),
                false => Ok(()),
            }
        }
    }
}

/// Outcome of a run.
enum Ran {
    /// `None` means a dry run.
    Through(Option<Summary>),
    /// These hosts have a different rootfs image than the cluster; nothing was changed.
    Behind(BTreeSet<String>),
}

fn two_in_one() -> Error {
    Error::usage("cannot change the rootfs image and the hosts of a cluster in one run")
        .hint("upgrade it first, then `imgctl add` the hosts")
}

/// Whether one of `images` is a rootfs that the cluster does not have.
fn is_newer(
    current: &Clusterfile,
    images: &[String],
    args: &RunArgs,
    context: &Context,
) -> Result<bool> {
    let name = &args.cluster.cluster;
    let read = cluster_options::images(images, name, None, &args.registry, context)?;
    Ok(read.iter().filter(|image| image.kind == ImageKind::Rootfs).any(|image| {
        let digest = image.digest.to_string();
        let mounts = &current.cluster.status.mounts;
        !mounts
            .iter()
            .any(|mount| mount.image == image.name && mount.digest.as_ref() == Some(&digest))
    }))
}

/// Adds the hosts of the flags that the cluster does not have; existing hosts may be named again.
pub(crate) fn add_new_hosts(
    desired: &mut Clusterfile,
    flags: &HostFlags,
    context: &Context,
) -> Result<()> {
    let present = desired.cluster.addresses()?;
    let default = flags.ssh.port.unwrap_or(address::SSH_PORT);
    let mut known = Vec::new();
    let mut unknown = |list: &Option<String>| -> Result<Option<String>> {
        let Some(list) = list else { return Ok(None) };
        let mut new = Vec::new();
        for address in address::parse_list(list, default)? {
            match present.contains(&address) {
                true => known.push(address.to_string()),
                false => new.push(match address.name.contains(':') {
                    true => format!("[{}]:{}", address.name, address.port),
                    false => format!("{}:{}", address.name, address.port),
                }),
            }
        }
        Ok((!new.is_empty()).then(|| new.join(",")))
    };
    let mut new = flags.clone();
    new.masters = unknown(&flags.masters)?;
    new.nodes = unknown(&flags.nodes)?;
    if !known.is_empty() && (new.masters.is_some() || new.nodes.is_some()) {
        context.ui.note(&format!(
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

/// Loads archives among the arguments and replaces them with the images they contain.
pub(crate) fn loaded(images: &[String], context: &Context) -> Result<Vec<String>> {
    const ENDS: [&str; 8] =
        [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".oci", ".tzst"];
    let mut names = Vec::new();
    for image in images {
        let path = Path::new(image);
        if !ENDS.iter().any(|end| image.ends_with(end)) || !path.exists() {
            names.push(Reference::parse(image).map(|_| image.clone())?);
            continue;
        }
        let found = transfer::load(
            context.store()?,
            Input::Path(path),
            &LoadOptions::default(),
            context.ui.reporter(),
        )?;
        let before = names.len();
        for image in &found {
            names.extend(image.references.first().map(ToString::to_string));
        }
        if names.len() == before {
            return Err(Error::bad_content(format!(
                "cannot run {image}: it contains no image with a name"
            ))
            .hint(format!("name it with imgctl load {image} --tag NAME")));
        }
    }
    Ok(names)
}
