//! `imgctl export`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use crate::error::{Error, Result};
use crate::mount::checkout;

/// Write an image's files into a directory or a tar file
#[derive(Args, Debug)]
#[command(
    after_help = "A name that ends in .tar, and `-` for stdout, makes a tar; anything else a directory.

Examples:
  imgctl export etcd:v1 -o rootfs
  imgctl export etcd:v1 -o rootfs.tar
  imgctl export etcd:v1 -o - | tar t"
)]
pub(crate) struct ExportArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Directory (new or empty), tar file, or `-`
    #[arg(short, long, value_name = "DIR|FILE")]
    output: PathBuf,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Writes the files.
pub(crate) fn run(args: &ExportArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let store = context.store()?;
    let reporter = context.ui.reporter();
    if args.output == Path::new("-") {
        if context.ui.stdout_is_terminal() {
            return Err(Error::usage("a tar is not written to a terminal")
                .hint("redirect stdout, or give -o FILE"));
        }
        return Err(tar_is_missing());
    }
    if args
        .output
        .extension()
        .is_some_and(|extension| extension == "tar")
    {
        return Err(tar_is_missing());
    }
    for note in checkout::export(store, &image, &args.output, reporter)? {
        context.ui.note(&note);
    }
    Ok(())
}

fn tar_is_missing() -> Error {
    Error::usage("export to a tar is not there yet").hint("export to a directory and tar that")
}
