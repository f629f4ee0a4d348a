//! `imgctl report`: pages about images, plans, runs and clusters.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_frontend::cluster_options::ClusterArg;
use imgctl_frontend::context::Context;
use imgctl_frontend::image_options::PlatformArg;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_frontend::report_output::{GENERATOR, ReportOutput, created};
use imgctl_frontend::ssh_options::SshArgs;
use imgctl_ops::report::{RunRequest, of_cluster, of_run, read_plan};
use imgctl_report::{Loaded, Report};

/// Maximum size of a file with the data of a report, in bytes.
const LONGEST: u64 = 1 << 30;

/// Write a page about an image, a plan, a run or a cluster
#[derive(Args, Debug)]
#[command(
    after_help = "The page needs no network and can be mailed. With --json, prints the data that it shows
(docs/reports.md, docs/schemas).

Examples:
  imgctl report image kubernetes:v1.34.9 --compare kubernetes:v1.33.5 -o image.html
  imgctl report image kubernetes:v1.34.9 --json > image.json
  imgctl report render image.json -o image.html"
)]
pub(crate) struct ReportArgs {
    #[command(subcommand)]
    command: ReportVerb,
}

#[derive(Debug, Subcommand)]
enum ReportVerb {
    Image(ImageArgs),
    Plan(PlanArgs),
    Run(RunArgs),
    Cluster(ClusterArgs),
    Render(RenderArgs),
}

/// Report on an image: files, layers, embedded images, packages, signatures
#[derive(Args, Debug)]
#[command(
    after_help = "Reads images in the store. Signatures are listed and not verified: see `imgctl verify`.

Examples:
  imgctl report image etcd:v2 -o etcd.html
  imgctl report image etcd:v2 --compare etcd:v1 -o etcd.html"
)]
struct ImageArgs {
    /// Name, ID or digest of an image in the store
    image: String,

    /// Older image, also in the store: show what the image adds and removes, and the bytes to
    /// transfer
    #[arg(long, value_name = "OLD")]
    compare: Option<String>,

    #[command(flatten)]
    output: ReportOutput,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Report on a plan: hosts, phases, steps, restarts of containers, findings
#[derive(Args, Debug)]
#[command(
    after_help = "Reads the JSON of a plan of any verb. Verbs that run on clusters also have --report, which writes
the page of the plan with --dry-run or --plan, and that of the run otherwise.

Examples:
  imgctl plan run kubernetes:v1.34.9 --masters 10.0.0.11 --json | imgctl report plan - -o plan.html
  imgctl upgrade kubernetes:v1.34.9 --save-plan plan.json && imgctl report plan plan.json -o plan.html
  imgctl upgrade kubernetes:v1.34.9 --dry-run --report plan.html"
)]
struct PlanArgs {
    /// File with the JSON of a plan; `-` is stdin
    #[arg(value_name = "PLAN.json")]
    file: PathBuf,

    #[command(flatten)]
    output: ReportOutput,
}

/// Report on a run: timeline, steps, failures, logs, transfers, restarts
#[derive(Args, Debug)]
#[command(
    after_help = "Reads the journal and the logs on this machine; queries no host. Works during the run, and shows
the readable part of a damaged journal. In-place updates are runs, too.

Examples:
  imgctl report run -o run.html
  imgctl report run 20260102T030405.678Z-run-1a2b3c4d --cluster prod -o run.html
  imgctl report run 20260401T101500Z-web -o inplace.html"
)]
struct RunArgs {
    /// Run to report on, as `imgctl journal` and `imgctl inplace status` list them [default: the newest]
    #[arg(value_name = "RUN")]
    run: Option<String>,

    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    output: ReportOutput,
}

/// Report on a cluster: hosts, versions, certificates, registry, drift, backups, history
#[derive(Args, Debug)]
#[command(
    after_help = "Queries every host as `imgctl status` does, and exits with 0 whether or not they are healthy.

Examples:
  imgctl report cluster -o cluster.html
  imgctl report cluster --cluster prod --json"
)]
struct ClusterArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    #[command(flatten)]
    output: ReportOutput,

    #[command(flatten)]
    ssh: SshArgs,
}

/// Make the page of a report from its JSON
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl report image etcd:v2 --json | imgctl report render - -o etcd.html")]
struct RenderArgs {
    /// File that --json has written; `-` is stdin
    #[arg(value_name = "FILE.json")]
    file: PathBuf,

    #[command(flatten)]
    output: ReportOutput,
}

pub(crate) fn report(args: &ReportArgs, context: &Context) -> Result<()> {
    match &args.command {
        ReportVerb::Image(args) => image(args, context),
        ReportVerb::Plan(args) => plan(args, context),
        ReportVerb::Run(args) => run(args, context),
        ReportVerb::Cluster(args) => cluster(args, context),
        ReportVerb::Render(args) => render(args, context),
    }
}

fn image(args: &ImageArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let older = match &args.compare {
        Some(name) => Some(args.platform.image(name, context)?),
        None => None,
    };
    let request = imgctl_describe::Request {
        image: &image,
        older: older.as_ref(),
        findings: Vec::new(),
        generator: GENERATOR,
        created: created(context)?,
    };
    let data = imgctl_describe::describe(context.store()?, request)?;
    args.output.write(Report::Image(&data), &data, context)
}

fn plan(args: &PlanArgs, context: &Context) -> Result<()> {
    let name = args.file.display().to_string();
    let data = read_plan(&read(&args.file)?, &name)?.report(GENERATOR, created(context)?);
    args.output.write(Report::Plan(&data), &data, context)
}

fn run(args: &RunArgs, context: &Context) -> Result<()> {
    let request = RunRequest {
        cluster: args.cluster.name(context)?,
        run: args.run.clone(),
        generator: GENERATOR.to_owned(),
        created: created(context)?,
    };
    let data = of_run(&request, &context.plain_session()?)?;
    args.output.write(Report::Run(&data), &data, context)
}

fn cluster(args: &ClusterArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let data = of_cluster(&args.cluster.name(context)?, GENERATOR, created(context)?, &session)?;
    args.output.write(Report::Cluster(&data), &data, context)
}

fn render(args: &RenderArgs, context: &Context) -> Result<()> {
    let loaded = Loaded::parse(&read(&args.file)?)
        .map_err(|error| error.context(format!("cannot use {}", args.file.display())))?;
    args.output.write(loaded.report(), &loaded, context)
}

/// Reads a file or, for `-`, stdin.
fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(LONGEST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
    };
    read.path("read", path)?;
    if bytes.len() as u64 > LONGEST {
        Err(Error::bad_content(format!("{} exceeds {LONGEST} bytes", path.display())))
    } else {
        Ok(bytes)
    }
}
