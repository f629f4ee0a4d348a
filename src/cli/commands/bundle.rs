//! `imgctl bundle`: create, apply, inspect.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::commands::save::{self, Compression, compression};
use crate::cli::context::Context;
use crate::ui::size::human;
use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_transfer::edit::bundle::{self, Bundle, CreateOptions};

/// Transfer updates that hold only what an image adds to an older one
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar   (with both images)
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
}

/// Write what NEW adds to OLD to an archive
#[derive(Args, Debug)]
#[command(
    after_help = "The archive is an OCI archive without the blobs of OLD; apply it where OLD is in the store.

Examples:
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar
  imgctl bundle create cluster:v1 cluster:v2 -o update.tar.zst"
)]
struct CreateArgs {
    /// Image that the receiver already has
    old: String,

    /// Image that the receiver gets
    new: String,

    /// File or directory to write; `-` or no value is stdout
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,

    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "oci-archive")]
    format: Format,

    /// Compression of the archive as a whole
    #[arg(long, value_enum, value_name = "none|gzip|zstd")]
    compression: Option<Compression>,

    /// Take only this platform of multi-platform images
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A tar of an OCI image layout
    OciArchive,
    /// An OCI image layout
    OciDir,
}

/// Load a bundle on top of the image it was made against
#[derive(Args, Debug)]
#[command(
    after_help = "The base is checked first: nothing is loaded if one of its blobs is missing.

Examples:
  imgctl bundle apply update.tar
  imgctl bundle apply --verify update.tar"
)]
struct ApplyArgs {
    /// Bundle: archive or directory
    file: PathBuf,

    /// Also read and check the content of the base
    #[arg(long)]
    verify: bool,
}

/// Show what a bundle requires and contains
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl bundle inspect update.tar
  imgctl bundle inspect --json update.tar")]
struct InspectArgs {
    /// Bundle: archive or directory
    file: PathBuf,
}

/// Runs one of the subcommands.
pub(crate) fn run(args: &BundleArgs, context: &Context) -> Result<()> {
    match &args.verb {
        BundleVerb::Create(args) => {
            let options = CreateOptions {
                directory: args.format == Format::OciDir,
                compression: compression(args.compression, args.output.as_deref()),
                platform: args.platform.as_deref().map(Platform::parse).transpose()?,
            };
            create(&args.old, &args.new, args.output.as_deref(), &options, context)
        }
        BundleVerb::Apply(args) => {
            let reporter = context.ui.reporter();
            let bundle = bundle::apply(context.store()?, &args.file, args.verify, reporter)?;
            if context.ui.is_json() {
                return context.ui.json(&bundle);
            }
            let image = &bundle.image;
            let name = image.name.clone().unwrap_or_else(|| image.digest.to_string());
            context.ui.line(&format!("Loaded image: {name}"))
        }
        BundleVerb::Inspect(args) => show(&bundle::inspect(&args.file)?, context),
    }
}

/// Writes a bundle; also used by `diff --patch`.
pub(crate) fn create(
    old: &str,
    new: &str,
    output: Option<&Path>,
    options: &CreateOptions,
    context: &Context,
) -> Result<()> {
    let store = context.store()?;
    let (old, new) = (store.resolve(old)?, store.resolve(new)?);
    let target = save::output(output, options.directory, context)?;
    let bundle = bundle::create(store, &old, &new, options, target, context.ui.reporter())?;
    let (carried, spared) = bundle.sizes();
    context.ui.note(&format!(
        "{}, {}; {}, {} are left out",
        blobs(bundle.included.len()),
        human(carried),
        blobs(bundle.assumed.len()),
        human(spared)
    ));
    Ok(())
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
    context.ui.print(&format!(
        "Needs:     {}\nBrings:    {}\nIncluded:  {}, {}\nLeft out:  {}, {}\n",
        name(&bundle.base),
        name(&bundle.image),
        blobs(bundle.included.len()),
        human(carried),
        blobs(bundle.assumed.len()),
        human(spared)
    ))
}
