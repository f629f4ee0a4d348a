//! `imgctl inplace plan`, `apply`, `status`, `rollback`.

mod arguments;
pub(crate) mod view;

use clap::{Args, Subcommand};

use crate::cli::context::Context;
use arguments::{ApplyArgs, PlanArgs, RollbackArgs, StatusArgs};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_cluster::inplace::request::checked;
use imgctl_ops::inplace::{self, ChangeRequest, UndoRequest};

/// Change the images of running Pods without rescheduling them
#[derive(Args, Debug)]
#[command(
    after_help = "Containers restart with their new image in the same Pod, which keeps its address, node and volumes.
docs/inplace.md describes the risks.

Examples:
  imgctl inplace plan --workload deployment/shop/web --set app=registry.example.com/web:v2
  imgctl inplace apply --workload deployment/shop/web --set app=registry.example.com/web:v2 --template sync
  imgctl inplace status
  imgctl inplace rollback --id 20260401T101500Z-web"
)]
pub(crate) struct InplaceArgs {
    #[command(subcommand)]
    command: InplaceVerb,
}

#[derive(Debug, Subcommand)]
enum InplaceVerb {
    Plan(Box<PlanArgs>),
    Apply(Box<ApplyArgs>),
    Status(Box<StatusArgs>),
    Rollback(Box<RollbackArgs>),
}

/// Runs one of the subcommands.
pub(crate) fn run(args: &InplaceArgs, context: &Context) -> Result<()> {
    match &args.command {
        InplaceVerb::Plan(args) => plan(args, context),
        InplaceVerb::Apply(args) => apply(args, context),
        InplaceVerb::Status(args) => status(args, context),
        InplaceVerb::Rollback(args) => roll_back(args, context),
    }
}

fn plan(args: &PlanArgs, context: &Context) -> Result<()> {
    let session = args.change.access.session(context)?;
    let plan = inplace::plan(&args.change.request()?, &session)?;
    view::plan(&plan, context)?;
    if plan.problems.is_empty() {
        return Ok(());
    }
    let what = "the plan cannot be carried out, for the reasons above";
    Err(Error::new(Kind::CheckFailed, what))
}

fn apply(args: &ApplyArgs, context: &Context) -> Result<()> {
    let request = ChangeRequest {
        plan_digest: args.plan_digest.clone(),
        rollback_all: args.rollback_all,
        ..args.change.request()?
    };
    inplace::apply(&request, &args.change.access.session(context)?)
}

fn roll_back(args: &RollbackArgs, context: &Context) -> Result<()> {
    let request = UndoRequest {
        access: args.access.cluster(),
        id: args.id.clone(),
        selection: args.what.selection(args.access.namespace()?)?,
        care: args.care.care()?,
        dry_run: args.dry_run,
    };
    match inplace::undo(&request, &args.access.session(context)?)? {
        Some(plan) => view::plan(&plan, context),
        None => Ok(()),
    }
}

fn status(args: &StatusArgs, context: &Context) -> Result<()> {
    let access = &args.access;
    let namespace = access.namespace.as_deref();
    let namespace = namespace.map(|name| checked(name, "a namespace")).transpose()?;
    let drift =
        inplace::status(&access.cluster(), namespace.as_deref(), &access.session(context)?)?;
    view::status(&drift.report, &drift.runs, context)?;
    if drift.report.is_well() {
        return Ok(());
    }
    let what = format!(
        "workloads whose Pods run other images than their templates: {}",
        drift.report.workloads.len()
    );
    Err(Error::new(Kind::CheckFailed, what).hint(
        "run `imgctl inplace rollback` to restore the former images, or `apply --template sync` to \
         update the templates",
    ))
}
