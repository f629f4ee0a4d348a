//! `imgctl mount`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::commands::mounts;
use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use imgctl_base::error::Result;
use imgctl_store::mount::{self, Backend};

/// Mount an image as a directory and print its path
#[derive(Args, Debug)]
#[command(
    after_help = "Each call creates a separate mount; what is written into it is removed with it.
Without an image, lists the mounts, as buildah does.

Examples:
  imgctl mount etcd:v1
  imgctl mount --read-only etcd:v1 /mnt
  cp -r \"$(imgctl mount etcd:v1)/etc\" ."
)]
pub(crate) struct MountArgs {
    /// Name, ID or digest of the image
    image: Option<String>,

    /// Directory to mount at, created if missing [default: one in the store]
    #[arg(value_name = "DIR")]
    target: Option<PathBuf>,

    /// Mount read-only
    #[arg(short, long, visible_alias = "ro")]
    read_only: bool,

    /// Name to unmount it by
    #[arg(long)]
    name: Option<String>,

    /// Mount backend
    #[arg(long, value_enum, value_name = "BACKEND", default_value = "auto")]
    backend: BackendArg,

    #[command(flatten)]
    platform: PlatformArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    /// Fastest backend that works on this machine
    Auto,
    /// Overlay of unpacked layers
    Overlay,
    /// Index over the layers, without unpacking them
    Erofs,
    /// Plain directory with a copy of all files
    Checkout,
}

/// Mounts the image.
pub(crate) fn run(args: &MountArgs, context: &Context) -> Result<()> {
    let Some(name) = &args.image else {
        return mounts::show(context);
    };
    let image = args.platform.image(name, context)?;
    let options = mount::Options {
        read_only: args.read_only,
        target: args.target.clone(),
        name: args.name.clone(),
        backend: match args.backend {
            BackendArg::Auto => None,
            BackendArg::Overlay => Some(Backend::Overlay),
            BackendArg::Erofs => Some(Backend::Erofs),
            BackendArg::Checkout => Some(Backend::Checkout),
        },
    };
    let mounted = mount::mount(context.store()?, &image, &options, context.ui.reporter())?;
    for note in &mounted.notes {
        context.ui.note(note);
    }
    if context.ui.is_json() {
        return context.ui.json(&mounts::object(&mounted.record, mount::State::Mounted.as_str()));
    }
    mounts::path(&mounted.record.path, context)
}
