//! `imgctl manifest inspect`.

use std::ffi::OsStr;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_transfer::transfer::ends::ImageSource;
use imgctl_transfer::transfer::location::Location;
use imgctl_transfer::transfer::registry::RegistrySource;

/// Show a manifest list, or the manifest of an image
#[derive(Args, Debug)]
#[command(after_help = "It is looked up in the store, then in the registry of its name.

Examples:
  imgctl manifest inspect etcd:v1
  imgctl manifest inspect docker://registry.example.com/team/etcd:v1")]
pub(super) struct InspectArgs {
    /// Name of a list or image
    #[arg(value_name = "LIST")]
    name: String,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Prints the document as indented JSON.
pub(super) fn run(args: &InspectArgs, context: &Context) -> Result<()> {
    let bytes = read(args, context)?;
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| Error::bad_content("the manifest is not JSON").caused_by(error))?;
    context.ui.json(&value)
}

fn read(args: &InspectArgs, context: &Context) -> Result<Vec<u8>> {
    let remote = |reference: &Reference| {
        let client = args.registry.client(context)?;
        let source = RegistrySource::new(&client, &reference.clone().on_docker_hub())?;
        Ok(source.root()?.bytes)
    };
    match Location::parse(OsStr::new(&args.name))? {
        Location::Registry(reference) => remote(&reference),
        Location::Name(name) => {
            let store = context.store()?;
            match store.resolve(&name) {
                Ok(named) => store.read_blob(&named.descriptor.digest, MAX_DOCUMENT),
                Err(error) if error.kind() == Kind::NotFound => match Reference::parse(&name) {
                    Ok(reference) if reference.registry().is_some() => remote(&reference),
                    _ => Err(error),
                },
                Err(error) => Err(error),
            }
        }
        other => {
            Err(Error::usage(format!("cannot show {other}")).hint("load it first (`imgctl load`)"))
        }
    }
}
