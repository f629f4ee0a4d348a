//! `imgctl bundle`: what an update adds, as a file.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::commands::bundle_verify;
use imgctl_base::{error::Result, image::Verdict, text::Lines};
use imgctl_frontend::archive_output::{OutputArgs, output};
use imgctl_frontend::{context::Context, image_options::GateArg};
use imgctl_transfer::edit::bundle::{self, ApplyOptions, Bundle, CreateOptions};
use imgctl_transfer::transfer::{Archive, arbiter::Arbiter};
use imgctl_ui::table::human;

/// Transfer updates that hold only what an image adds to an older one
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar   (with both images)
  imgctl bundle verify update.tar                            (anywhere)
  imgctl bundle apply update.tar                             (with cluster:v1)")]
pub(crate) struct BundleArgs {
    #[command(subcommand)]
    verb: BundleVerb,
}

#[derive(Debug, Subcommand)]
enum BundleVerb {
    Create(CreateArgs),
    Apply(ApplyArgs),
    Inspect(InspectArgs),
    Verify(bundle_verify::VerifyArgs),
}

/// Write what NEW adds to OLD to an archive
#[derive(Args, Debug)]
#[command(
    after_help = "The archive is an OCI archive without the blobs of OLD; apply it where OLD is in the store.

Examples:
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar.zst
  imgctl bundle create --delta cluster:v1 cluster:v2 -o update.tar
  imgctl bundle create --split 4GB cluster:v1 cluster:v2 -o update.tar
  imgctl bundle create --request missing.json cluster:v1 cluster:v2 -o more.tar"
)]
struct CreateArgs {
    /// Image that the receiver already has
    old: String,

    /// Image that the receiver gets
    new: String,

    /// Write changed files as patches against those of OLD: smaller, and slower to make
    #[arg(long)]
    delta: bool,

    #[command(flatten)]
    to: OutputArgs<BundleFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BundleFormat {
    /// A tar of an OCI image layout
    OciArchive,
    /// An OCI image layout
    OciDir,
}

/// Load a bundle on top of the image it was made against
#[derive(Args, Debug)]
#[command(
    after_help = "The base is checked first: nothing is loaded if one of its blobs is missing. Several bundles of one
image are applied together.

Examples:
  imgctl bundle apply update.tar
  imgctl bundle apply --verify update.tar
  imgctl bundle apply update.tar --request-missing missing.json
  imgctl bundle apply update.tar more.tar"
)]
struct ApplyArgs {
    /// Bundles: archives, parts or directories
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Also read and check the content of the base
    #[arg(long)]
    verify: bool,

    /// If parts or blobs of the base are missing, list them here for `bundle create --request`
    #[arg(long, value_name = "LIST")]
    request_missing: Option<PathBuf>,

    #[command(flatten)]
    gate: GateArg,
}

/// Show what a bundle requires and contains
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl bundle inspect update.tar
  imgctl bundle inspect --json update.tar")]
struct InspectArgs {
    /// Bundle: archive, parts or directory
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn bundle(args: &BundleArgs, context: &Context) -> Result<()> {
    match &args.verb {
        BundleVerb::Create(args) => {
            let request = args.to.request()?;
            let options = CreateOptions {
                directory: args.to.format == BundleFormat::OciDir,
                compression: args.to.compression(),
                platform: args.to.platform()?,
                delta: args.delta,
                split: args.to.split(request.as_ref())?,
                request,
            };
            let (to, arbiter) = (args.to.output.as_deref(), args.to.gate.arbiter(context)?);
            create_bundle(&args.old, &args.new, to, &options, &arbiter, context)
        }
        BundleVerb::Apply(args) => {
            let options = ApplyOptions {
                verify: args.verify,
                request_missing: args.request_missing.clone(),
                arbiter: args.gate.arbiter(context)?,
            };
            let archives = Archive::find(&args.files)?;
            let reporter = context.ui.reporter();
            let bundle = bundle::apply(context.store()?, &archives, &options, reporter)?;
            if context.ui.is_json() {
                return context.ui.json(&bundle);
            }
            let image = &bundle.image;
            let name = image.name.clone().unwrap_or_else(|| image.digest.to_string());
            context.ui.line(&format!("Loaded image: {name}"))
        }
        BundleVerb::Inspect(args) => show(&bundle::inspect(&Archive::one(&args.files)?)?, context),
        BundleVerb::Verify(args) => bundle_verify::verify(args, context),
    }
}

/// Writes a bundle; also used by `diff --patch`.
pub(crate) fn create_bundle(
    old: &str,
    new: &str,
    path: Option<&Path>,
    options: &CreateOptions,
    arbiter: &Arbiter,
    context: &Context,
) -> Result<()> {
    let store = context.store()?;
    let (old, new) = (store.resolve(old)?, store.resolve(new)?);
    // Of the old image, nothing is in the bundle.
    let _admitted: Verdict = arbiter.admit_output(store, &new)?;
    let target = output(path, options.directory, context)?;
    let bundle = bundle::create(store, &old, &new, options, target, context.ui.reporter())?;
    let (carried, spared) = bundle.sizes();
    context.ui.note(&format!(
        "{}, {}; {}, {} are left out",
        blobs(bundle.included.len()),
        human(carried),
        blobs(bundle.assumed.len()),
        human(spared)
    ));
    if !bundle.deltas.is_empty() {
        context.ui.note(&in_deltas(&bundle));
    }
    Ok(())
}

/// What the deltas of a bundle are worth.
fn in_deltas(bundle: &Bundle) -> String {
    let (recipes, yielded) = bundle.delta_sizes();
    let count = blobs(bundle.deltas.len());
    format!("{count} as deltas, {} instead of {}", human(recipes), human(yielded))
}

fn blobs(count: usize) -> String {
    format!("{count} {}", if count == 1 { "blob" } else { "blobs" })
}

fn show(bundle: &Bundle, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(bundle);
    }
    let (carried, spared) = bundle.sizes();
    let name = |subject: &bundle::Subject| match &subject.name {
        Some(name) => format!("{name} ({})", subject.digest),
        None => subject.digest.to_string(),
    };
    let mut text = Lines::default();
    text.line(format_args!("Needs:     {}", name(&bundle.base)))
        .line(format_args!("Brings:    {}", name(&bundle.image)))
        .line(format_args!("Included:  {}, {}", blobs(bundle.included.len()), human(carried)))
        .line(format_args!("Left out:  {}, {}", blobs(bundle.assumed.len()), human(spared)));
    if !bundle.deltas.is_empty() {
        text.line(format_args!("Deltas:    {}", in_deltas(bundle)));
    }
    context.ui.print(&text)
}
