//! `imgctl rebase`.

use clap::Args;

use crate::cli::commands::merge::{finish, references};
use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use imgctl_base::error::{Error, Result};
use imgctl_store::store::Image;
use imgctl_transfer::edit::rebase::{self, BASE_DIGEST, BASE_NAME, Called};

/// Move an image to another base without building
#[derive(Args, Debug)]
#[command(
    after_help = "The image must start with the old base's layers. Settings inherited unchanged from the old base are
taken from the new one. Without --old-base, the image's annotations name the old base.

Examples:
  imgctl rebase app:v1 --new-base debian:12.9 -t app:v1-r2
  imgctl rebase app:v1 --old-base base:1 --new-base base:2 -t app:v2"
)]
pub(crate) struct RebaseArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Base image that the image was built on
    #[arg(long, value_name = "IMAGE")]
    old_base: Option<String>,

    /// Base image to move the image to
    #[arg(long, value_name = "IMAGE")]
    new_base: String,

    /// Name of the result (may be repeated)
    #[arg(short, long = "tag", required = true, value_name = "NAME")]
    tags: Vec<String>,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Rebases the image and prints the new image's ID.
pub(crate) fn run(args: &RebaseArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let tags = references(&args.tags)?;
    let image = args.platform.image(&args.image, context)?;
    let old_name = match &args.old_base {
        Some(name) => name.clone(),
        None => recorded_base(&args.image, &image)?,
    };
    let old = args.platform.image(&old_name, context)?;
    let new = args.platform.image(&args.new_base, context)?;
    let called = |name, image| Called { name, image };
    let edited = rebase::rebase(
        store,
        called(&args.image, &image),
        called(&old_name, &old),
        called(&args.new_base, &new),
    )?;
    finish(&edited, &tags, context)
}

/// Returns the base recorded in the image's annotations; by digest, because its name may have
/// moved.
fn recorded_base(name: &str, image: &Image) -> Result<String> {
    let annotations = &image.manifest.annotations;
    annotations.get(BASE_DIGEST).or_else(|| annotations.get(BASE_NAME)).cloned().ok_or_else(|| {
        Error::usage(format!("{name} does not record its base image"))
            .hint("pass the old base with --old-base")
    })
}
