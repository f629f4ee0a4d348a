//! `imgctl export`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use crate::ui::output::Stdout;
use imgctl_base::error::{Error, Result};
use imgctl_store::layer::Compression;
use imgctl_store::mount::{checkout, tar_export};

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

/// Writes the files.
pub(crate) fn run(args: &ExportArgs, context: &Context) -> Result<()> {
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
