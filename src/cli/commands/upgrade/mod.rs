//! `imgctl upgrade`.

pub(crate) mod open;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::cluster_options::{self, ClusterArg};
use crate::cli::cluster_work::{Work, WorkArgs};
use crate::cli::commands::run::loaded;
use crate::cli::commands::upgrade::open::Going;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use crate::cli::upgrade_choices::{ChoiceArgs, PauseArg};
use crate::cli::upgrade_close::{closing, end, verb};
use crate::cli::upgrade_images::{Start, UpgradeImage, UpgradeImages, sides};
use crate::cli::upgrade_on_failure::{self, Reaching};
use crate::cli::upgrade_replace::{self, Replacing};
use crate::cli::upgrade_work::{
    Carrying, ClusterSnapshot, PlanRequest, RunOutcome, carry, check_fresh, check_start, know,
    pipeline_of, plan_of,
};
use crate::cli::{plan_view, upgrade_lag, upgrade_view};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_cluster::cluster::image::ImageKind;
use imgctl_cluster::pipeline::execution_context::ExecutionContext;
use imgctl_cluster::pipeline::step::Step;
use imgctl_cluster::upgrade::document::{Choices, Direction, Document, HopMode};
use imgctl_cluster::upgrade::plan::Planned;
use imgctl_cluster::upgrade::upgrade_store::UpgradeStore;

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
  imgctl upgrade status
  imgctl upgrade resume"
)]
pub(crate) struct UpgradeArgs {
    #[command(subcommand)]
    command: Option<Upgrade>,

    /// Target rootfs image (one for each minor version on the way), and images to install with it
    #[arg(required_unless_present = "plan_file", value_name = "IMAGE")]
    pub(crate) images: Vec<String>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArg,

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
    pub(crate) choices: ChoiceArgs,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
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
    #[arg(long, value_enum)]
    pause_after: Option<PauseArg>,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Args, Clone, Debug)]
struct AbortArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// Abort even if hosts have been touched; they stay as they are
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Plans, begins or resumes an upgrade.
pub(crate) fn run(args: &UpgradeArgs, context: &Context) -> Result<()> {
    match &args.command {
        Some(Upgrade::Status(open)) => open::status(&open.cluster.cluster, context),
        Some(Upgrade::Pause(open)) => open::ask_pause(&open.cluster.cluster, context),
        Some(Upgrade::Resume(resume)) => open::go_on(
            &Going {
                cluster: &resume.cluster.cluster,
                pause_after: resume.pause_after.map(Into::into),
                ssh: &resume.ssh,
                work: &resume.work,
                registry: &resume.registry,
            },
            context,
        ),
        Some(Upgrade::Abort(abort)) => open::give_up(abort, context),
        None => upgrade(args, context),
    }
}

fn upgrade(args: &UpgradeArgs, context: &Context) -> Result<()> {
    let name = &args.cluster.cluster;
    let looks_only = args.plan || args.save_plan.is_some() || args.work.dry_run;
    let mut flags = args.work.clone();
    flags.dry_run = looks_only;
    let work = Work::begin("upgrade", name, &flags, context)?.over(&args.ssh);
    work.existing()?;
    let saved = args.plan_file.as_deref().map(read_plan).transpose()?;
    if let Some(saved) = &saved {
        args.choices.check_none()?;
        check_id_of(saved, args.id.as_deref())?;
    }
    let images = loaded(&args.images, context)?;
    let book = UpgradeStore::of(work.state.directory());
    if let Some(open) = book.open()? {
        return meets_open(&open, args, &images, saved.as_ref(), looks_only, work);
    }
    let (hops, install) = split(&images, saved.as_ref(), name, &args.registry, context)?;
    let choices = match &saved {
        Some(saved) => saved.choices.clone(),
        None => args.choices.choices(hops.len())?,
    };
    let beginning = Beginning {
        hops,
        install,
        choices,
        saved,
        id: args.id.clone(),
        show: looks_only.then_some(Show {
            save: args.save_plan.as_deref(),
            steps: !args.plan && args.save_plan.is_none(),
        }),
        ssh: &args.ssh,
        registry: &args.registry,
    };
    let went = begin(&work, &beginning);
    drop(work);
    let reaching =
        Reaching { cluster: name, ssh: &args.ssh, work: &args.work, registry: &args.registry };
    let is_done = upgrade_on_failure::take_back(went, &reaching, context)?;
    let pairs = upgrade_replace::pairs(&beginning.choices)?;
    if !is_done || pairs.is_empty() {
        return Ok(());
    }
    let replacing =
        Replacing { cluster: name, ssh: &args.ssh, work: &args.work, registry: &args.registry };
    upgrade_replace::replace(&pairs, &replacing, context)
}

/// Handles `imgctl run` with a rootfs image that hosts of the cluster do not have: the same as
/// `imgctl upgrade`. Returns `true` when the cluster has reached its target.
pub(crate) fn run_newer(
    work: &Work<'_>,
    images: &[String],
    ssh: &SshArgs,
    registry: &RegistryArgs,
) -> Result<bool> {
    let (hops, install) = split(images, None, work.state.name(), registry, work.context)?;
    let beginning = Beginning {
        choices: Choices {
            hop: match hops.len() {
                1 => HopMode::Single,
                _ => HopMode::Auto,
            },
            ..Choices::default()
        },
        hops,
        install,
        saved: None,
        id: None,
        show: work.args.dry_run.then_some(Show { save: None, steps: true }),
        ssh,
        registry,
    };
    begin(work, &beginning)
}

/// What to show instead of carrying it out.
struct Show<'a> {
    /// File to write the plan to.
    save: Option<&'a Path>,
    /// Whether to show every step, not only the plan.
    steps: bool,
}

/// Upgrade to plan and begin.
struct Beginning<'a> {
    hops: Vec<UpgradeImage>,
    install: Vec<String>,
    choices: Choices,
    saved: Option<Document>,
    id: Option<String>,
    show: Option<Show<'a>>,
    ssh: &'a SshArgs,
    registry: &'a RegistryArgs,
}

/// Result of an attempt to begin.
enum Begun {
    /// The attempt has ended; `true` if the cluster has reached its target.
    RunOutcome(bool),
    /// The cluster has reached its target except for these hosts, which have this image.
    Behind(UpgradeImage, Vec<String>),
}

/// Plans, asks for confirmation and carries out; returns `true` when the cluster has reached its
/// target.
fn begin(work: &Work<'_>, beginning: &Beginning<'_>) -> Result<bool> {
    match begin_from(work, beginning, &Start::Recorded, Vec::new())? {
        Begun::RunOutcome(is_done) => Ok(is_done),
        Begun::Behind(side, hosts) => {
            match begin_from(work, beginning, &Start::Image(side), hosts)? {
                Begun::RunOutcome(is_done) => Ok(is_done),
                Begun::Behind(..) => Ok(false),
            }
        }
    }
}

/// Same as `begin`, for a given start and, if `only` is not empty, only for those hosts.
fn begin_from(
    work: &Work<'_>,
    beginning: &Beginning<'_>,
    start: &Start,
    only: Vec<String>,
) -> Result<Begun> {
    let pairs = upgrade_replace::pairs(&beginning.choices)?;
    let context = work.context;
    let name = work.state.name();
    let book = UpgradeStore::of(work.state.directory());
    let sides = sides(work, start, &beginning.hops, &beginning.install, beginning.registry)?;
    work.with_means(sides.target(), beginning.ssh, false, |means| {
        let known = know(&sides, means);
        let wish = PlanRequest {
            choices: beginning.choices.clone(),
            direction: Direction::Forward,
            id: beginning.id.clone(),
            only,
            to_snapshot: false,
            containers: true,
        };
        let (planned, observation) = plan_of(work, &known, &wish, means)?;
        if let (None, Planned::Nothing(_)) = (&beginning.saved, &planned)
            && let Some((side, hosts)) =
                upgrade_lag::behind(work, &known, &observation, means, beginning.registry)?
        {
            return Ok(Begun::Behind(side, hosts));
        }
        let document = match (beginning.saved.clone(), planned) {
            (Some(saved), _) => {
                check_start(&saved, work)?;
                check_fresh(&saved, &observation)?;
                saved
            }
            (None, Planned::Nothing(findings)) => {
                upgrade_view::show_findings(&findings, context)?;
                context.ui.say(&format!(
                    "cluster {name}: nothing to do, it is already {}",
                    sides.target().scene.rootfs().map_or("", |image| &image.name)
                ));
                return Ok(Begun::RunOutcome(beginning.show.is_none()));
            }
            (None, Planned::Upgrade(mut document)) => {
                upgrade_replace::leave_out(&mut document, &pairs)?;
                *document
            }
        };
        if let Some(wanted) = &beginning.show {
            show(&document, wanted, &known, &sides, means, context)?;
            return Ok(Begun::RunOutcome(false));
        }
        check_blockers(&document)?;
        if !context.ui.is_json() {
            upgrade_view::show(&document, context)?;
        }
        if !context.ui.confirm("Start the upgrade?")? {
            return Err(Error::new(Kind::Denied, "declined; nothing was changed"));
        }
        book.fresh(&document.id)?;
        book.keep_before(&document.id, &observation)?;
        let former = work.existing()?.without_secrets().write()?;
        book.keep_former(&document.id, &former)?;
        let carrying = Carrying {
            document: &document,
            pause_after: document.choices.pause_after,
            commit: closing(&book, &document)?,
            again: Vec::new(),
            snapshot: None,
        };
        let went = carry(work, &known, &sides.install, &carrying, means)?;
        end(&went, &document, context)?;
        Ok(Begun::RunOutcome(matches!(went, RunOutcome::Done(..))))
    })
}

/// Handles an open upgrade: resumes it for the same request and refuses any other one.
fn meets_open(
    open: &Document,
    args: &UpgradeArgs,
    images: &[String],
    saved: Option<&Document>,
    looks_only: bool,
    work: Work<'_>,
) -> Result<()> {
    let context = work.context;
    let is_same = match saved {
        Some(saved) => saved.id == open.id && saved.digest()? == open.digest()?,
        None => {
            open.direction == Direction::Forward
                && open.hops.iter().all(|hop| images.contains(&hop.image))
        }
    };
    if let Some(path) = &args.save_plan {
        return Err(Error::new(
            Kind::Busy,
            format!(
                "cannot save a plan to {}: the upgrade {} is in progress",
                path.display(),
                open.id
            ),
        )
        .hint("run `imgctl upgrade status` to see its progress"));
    }
    if looks_only {
        context.ui.note(&format!("the upgrade {} is already in progress", open.id));
        return upgrade_view::show(open, context);
    }
    if !is_same {
        return Err(Error::new(
            Kind::Busy,
            format!(
                "the upgrade {} from {} to {} is in progress",
                open.id,
                open.from.version,
                open.target().version
            ),
        )
        .hint(
            "run `imgctl upgrade resume` to continue it, `imgctl rollback` to roll back, or \
               `imgctl upgrade abort` to abort it",
        ));
    }
    let differ = args.choices.against(&open.choices, open.hops.len())?;
    if !differ.is_empty() {
        return Err(Error::new(
            Kind::Busy,
            format!("the upgrade {} was started with a different {}", open.id, differ.join(", ")),
        )
        .hint(
            "run `imgctl upgrade resume` to continue as planned; or run `imgctl rollback` or \
               `imgctl upgrade abort`, then start again",
        ));
    }
    let going = Going {
        cluster: &args.cluster.cluster,
        pause_after: args.choices.pause_after.map(Into::into),
        ssh: &args.ssh,
        work: &args.work,
        registry: &args.registry,
    };
    open::go_on_in(work, open, &going)
}

/// Splits the images into hops (rootfs images) and images to install.
fn split(
    images: &[String],
    saved: Option<&Document>,
    cluster: &str,
    registry: &RegistryArgs,
    context: &Context,
) -> Result<(Vec<UpgradeImage>, Vec<String>)> {
    let read = cluster_options::images(images, cluster, None, registry, context)?;
    let (rootfs, others): (Vec<_>, Vec<_>) =
        read.iter().partition(|image| image.kind == ImageKind::Rootfs);
    let install = others.iter().map(|image| image.name.clone()).collect();
    if let Some(saved) = saved {
        if let Some(image) = rootfs.first() {
            return Err(Error::usage(format!(
                "{} cannot be combined with --plan-file: the plan already names the target",
                image.name
            ))
            .hint("with --plan-file, name only applications and patches to install"));
        }
        return Ok((saved.hops.iter().map(UpgradeImage::of).collect(), install));
    }
    let hops: Vec<UpgradeImage> = rootfs
        .iter()
        .map(|image| UpgradeImage { name: image.name.clone(), digest: Some(image.digest.clone()) })
        .collect();
    match hops.is_empty() {
        false => Ok((hops, install)),
        true => Err(Error::usage(format!(
            "none of the images is a rootfs image to upgrade to: {}",
            images.join(", ")
        ))
        .hint("install applications and patches with `imgctl run`")),
    }
}

fn check_id_of(saved: &Document, id: Option<&str>) -> Result<()> {
    match id {
        Some(id) if id != saved.id => Err(Error::usage(format!(
            "--id cannot be combined with --plan-file: the plan is called {}",
            saved.id
        ))),
        _ => Ok(()),
    }
}

fn read_plan(path: &Path) -> Result<Document> {
    let bytes = std::fs::read(path).path("read", path)?;
    Document::parse(&bytes, &path.display().to_string())
}

fn show(
    document: &Document,
    wanted: &Show<'_>,
    known: &ClusterSnapshot,
    sides: &UpgradeImages,
    means: &ExecutionContext<'_>,
    context: &Context,
) -> Result<()> {
    if let Some(path) = wanted.save {
        let text = document.to_json()?;
        atomic::write(path, text.as_bytes(), 0o600, Durability::Atomic)?;
    }
    if wanted.steps {
        let carrying = Carrying {
            document,
            pause_after: None,
            commit: Step::local("close", "close the upgrade", "", |_| Ok(())),
            again: Vec::new(),
            snapshot: None,
        };
        let planned = pipeline_of(known, &sides.install, &carrying, means, context.store()?)?;
        plan_view::show(&planned, context)?;
    } else {
        upgrade_view::show(document, context)?;
    }
    check_blockers(document)
}

/// Fails if the plan has blockers.
pub(crate) fn check_blockers(document: &Document) -> Result<()> {
    let blockers: Vec<_> = document.blockers().collect();
    if blockers.is_empty() {
        return Ok(());
    }
    let mut message = format!("the {} cannot start:", verb(document));
    for finding in &blockers {
        let host = finding.host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
        message.push_str(&format!("\n  {}: {host}{}", finding.check, finding.what));
    }
    let mut error = Error::new(Kind::CheckFailed, message);
    for hint in blockers.iter().filter_map(|finding| finding.hint.as_ref()) {
        error = error.hint(hint.clone());
    }
    Err(error.hint("pass --skip-check NAME to ignore one of them"))
}
