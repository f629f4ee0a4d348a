//! `imgctl load`.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_transfer::transfer::{self, Input, LoadOptions};

/// Load images from an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "The format is detected: OCI archive or layout, docker archive or directory; uncompressed,
gzip, zstd, bzip2 or xz. Either all of its images are loaded, or none.

Examples:
  imgctl load -i etcd.tar
  imgctl load etcd.tar.zst --tag etcd:v1
  docker save etcd:v1 | imgctl load"
)]
pub(crate) struct LoadArgs {
    /// Archive or directory; `-` or no value is stdin
    #[arg(value_name = "FILE", conflicts_with = "input")]
    file: Option<PathBuf>,

    /// Same as FILE
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// Names for the single image in the archive, instead of its own names
    #[arg(short, long = "tag", value_name = "NAME")]
    tags: Vec<String>,
}

/// Loads the images and prints their names.
pub(crate) fn run(args: &LoadArgs, context: &Context) -> Result<()> {
    let options = LoadOptions {
        tags: args
            .tags
            .iter()
            .map(|tag| Ok(Reference::parse(tag)?.qualified()))
            .collect::<Result<_>>()?,
    };
    let path = args.file.as_deref().or(args.input.as_deref());
    let input = match path {
        Some(path) if path != Path::new("-") => Input::Path(path),
        _ => {
            use std::io::IsTerminal as _;
            if io::stdin().is_terminal() {
                return Err(Error::usage("nothing to load")
                    .hint("pass a file (imgctl load -i FILE) or pipe in an archive"));
            }
            Input::Stream(Box::new(io::stdin()))
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
