//! `imgctl apply`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_options::{DesiredArgs, ValuesArgs};
use crate::cli::cluster_work::{Work, WorkArgs, change_of, replacement};
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::wait_options::WaitArgs;
use crate::cli::work_report::report;
use imgctl_base::error::Result;
use imgctl_cluster::pipeline::change;

/// Create or change a cluster to match a Clusterfile
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Creates the cluster if it does not exist. Otherwise, installs missing images, adds hosts that are new
in the file and removes hosts that are no longer in it, all in one run.

Examples:
  imgctl apply -f Clusterfile --dry-run
  imgctl apply -f Clusterfile --set replicas=3 --env LOG=debug"
)]
pub(crate) struct ApplyArgs {
    /// Path of the Clusterfile; `-` is stdin
    #[arg(
        short = 'f',
        long = "file",
        visible_alias = "Clusterfile",
        value_name = "FILE",
        default_value = "Clusterfile"
    )]
    file: PathBuf,

    #[command(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    ssh: SshArgs,

    /// Continue even if hosts to be removed do not answer
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Applies the Clusterfile.
pub(crate) fn run(args: &ApplyArgs, context: &Context) -> Result<()> {
    let mut desired = args.values.clusterfile(&args.file, context)?;
    let name = desired.cluster.name.clone();
    let work = Work::begin("apply", &name, &args.work, context)?.over(&args.ssh);
    args.desired.add_documents(&mut desired, context)?;
    if let Some(current) = &work.current {
        // The recorded state holds the cluster's status; the file does not.
        desired.cluster.created.clone_from(&current.cluster.created);
        desired.cluster.status = current.cluster.status.clone();
    }
    desired.cluster.set_flag_environment(&args.desired.environment()?);
    let prepared = work.prepare(desired, &args.registry)?;
    for image in &prepared.change.unlisted {
        context.ui.note(&format!(
            "{image} is no longer in the file but stays installed; run `imgctl uninstall {image}` \
             to remove an application"
        ));
    }
    let command = if args.desired.cmd.is_empty() {
        &prepared.desired.cluster.command
    } else {
        &args.desired.cmd
    };
    let replacement = if prepared.change.install.is_empty() {
        None
    } else {
        replacement(command, &prepared.change.install)?
    };
    let mut change = change_of("apply", &prepared, replacement, &[], work.current.as_ref());
    change.wait = args.wait.wait()?;
    let summary = work.carry_out(&prepared, &args.ssh, args.force, |means, scene| {
        change::plan(means, scene, &change)
    })?;
    match summary {
        Some(summary) => report(&summary, &name, context),
        None => Ok(()),
    }
}
