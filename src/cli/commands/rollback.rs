//! `imgctl rollback`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_options::ClusterArg;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::upgrade_choices::{BackPauseArg, MovingArgs};
use crate::cli::work_options::WorkArgs;
use imgctl_base::error::Result;
use imgctl_ops::upgrade::{RollbackRequest, Scope, rollback};

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
    #[arg(long, value_enum)]
    pause_after: Option<BackPauseArg>,

    #[command(flatten)]
    moving: MovingArgs,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Rolls back.
pub(crate) fn run(args: &RollbackArgs, context: &Context) -> Result<()> {
    let request = RollbackRequest {
        cluster: args.cluster.cluster.clone(),
        scope: args.scope.as_deref().map(Scope::parse).transpose()?,
        id: args.id.clone(),
        preview: args.plan,
        from_snapshot: args.from_snapshot.clone(),
        choices: args.moving.of_rollback(args.pause_after)?,
        options: args.work.options(context)?,
    };
    rollback(&request, &context.session(&args.ssh, &args.registry)?)
}
