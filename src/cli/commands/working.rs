//! The verbs of buildah about working containers, as far as a mount is one: `from`, `unshare`.

use std::ffi::OsString;

use clap::Args;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Platform, Reference};
use imgctl_build::build::base_image::BaseImages;
use imgctl_frontend::image_options::{PlatformArg, PolicyArg};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs};
use imgctl_store::mount;

/// Mount an image for writing under a name, as `buildah from` does
#[derive(Args, Debug)]
#[command(
    after_help = "`imgctl mount NAME` prints the path of the mount, `imgctl umount NAME` removes it.

Examples:
  name=$(imgctl from etcd:v1) && ls \"$(imgctl mount $name)\""
)]
pub(crate) struct FromArgs {
    /// Name, ID or digest of the image; pulled if it is missing
    image: String,

    /// Name of the mount [default: that of the image, with -working-container]
    #[arg(long)]
    name: Option<String>,

    /// Pull policy
    #[arg(long, value_enum, value_name = "POLICY", num_args = 0..=1, require_equals = true,
          default_missing_value = "always", default_value = "missing")]
    pull: PolicyArg,

    #[command(flatten)]
    platform: PlatformArg,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Mounts the image and prints the name of the mount.
pub(crate) fn from(args: &FromArgs, context: &Context) -> Result<()> {
    if args.image == "scratch" {
        return Err(Error::usage("an empty image cannot be mounted")
            .hint("build from a Kubefile that starts with FROM scratch"));
    }
    let store = context.store()?;
    let images = BaseImages::new(args.registry.client(context)?, args.pull.policy());
    let platform = args.platform.wanted()?.unwrap_or_else(Platform::host);
    let image = images.get(store, &args.image, &platform, context.ui.reporter())?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => free_name(&args.image, context)?,
    };
    let options =
        mount::Options { read_only: false, target: None, name: Some(name.clone()), backend: None };
    let mounted = mount::mount(store, &image, &options, context.ui.reporter())?;
    context.ui.notes(&mounted.notes);
    context.ui.line(&name)
}

/// Returns buildah's name for a working container of an image, with a number if it is in use.
fn free_name(image: &str, context: &Context) -> Result<String> {
    let repository = Reference::parse(image).map(|name| name.repository().to_owned());
    let repository = repository.unwrap_or_else(|_| image.to_owned());
    let last = repository.rsplit('/').next().unwrap_or_default();
    let wanted = format!("{last}-working-container");
    let mounts = mount::list(context.store()?)?;
    let used = |name: &str| {
        let mut records = mounts.iter().filter_map(|mount| mount.record.as_ref());
        records.any(|record| record.name.as_deref() == Some(name))
    };
    let numbered = (1_u64..).map(|number| format!("{wanted}-{number}"));
    let mut names = std::iter::once(wanted.clone()).chain(numbered);
    Ok(names.find(|name| !used(name)).unwrap_or(wanted))
}

/// Refused: run a command in a user namespace
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct UnshareArgs {
    /// The command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    _command: Vec<OsString>,
}

/// Says why there is no such verb.
pub(crate) fn unshare(_: &UnshareArgs, _: &Context) -> Result<()> {
    Err(Error::usage("imgctl has no user namespace that lasts: each command makes its own")
        .hint("run the commands of imgctl directly; ordinary users mount with --backend checkout"))
}
