//! `imgctl save`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::context::Context;
use crate::ui::output::Stdout;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_transfer::transfer::{self, ArchiveFormat, OuterCompression, Output, SaveOptions};

/// Save images to an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "Without --compression, the extension of the file's name decides (.gz, .tgz, .zst).

Examples:
  imgctl save etcd:v1 -o etcd.tar
  imgctl save --format docker-archive etcd:v1 app:v1 -o both.tar.gz
  imgctl save etcd:v1 | ssh host imgctl load"
)]
pub(crate) struct SaveArgs {
    /// Names, IDs or digests of images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

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
    /// The format of `docker save`
    DockerArchive,
    /// The format of skopeo's `dir:`, one image
    DockerDir,
}

/// Compression of an archive as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Saves the images.
pub(crate) fn run(args: &SaveArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let images = args.images.iter().map(|name| store.resolve(name)).collect::<Result<Vec<_>>>()?;
    let path = args.output.as_deref();
    let options = SaveOptions {
        format: match args.format {
            Format::OciArchive => ArchiveFormat::OciArchive,
            Format::OciDir => ArchiveFormat::OciDirectory,
            Format::DockerArchive => ArchiveFormat::DockerArchive,
            Format::DockerDir => ArchiveFormat::DockerDirectory,
        },
        compression: compression(args.compression, path),
        platform: args.platform.as_deref().map(Platform::parse).transpose()?,
        leaving: None,
    };
    let output = output(path, options.format.is_directory(), context)?;
    transfer::save(store, &images, &options, output, context.ui.reporter())
}

/// Returns the output for an archive or a directory: `path`, or stdout if it is missing or `-`.
pub(crate) fn output<'a>(
    path: Option<&'a Path>,
    is_directory: bool,
    context: &Context,
) -> Result<Output<'a>> {
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
pub(crate) fn compression(given: Option<Compression>, path: Option<&Path>) -> OuterCompression {
    let extension = path.and_then(Path::extension).and_then(|extension| extension.to_str());
    match (given, extension) {
        (Some(Compression::Gzip), _) | (None, Some("gz" | "tgz")) => OuterCompression::Gzip,
        (Some(Compression::Zstd), _) | (None, Some("zst" | "tzst")) => OuterCompression::Zstd,
        (Some(Compression::None) | None, _) => OuterCompression::None,
    }
}
