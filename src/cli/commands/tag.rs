//! `imgctl tag`.

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_base::image::Reference;

/// Add names to an image
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl tag etcd:v1 registry.example.com/team/etcd:v1 etcd:latest")]
pub(crate) struct TagArgs {
    /// Name, ID or digest of the image
    image: String,

    /// New names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Adds the names.
pub(crate) fn run(args: &TagArgs, context: &Context) -> Result<()> {
    let names = args
        .names
        .iter()
        .map(|name| Ok(Reference::parse(name)?.qualified()))
        .collect::<Result<Vec<_>>>()?;
    let store = context.store()?;
    let image = store.resolve(&args.image)?;
    store.tag(&names, &image.descriptor)
}
