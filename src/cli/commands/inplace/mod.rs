//! `imgctl inplace plan`, `apply`, `status`, `rollback`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_frontend::cluster_options::ClusterArg;
use imgctl_frontend::inplace_view as view;
use imgctl_frontend::{
    context::Context, duration, registry_options::RegistryArgs, report_output::RunReportArg,
    ssh_options::SshArgs,
};
use imgctl_inplace::batches::Share;
use imgctl_inplace::{
    request,
    request::{Selection, TemplatePolicy, Verify, checked},
};
use imgctl_ops::inplace::{
    self, Care, Change, ChangeRequest, ClusterAccess, UndoRequest, nothing_said,
};
use imgctl_ops::session::Session;

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
    args.report.request(context)?;
    let plan = inplace::plan(&args.change.request(context)?, &session)?;
    context.report_in_place_plan(&plan)?;
    view::plan(&plan, context)?;
    if plan.problems.is_empty() {
        return Ok(());
    }
    let what = "the plan cannot be carried out, for the reasons above";
    Err(Error::new(Kind::CheckFailed, what))
}

fn apply(args: &ApplyArgs, context: &Context) -> Result<()> {
    args.report.request(context)?;
    let request = ChangeRequest {
        plan_digest: args.plan_digest.clone(),
        rollback_all: args.rollback_all,
        ..args.change.request(context)?
    };
    inplace::apply(&request, &args.change.access.session(context)?)
}

fn roll_back(args: &RollbackArgs, context: &Context) -> Result<()> {
    args.report.request(context)?;
    let request = UndoRequest {
        access: args.access.cluster(context)?,
        id: args.id.clone(),
        selection: args.what.selection(args.access.namespace()?)?,
        care: args.care.care()?,
        dry_run: args.dry_run,
    };
    match inplace::undo(&request, &args.access.session(context)?)? {
        Some(plan) => {
            context.report_in_place_plan(&plan)?;
            view::plan(&plan, context)
        }
        None => Ok(()),
    }
}

fn status(args: &StatusArgs, context: &Context) -> Result<()> {
    let access = &args.access;
    let namespace = access.namespace.as_deref();
    let namespace = namespace.map(|name| checked(name, "a namespace")).transpose()?;
    let drift = inplace::status(
        &access.cluster(context)?,
        namespace.as_deref(),
        &access.session(context)?,
    )?;
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

/// Help heading for the flags that control how Pods are changed.
const HOW: &str = "How";

/// Show the change planned for each Pod, without changing anything
#[derive(Args, Debug)]
#[command(after_help = "Exit code 10: the plan cannot be carried out.

Examples:
  imgctl inplace plan --workload deployment/shop/web --set app=registry.example.com/web:v2
  imgctl inplace plan -n shop --selector app=web --resize app=cpu=500m,memory=1Gi --json")]
struct PlanArgs {
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    report: RunReportArg,
}

/// Change Pods in batches
#[derive(Args, Debug)]
#[command(
    after_help = "The first problem stops the run; the Pods of that batch get their former images back.

Examples:
  imgctl inplace apply --workload deployment/shop/web --set app=registry.example.com/web:v2 --template sync --yes
  imgctl inplace apply --workload sts/db --set db=registry.example.com/db:14.2 --template keep --batch 1,100%
  imgctl inplace apply --id 20260401T101500Z-web"
)]
struct ApplyArgs {
    /// Fail unless the current state yields this plan
    #[arg(long, value_name = "DIGEST", help_heading = HOW)]
    plan_digest: Option<String>,
    /// After a failure, also restore the previous images of Pods in earlier batches
    #[arg(long, help_heading = HOW)]
    rollback_all: bool,
    #[command(flatten)]
    report: RunReportArg,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Show where Pods run other images than their templates specify
#[derive(Args, Debug)]
#[command(after_help = "Exit code 10: there are such workloads, or interrupted runs.

Examples:
  imgctl inplace status
  imgctl inplace status -n shop --json")]
struct StatusArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// Restore the previous images of Pods
#[derive(Args, Debug)]
#[command(
    after_help = "The former images are recorded in the run's journal and in an annotation of each Pod.

Examples:
  imgctl inplace rollback --id 20260401T101500Z-web
  imgctl inplace rollback --workload deployment/shop/web --template sync --yes"
)]
struct RollbackArgs {
    /// Run to undo [default: the last run of each Pod]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    #[command(flatten)]
    what: WhichArgs,
    #[command(flatten)]
    care: CareArgs,
    /// Show what would be done, without changing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    report: RunReportArg,
    #[command(flatten)]
    access: AccessArgs,
}

/// Change to plan or carry out.
#[derive(Args, Clone, Debug)]
struct ChangeArgs {
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    care: CareArgs,
    /// Name of the run; an existing run of that name is resumed
    #[arg(long, value_name = "NAME", help_heading = HOW)]
    id: Option<String>,
    #[command(flatten)]
    access: AccessArgs,
}

impl ChangeArgs {
    fn request(&self, context: &Context) -> Result<ChangeRequest> {
        Ok(ChangeRequest {
            access: self.access.cluster(context)?,
            change: self.what.change(self.access.namespace()?)?,
            care: self.care.care()?,
            id: self.id.clone(),
            plan_digest: None,
            rollback_all: false,
        })
    }
}

/// Selection of Pods.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which Pods")]
#[group(id = "inplace-which", multiple = true)]
struct WhichArgs {
    /// Pods of a workload: deployment/NAMESPACE/NAME, sts/NAME, ds/NAME, rs/NAME, job/NAME
    #[arg(long, value_name = "KIND/NS/NAME", conflicts_with_all = ["selector", "pods"])]
    workload: Option<String>,
    /// Pods with these labels
    #[arg(long, value_name = "LABELS", conflicts_with = "pods")]
    selector: Option<String>,
    /// Pods with these names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pods: Vec<String>,
}

impl WhichArgs {
    /// Returns the selection; `None` if no flag selects Pods.
    fn selection(&self, namespace: String) -> Result<Option<Selection>> {
        if let Some(workload) = &self.workload {
            return Selection::workload(workload, &namespace).map(Some);
        }
        if let Some(selector) = &self.selector {
            return Ok(Some(Selection::Labels { namespace, selector: selector.clone() }));
        }
        if self.pods.is_empty() {
            return Ok(None);
        }
        let names: Result<Vec<String>> =
            self.pods.iter().map(|name| checked(name, "a Pod")).collect();
        Ok(Some(Selection::Pods { namespace, names: names? }))
    }
}

/// Selection of Pods, and the change to make.
#[derive(Args, Clone, Debug, Default)]
struct WhatArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// New image for a container, given by name (may be repeated)
    #[arg(long, value_name = "CONTAINER=IMAGE")]
    set: Vec<String>,
    /// New CPU and memory for a container: app=cpu=500m,memory=1Gi,limits.cpu=1 (may be repeated)
    #[arg(long, value_name = "CONTAINER=RESOURCES")]
    resize: Vec<String>,
}

impl WhatArgs {
    /// Returns the change; `None` if no flag selects Pods or changes them.
    fn change(&self, namespace: String) -> Result<Option<Change>> {
        let Some(selection) = self.which.selection(namespace)? else {
            if self.set.is_empty() && self.resize.is_empty() {
                return Ok(None);
            }
            return Err(nothing_said());
        };
        let set = self.set.iter().map(|set| request::set(set)).collect::<Result<_>>()?;
        let resize = self.resize.iter().map(|resize| request::resize(resize));
        let change = Change { selection, set, resize: resize.collect::<Result<_>>()? };
        if change.set.is_empty() && change.resize.is_empty() {
            return Err(Error::usage("no changes requested")
                .hint("pass --set CONTAINER=IMAGE or --resize CONTAINER=cpu=500m"));
        }
        Ok(Some(change))
    }
}

/// Flags that control how Pods are changed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = HOW)]
struct CareArgs {
    /// How to treat the workload's template [default: refuse]
    #[arg(long, value_name = "HOW")]
    template: Option<TemplateMode>,
    /// Number or percentage of Pods changed by the end of each batch
    #[arg(long, value_name = "LIST", default_value = "1,10%,50%,100%", value_delimiter = ',')]
    batch: Vec<String>,
    /// Maximum number of Pods of a workload out of service at once: 1, 10%
    #[arg(long, value_name = "N", default_value = "1")]
    max_unavailable: String,
    /// Maximum time for a Pod to become ready
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    ready_timeout: String,
    /// Time that a Pod must stay ready
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    bake: String,
    /// How to pull the new image to Nodes beforehand [default: ssh; job with --kubeconfig]
    #[arg(long, value_name = "HOW")]
    pre_pull: Option<PrePull>,
    /// How to recognize the running image
    #[arg(long, value_name = "HOW", default_value = "image")]
    verify: VerifyMode,
    /// Readiness gate to close while containers restart, in addition to InPlaceUpdateReady
    #[arg(long, value_name = "TYPE")]
    gate: Option<String>,
    /// Also change sidecars (init containers that keep running)
    #[arg(long)]
    include_sidecars: bool,
    /// Also change init containers; takes effect only when a Pod is recreated
    #[arg(long)]
    include_init: bool,
    /// Also change workloads with one replica, which are out of service meanwhile
    #[arg(long)]
    allow_single_replica: bool,
    /// Also change Pods that an unknown owner manages
    #[arg(long)]
    force_owner: bool,
}

impl CareArgs {
    fn care(&self) -> Result<Care> {
        Ok(Care {
            template: self.template.map(|mode| match mode {
                TemplateMode::Refuse => TemplatePolicy::Refuse,
                TemplateMode::Keep => TemplatePolicy::Keep,
                TemplateMode::Sync => TemplatePolicy::Sync,
            }),
            batches: self.batch.iter().map(|one| Share::parse(one)).collect::<Result<_>>()?,
            max_unavailable: Share::parse(&self.max_unavailable)?,
            verify: match self.verify {
                VerifyMode::Image => Verify::Image,
                VerifyMode::Digest => Verify::Digest,
            },
            include_sidecars: self.include_sidecars,
            include_init: self.include_init,
            allow_single_replica: self.allow_single_replica,
            force_owner: self.force_owner,
            gate: self.gate.clone(),
            pre_pull: self.pre_pull.map(|how| match how {
                PrePull::Ssh => inplace::PrePull::Ssh,
                PrePull::Job => inplace::PrePull::Job,
                PrePull::None => inplace::PrePull::None,
            }),
            ready_timeout: duration::parse(&self.ready_timeout)?,
            bake: duration::parse(&self.bake)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TemplateMode {
    /// Update the template, without a rollout
    Sync,
    /// Keep the template and record the difference in an annotation
    Keep,
    /// Do not change Pods of workloads
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrePull {
    /// Pull on the hosts with crictl
    Ssh,
    /// Run a short-lived Pod on each Node
    Job,
    /// Do not pull beforehand: pulling adds to the time out of service
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VerifyMode {
    /// By name, and by digest where it is known
    Image,
    /// By digest
    Digest,
}

/// Access to the cluster.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Cluster options")]
struct AccessArgs {
    #[command(flatten)]
    cluster: ClusterArg,
    /// Use the API that this kubeconfig names, whatever the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace [default: default; for `status`: all]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    registry: RegistryArgs,
    #[command(flatten)]
    ssh: SshArgs,
}

impl AccessArgs {
    fn cluster(&self, context: &Context) -> Result<ClusterAccess> {
        let cluster = self.cluster.name(context)?;
        Ok(ClusterAccess { cluster, kubeconfig: self.kubeconfig.clone() })
    }

    fn session<'a>(&self, context: &'a Context) -> Result<Session<'a>> {
        context.session(&self.ssh, &self.registry)
    }

    fn namespace(&self) -> Result<String> {
        checked(self.namespace.as_deref().unwrap_or("default"), "a namespace")
    }
}
