//! The verbs between the store and files: `save`, `load`, `bundle`, `export`.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::cli::commands::bundle_verify;
use crate::cli::image_options::{GateArg, PlatformArg};
use crate::cli::{context::Context, duration, names::references};
use crate::ui::table::human;
use crate::ui::terminal::Stdout;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_store::layer::Compression;
use imgctl_store::mount::{checkout, tar_export};
use imgctl_transfer::edit::bundle::{self, ApplyOptions, Bundle, CreateOptions};
use imgctl_transfer::transfer::{
    self, Archive, ArchiveFormat, Input, LoadOptions, OuterCompression, Output, Request,
    SaveOptions, Split,
};

/// Save images to an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "Without --compression, the extension of the file's name decides (.gz, .tgz, .zst).

--split writes FILE.001, FILE.002, … and FILE.parts.json, the list of their digests. `imgctl load`
takes any of them; `cat FILE.[0-9]*` is the archive.

Examples:
  imgctl save etcd:v1 -o etcd.tar
  imgctl save --format docker-archive etcd:v1 app:v1 -o both.tar.gz
  imgctl save --split 4GB etcd:v1 -o etcd.tar
  imgctl save etcd:v1 | ssh host imgctl load"
)]
pub(crate) struct SaveArgs {
    /// Names, IDs or digests of images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    to: OutputArgs<SaveFormat>,
}

/// Where and how an archive or a directory is written.
#[derive(Args, Debug)]
struct OutputArgs<F: ValueEnum + Send + Sync + 'static> {
    /// File or directory to write; `-` or no value is stdout
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,

    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "oci-archive")]
    format: F,

    /// Compression of the archive as a whole
    #[arg(long, value_enum, value_name = "none|gzip|zstd")]
    compression: Option<Outer>,

    /// Take only this platform of multi-platform images
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,

    /// Write parts of at most this size (4GB, 700MiB)
    #[arg(long, value_name = "SIZE", requires = "output")]
    split: Option<String>,

    /// Write only what this list names, which `--request-missing` wrote
    #[arg(long, value_name = "LIST")]
    request: Option<PathBuf>,
}

impl<F: ValueEnum + Send + Sync + 'static> OutputArgs<F> {
    fn compression(&self) -> OuterCompression {
        outer_compression(self.compression, self.output.as_deref())
    }

    fn platform(&self) -> Result<Option<Platform>> {
        self.platform.as_deref().map(Platform::parse).transpose()
    }

    fn request(&self) -> Result<Option<Request>> {
        self.request.as_deref().map(Request::read).transpose()
    }

    /// Returns how to split the archive, given what is requested.
    fn split(&self, request: Option<&Request>) -> Result<Option<Split>> {
        let only = request.filter(|request| !request.parts.is_empty()).map(Request::part_digests);
        match &self.split {
            Some(size) => Ok(Some(Split { size: duration::bytes(size)?, only })),
            None if only.is_some() => Err(Error::usage("the list names parts of an archive")
                .hint("repeat the command that made the parts, with --split and --request")),
            None => Ok(None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SaveFormat {
    /// A tar of an OCI image layout
    OciArchive,
    /// An OCI image layout
    OciDir,
    /// The format of `docker save`
    DockerArchive,
    /// The format of skopeo's `dir:`, one image
    DockerDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Outer {
    None,
    Gzip,
    Zstd,
}

pub(crate) fn save(args: &SaveArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let images = args.images.iter().map(|name| store.resolve(name)).collect::<Result<Vec<_>>>()?;
    let request = args.to.request()?;
    let split = args.to.split(request.as_ref())?;
    if let Some(request) = request.filter(|request| request.parts.is_empty()) {
        return save_requested(args, request, context);
    }
    let options = SaveOptions {
        format: match args.to.format {
            SaveFormat::OciArchive => ArchiveFormat::OciArchive,
            SaveFormat::OciDir => ArchiveFormat::OciDirectory,
            SaveFormat::DockerArchive => ArchiveFormat::DockerArchive,
            SaveFormat::DockerDir => ArchiveFormat::DockerDirectory,
        },
        compression: args.to.compression(),
        platform: args.to.platform()?,
        leaving: None,
        split,
    };
    let output = output(args.to.output.as_deref(), options.format.is_directory(), context)?;
    transfer::save(store, &images, &options, output, context.ui.reporter())
}

/// Writes the requested blobs of an image, which makes a bundle.
fn save_requested(args: &SaveArgs, request: Request, context: &Context) -> Result<()> {
    let directory = match args.to.format {
        SaveFormat::OciArchive => false,
        SaveFormat::OciDir => true,
        _ => {
            return Err(
                Error::usage("docker's formats hold whole images").hint("use an OCI format")
            );
        }
    };
    let [image] = &args.images[..] else {
        return Err(Error::usage("the list is about the blobs of one image").hint("name one image"));
    };
    let options = CreateOptions {
        directory,
        compression: args.to.compression(),
        platform: args.to.platform()?,
        delta: false,
        split: args.to.split(Some(&request))?,
        request: Some(request),
    };
    create_bundle(image, image, args.to.output.as_deref(), &options, context)
}

/// Returns the output for an archive or a directory: `path`, or stdout if it is missing or `-`.
fn output<'a>(path: Option<&'a Path>, is_directory: bool, context: &Context) -> Result<Output<'a>> {
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => Ok(Output::Path(path)),
        None if is_directory => {
            Err(Error::usage("a directory cannot be written to stdout").hint("pass -o DIR"))
        }
        None if context.ui.stdout_is_terminal() => {
            Err(Error::usage("cannot write an archive to a terminal")
                .hint("redirect stdout, or pass -o FILE"))
        }
        None => Ok(Output::Stream(Box::new(Stdout::new()))),
    }
}

/// Returns the given compression, or otherwise the one that the file extension implies.
pub(crate) fn outer_compression(given: Option<Outer>, path: Option<&Path>) -> OuterCompression {
    let extension = path.and_then(Path::extension).and_then(|extension| extension.to_str());
    match (given, extension) {
        (Some(Outer::Gzip), _) | (None, Some("gz" | "tgz")) => OuterCompression::Gzip,
        (Some(Outer::Zstd), _) | (None, Some("zst" | "tzst")) => OuterCompression::Zstd,
        (Some(Outer::None) | None, _) => OuterCompression::None,
    }
}

/// Load images from an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "The format is detected: OCI archive or layout, docker archive or directory; uncompressed,
gzip, zstd, bzip2 or xz. Either all of its images are loaded, or none. Signatures in an OCI archive
or layout are kept with the images. A policy that demands some decides about each name.

Parts of `save --split` are found from any of them, from their list, or from the directories they
lie in, whatever their names. Several archives are loaded together.

Examples:
  imgctl load -i etcd.tar
  imgctl load etcd.tar.zst --tag etcd:v1
  imgctl load etcd.tar.001
  imgctl load /media/disk1 /media/disk2 --request-missing missing.json
  imgctl load --unpack etcd.tar
  docker save etcd:v1 | imgctl load"
)]
pub(crate) struct LoadArgs {
    /// Archives, parts or directories; `-` or no value is stdin
    #[arg(value_name = "FILE", conflicts_with = "input")]
    files: Vec<PathBuf>,

    /// Same as FILE
    #[arg(short, long, value_name = "FILE")]
    input: Vec<PathBuf>,

    /// Names for the single image in the archive, instead of its own names
    #[arg(short, long = "tag", value_name = "NAME")]
    tags: Vec<String>,

    /// If parts or blobs are missing, list them here for `imgctl save --request`
    #[arg(long, value_name = "LIST")]
    request_missing: Option<PathBuf>,

    /// Also unpack the layers and verify their diff IDs, so that the image can be mounted at once
    #[arg(long)]
    unpack: bool,

    #[command(flatten)]
    gate: GateArg,
}

/// Loads the images and prints their names.
pub(crate) fn load(args: &LoadArgs, context: &Context) -> Result<()> {
    let options = LoadOptions {
        tags: references(&args.tags)?,
        gate: args.gate.gate(context)?,
        request_missing: args.request_missing.clone(),
        unpack: args.unpack,
    };
    let paths = if args.files.is_empty() { &args.input } else { &args.files };
    let archives;
    let input = match &paths[..] {
        [] => Input::Stream(Box::new(piped()?)),
        [path] if path == Path::new("-") => Input::Stream(Box::new(piped()?)),
        paths => {
            archives = Archive::find(paths)?;
            Input::Archives(&archives)
        }
    };
    let loaded = transfer::load(context.store()?, input, &options, context.ui.reporter())?;
    if context.ui.is_json() {
        let list: Vec<Value> = loaded
            .iter()
            .map(|image| {
                json!({
                    "names": image.references.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "digest": image.descriptor.digest,
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for image in &loaded {
        if image.references.is_empty() {
            context.ui.line(&format!("Loaded image: {}", image.descriptor.digest))?;
        }
        for name in &image.references {
            context.ui.line(&format!("Loaded image: {name}"))?;
        }
    }
    Ok(())
}

/// Returns standard input, into which an archive is to be piped.
fn piped() -> Result<io::Stdin> {
    use std::io::IsTerminal as _;
    if io::stdin().is_terminal() {
        return Err(Error::usage("nothing to load")
            .hint("pass a file (imgctl load -i FILE) or pipe in an archive"));
    }
    Ok(io::stdin())
}

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
            create_bundle(&args.old, &args.new, args.to.output.as_deref(), &options, context)
        }
        BundleVerb::Apply(args) => {
            let options =
                ApplyOptions { verify: args.verify, request_missing: args.request_missing.clone() };
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
    context: &Context,
) -> Result<()> {
    let store = context.store()?;
    let (old, new) = (store.resolve(old)?, store.resolve(new)?);
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
    context.ui.print(&format!(
        "Needs:     {}\nBrings:    {}\nIncluded:  {}, {}\nLeft out:  {}, {}\n",
        name(&bundle.base),
        name(&bundle.image),
        blobs(bundle.included.len()),
        human(carried),
        blobs(bundle.assumed.len()),
        human(spared)
    ))?;
    match bundle.deltas.len() {
        0 => Ok(()),
        _ => context.ui.print(&format!("Deltas:    {}\n", in_deltas(bundle))),
    }
}

/// Write an image's files into a directory or a tar file
#[derive(Args, Debug)]
#[command(
    after_help = "A name that ends in .tar, .tar.gz, .tgz or .tar.zst, or `-` for stdout, writes a tar file; any
other name, a directory.

Examples:
  imgctl export etcd:v1 -o rootfs
  imgctl export etcd:v1 -o rootfs.tar
  imgctl export etcd:v1 -o - | tar t"
)]
pub(crate) struct ExportArgs {
    /// Name, ID or digest of the image
    image: String,

    /// New or empty directory, tar file, or `-` for stdout
    #[arg(short, long, value_name = "DIR|FILE")]
    output: PathBuf,

    #[command(flatten)]
    platform: PlatformArg,
}

pub(crate) fn export(args: &ExportArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let store = context.store()?;
    let reporter = context.ui.reporter();
    if args.output == Path::new("-") {
        if context.ui.stdout_is_terminal() {
            return Err(Error::usage("cannot write a tar file to a terminal")
                .hint("redirect stdout, or pass -o FILE"));
        }
        let none = Compression::None;
        return tar_export::to_writer(store, &image, Stdout::new(), none, reporter).map(drop);
    }
    if let Some(compression) = compression(&args.output) {
        return tar_export::to_file(store, &image, &args.output, compression, reporter);
    }
    for note in checkout::export(store, &image, &args.output, reporter)? {
        context.ui.note(&note);
    }
    Ok(())
}

/// Returns the compression that the extension of a tar file implies; `None` for a directory.
fn compression(path: &Path) -> Option<Compression> {
    let name = path.file_name()?.to_str()?;
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if ends(&[".tar"]) {
        Some(Compression::None)
    } else if ends(&[".tar.gz", ".tgz"]) {
        Some(Compression::Gzip { level: 6 })
    } else if ends(&[".tar.zst", ".tzst"]) {
        Some(Compression::default())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_tars_from_directories() {
        for (name, expected) in [
            ("x.tar", Some(Compression::None)),
            ("a/x.tgz", Some(Compression::Gzip { level: 6 })),
            ("x.tar.zst", Some(Compression::Zstd { level: 3 })),
            ("rootfs", None),
            ("x.gz", None),
        ] {
            assert_eq!(compression(Path::new(name)), expected, "{name}");
        }
    }
}
