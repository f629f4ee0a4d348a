//! `imgctl upgrade` and `imgctl rollback`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_frontend::choice::choice;
use imgctl_frontend::cluster_options::{ClusterArg, WorkArgs};
use imgctl_frontend::source_options::SourceArgs;
use imgctl_frontend::upgrade_choices::{ChoiceArgs, MovingArgs, PAUSES, PAUSES_BACK};
use imgctl_frontend::{
    context::Context, registry_options::RegistryArgs, ssh_options::SshArgs, upgrade_view,
};
use imgctl_ops::upgrade::{
    self, AbortRequest, Preview, ResumeRequest, RollbackRequest, Scope, UpgradeRequest,
};
use imgctl_upgrade::document::{Document, PauseAfter};

/// Upgrade a cluster to a newer version of its rootfs image, host by host
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "The plan is made before the upgrade starts: --plan shows it, --save-plan saves it. Hosts are touched
only when every check has passed, all files are on all hosts and a backup is made. Control planes
are upgraded one by one, then a canary, then workers in batches; a host that is unhealthy afterwards
stops the upgrade. After an interruption, `imgctl upgrade resume` continues and `imgctl rollback`
rolls back.

Examples:
  imgctl upgrade kubernetes:v1.34 --plan
  imgctl upgrade kubernetes:v1.34 --batch 10% --max-unavailable 2
  imgctl upgrade kubernetes:v1.33 kubernetes:v1.34 --hop auto
  imgctl upgrade etcd-cluster:v3.5.1 --pause-after canary
  imgctl upgrade kubernetes:v1.34 --window 'Sat,Sun 02:00-05:00 Europe/Berlin'
  imgctl upgrade status
  imgctl upgrade resume"
)]
pub(crate) struct UpgradeArgs {
    #[command(subcommand)]
    command: Option<Upgrade>,

    /// Target rootfs image (one for each minor version on the way), and images to install with it
    #[arg(required_unless_present = "plan_file", value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    /// Show what would happen to every host, without changing anything
    #[arg(long)]
    plan: bool,

    /// Write the plan to a file for --plan-file, without changing anything
    #[arg(long, value_name = "FILE")]
    save_plan: Option<PathBuf>,

    /// Carry out a saved plan if it is still valid
    #[arg(long, value_name = "FILE", conflicts_with = "save_plan")]
    plan_file: Option<PathBuf>,

    /// Name of this upgrade [default: the version and part of the plan's digest]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,

    #[command(flatten)]
    choices: ChoiceArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Operations on an open upgrade.
#[derive(Clone, Debug, Subcommand)]
enum Upgrade {
    /// Show the progress of the upgrade, and past upgrades
    Status(OpenArgs),
    /// Pause the running upgrade at the next step
    Pause(OpenArgs),
    /// Resume the open upgrade
    Resume(Box<ResumeArgs>),
    /// Abort an upgrade that has not touched a host yet
    Abort(Box<AbortArgs>),
}

#[derive(Args, Clone, Debug)]
struct OpenArgs {
    #[command(flatten)]
    cluster: ClusterArg,
}

#[derive(Args, Clone, Debug)]
struct ResumeArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Stop after this part
    #[arg(long, value_parser = choice::<PauseAfter>(PAUSES))]
    pause_after: Option<PauseAfter>,

    /// Change hosts now, even if the windows of the upgrade are closed
    #[arg(long)]
    ignore_windows: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Args, Clone, Debug)]
struct AbortArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Abort even if hosts have been touched; those hosts stay as the upgrade left them
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Plans, begins or resumes an upgrade, or shows or ends the open one.
pub(crate) fn upgrade(args: &UpgradeArgs, context: &Context) -> Result<()> {
    match &args.command {
        Some(Upgrade::Status(args)) => {
            let cluster = &args.cluster.name(context)?;
            let progress = upgrade::progress(cluster, &context.plain_session()?)?;
            upgrade_view::show_progress(cluster, &progress, context)
        }
        Some(Upgrade::Pause(args)) => {
            upgrade::pause(&args.cluster.name(context)?, &context.plain_session()?)
        }
        Some(Upgrade::Resume(args)) => {
            let request = ResumeRequest {
                cluster: args.cluster.name(context)?,
                pause_after: args.pause_after,
                ignore_windows: args.ignore_windows,
                options: args.source.with(args.work.options(context)?),
            };
            upgrade::resume(&request, &context.session(&args.ssh, &args.registry)?)
        }
        Some(Upgrade::Abort(args)) => {
            let request = AbortRequest { cluster: args.cluster.name(context)?, force: args.force };
            upgrade::abort(&request, &context.session(&args.ssh, &args.registry)?)
        }
        None => {
            refuse_late_word(&args.images)?;
            let request = request(args, context)?;
            upgrade::upgrade(&request, &context.session(&args.ssh, &args.registry)?)
        }
    }
}

/// Fails if an operation such as `resume` comes after flags, where it would be taken for an image.
fn refuse_late_word(images: &[String]) -> Result<()> {
    match images {
        [word] if Upgrade::has_subcommand(word) => {
            Err(Error::usage(format!("`{word}` follows flags of `upgrade`"))
                .hint(format!("put it first: `imgctl upgrade {word} …`")))
        }
        _ => Ok(()),
    }
}

fn request(args: &UpgradeArgs, context: &Context) -> Result<UpgradeRequest> {
    let saved = args.plan_file.as_deref().map(read_plan).transpose()?;
    if saved.is_some() {
        args.choices.check_none()?;
    }
    let is_preview = args.plan || args.save_plan.is_some() || args.work.dry_run;
    Ok(UpgradeRequest {
        cluster: args.cluster.name(context)?,
        images: args.images.clone(),
        saved,
        id: args.id.clone(),
        choices: args.choices.of_upgrade()?,
        preview: is_preview.then(|| Preview {
            save: args.save_plan.clone(),
            steps: !args.plan && args.save_plan.is_none(),
        }),
        options: args.source.with(args.work.options(context)?),
    })
}

fn read_plan(path: &Path) -> Result<Document> {
    let bytes = std::fs::read(path).path("read", path)?;
    Document::parse(&bytes, &path.display().to_string())
}

/// Roll back a cluster to its state before the last upgrade
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Restores the former files, programs and settings of hosts that an upgrade has touched: workers
first, then control planes. What cannot be restored that way (data that a newer version has
written) comes from the snapshot that the upgrade made; everything written since then is lost.

Examples:
  imgctl rollback --plan
  imgctl rollback
  imgctl rollback --scope node=10.0.0.21
  imgctl rollback --scope workers
  imgctl rollback --from-snapshot ~/.sealos/default/backup/v1.34.9-1a2b3c4d/snapshot.db --i-understand-data-loss"
)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Hosts to roll back: node=HOST, workers, cluster [default: cluster]
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,

    /// Upgrade to roll back [default: the open one, otherwise the last]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,

    /// Show what would happen, without changing anything
    #[arg(long)]
    plan: bool,

    /// Snapshot of the cluster's data to restore, a file on this machine
    #[arg(long, value_name = "FILE", requires = "i_understand_data_loss")]
    from_snapshot: Option<PathBuf>,

    /// Accept the loss of everything written since the snapshot
    #[arg(long)]
    i_understand_data_loss: bool,

    /// Stop after this part; `imgctl upgrade resume` continues
    #[arg(long, value_parser = choice::<PauseAfter>(PAUSES_BACK))]
    pause_after: Option<PauseAfter>,

    #[command(flatten)]
    moving: MovingArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn rollback(args: &RollbackArgs, context: &Context) -> Result<()> {
    let request = RollbackRequest {
        cluster: args.cluster.name(context)?,
        scope: args.scope.as_deref().map(Scope::parse).transpose()?,
        id: args.id.clone(),
        preview: args.plan,
        from_snapshot: args.from_snapshot.clone(),
        choices: args.moving.of_rollback(args.pause_after)?,
        options: args.work.options(context)?,
    };
    upgrade::rollback(&request, &context.session(&args.ssh, &args.registry)?)
}
