//! `imgctl plan`: what another verb would do, for each verb that changes a cluster.

use clap::{Args, Subcommand};

use crate::cli::commands::adopt::{self, AdoptArgs};
use crate::cli::commands::apply::{self, ApplyArgs};
use crate::cli::commands::backup::{self, BackupArgs, RestoreArgs};
use crate::cli::commands::cluster::{self, AddArgs, DeleteArgs, ResetArgs, RunArgs, UninstallArgs};
use crate::cli::commands::renumber::{self, RenumberArgs};
use imgctl_base::error::Result;
use imgctl_frontend::context::Context;

/// Show what a command would do on which hosts, without changing anything
#[derive(Args, Debug)]
#[command(after_help = "Same as the command with --dry-run: hosts are queried, nothing is changed.

Examples:
  imgctl plan run etcd-cluster:v1 --masters 10.0.0.11,10.0.0.12,10.0.0.13
  imgctl plan apply -f Clusterfile --json
  imgctl plan reset")]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: Planned,
}

/// Commands that can be planned.
#[derive(Debug, Subcommand)]
enum Planned {
    Run(Box<RunArgs>),
    Apply(Box<ApplyArgs>),
    Add(Box<AddArgs>),
    Delete(Box<DeleteArgs>),
    Reset(Box<ResetArgs>),
    Uninstall(Box<UninstallArgs>),
    Renumber(Box<RenumberArgs>),
    Adopt(Box<AdoptArgs>),
    Backup(Box<BackupArgs>),
    Restore(Box<RestoreArgs>),
}

pub(crate) fn plan(args: PlanArgs, context: &Context) -> Result<()> {
    macro_rules! dry {
        ($args:ident => $verb:path) => {{
            let mut args = $args;
            args.work.dry_run = true;
            $verb(&args, context)
        }};
    }
    match args.command {
        Planned::Run(args) => dry!(args => cluster::run),
        Planned::Apply(args) => dry!(args => apply::apply),
        Planned::Add(args) => dry!(args => cluster::add),
        Planned::Delete(args) => dry!(args => cluster::delete),
        Planned::Reset(args) => dry!(args => cluster::reset),
        Planned::Uninstall(args) => dry!(args => cluster::uninstall),
        Planned::Renumber(args) => dry!(args => renumber::run),
        Planned::Adopt(args) => dry!(args => adopt::adopt),
        Planned::Backup(args) => dry!(args => backup::backup),
        Planned::Restore(args) => dry!(args => backup::restore),
    }
}
