//! The options that say where and how an archive is written, for the verbs that write one.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::{context::Context, duration, image_options::GateArg};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Platform;
use imgctl_transfer::transfer::{OuterCompression, Output, Request, Split};
use imgctl_ui::edge::Stdout;

/// Where and how an archive or a directory is written.
#[derive(Args, Debug)]
pub struct OutputArgs<F: ValueEnum + Send + Sync + 'static> {
    /// File or directory to write; `-` or no value is stdout
    #[arg(short, long, value_name = "FILE|DIR")]
    pub output: Option<PathBuf>,

    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "oci-archive")]
    pub format: F,

    /// Compression of the archive as a whole
    #[arg(long, value_enum, value_name = "none|gzip|zstd")]
    pub compression: Option<Outer>,

    /// Take only this platform of multi-platform images
    #[arg(long, value_name = "OS/ARCH")]
    pub platform: Option<String>,

    /// Write parts of at most this size (4GB, 700MiB)
    #[arg(long, value_name = "SIZE", requires = "output")]
    pub split: Option<String>,

    /// Write only what this list names, which `--request-missing` wrote
    #[arg(long, value_name = "LIST")]
    pub request: Option<PathBuf>,

    #[command(flatten)]
    pub gate: GateArg,
}

impl<F: ValueEnum + Send + Sync + 'static> OutputArgs<F> {
    pub fn compression(&self) -> OuterCompression {
        outer_compression(self.compression, self.output.as_deref())
    }

    pub fn platform(&self) -> Result<Option<Platform>> {
        self.platform.as_deref().map(Platform::parse).transpose()
    }

    pub fn request(&self) -> Result<Option<Request>> {
        self.request.as_deref().map(Request::read).transpose()
    }

    /// Returns how to split the archive, given what is requested.
    pub fn split(&self, request: Option<&Request>) -> Result<Option<Split>> {
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
pub enum Outer {
    None,
    Gzip,
    Zstd,
}

/// Returns the output for an archive or a directory: `path`, or stdout if it is missing or `-`.
pub fn output<'a>(
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
        None => Ok(Output::Stream(Box::new(Stdout::open()))),
    }
}

/// Returns the given compression, or otherwise the one that the file extension implies.
pub fn outer_compression(given: Option<Outer>, path: Option<&Path>) -> OuterCompression {
    let extension = path.and_then(Path::extension).and_then(|extension| extension.to_str());
    match (given, extension) {
        (Some(Outer::Gzip), _) | (None, Some("gz" | "tgz")) => OuterCompression::Gzip,
        (Some(Outer::Zstd), _) | (None, Some("zst" | "tzst")) => OuterCompression::Zstd,
        (Some(Outer::None) | None, _) => OuterCompression::None,
    }
}
