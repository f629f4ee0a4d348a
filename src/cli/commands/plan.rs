//! `imgctl plan`.

use clap::{Args, Subcommand};

use crate::cli::commands::{add, apply, delete, reset, run, uninstall};
use crate::cli::context::Context;
use imgctl_base::error::Result;

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
    Run(Box<run::RunArgs>),
    Apply(Box<apply::ApplyArgs>),
    Add(Box<add::AddArgs>),
    Delete(Box<delete::DeleteArgs>),
    Reset(Box<reset::ResetArgs>),
    Uninstall(Box<uninstall::UninstallArgs>),
}

/// Shows the plan.
pub(crate) fn run(args: PlanArgs, context: &Context) -> Result<()> {
    match args.command {
        Planned::Run(mut args) => {
            args.work.dry_run = true;
            run::run(&args, context)
        }
        Planned::Apply(mut args) => {
            args.work.dry_run = true;
            apply::run(&args, context)
        }
        Planned::Add(mut args) => {
            args.work.dry_run = true;
            add::run(&args, context)
        }
        Planned::Delete(mut args) => {
            args.work.dry_run = true;
            delete::run(&args, context)
        }
        Planned::Reset(mut args) => {
            args.work.dry_run = true;
            reset::run(&args, context)
        }
        Planned::Uninstall(mut args) => {
            args.work.dry_run = true;
            uninstall::run(&args, context)
        }
    }
}
