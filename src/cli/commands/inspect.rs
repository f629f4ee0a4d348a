//! `imgctl inspect`.

use std::ffi::OsStr;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::cli::commands::history::{self, View};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Reference, manifest::MAX_DOCUMENT};
use imgctl_frontend::{
    context::Context, format::print_each, image_options::PlatformArg,
    registry_options::RegistryArgs,
};
use imgctl_transfer::transfer::plan::{Plain, Platforms};
use imgctl_transfer::transfer::{copy::Copier, location::Location};

/// Show details of an image, a manifest or layers
#[derive(Args, Debug)]
#[command(
    after_help = "The fields of an image are those that buildah and sealos print, so their templates work.

Examples:
  imgctl inspect etcd:v1
  imgctl inspect -f '{{.OCIv1.Config.Labels}}' etcd:v1
  imgctl inspect -f '{{index .OCIv1.Config.Labels \"version\"}}' etcd:v1
  imgctl inspect -t manifest etcd:v1
  imgctl inspect docker://quay.io/coreos/etcd:v3.5.9"
)]
pub(crate) struct InspectArgs {
    /// Names, IDs or digests; docker://NAME, oci:DIR and so on for images outside the store
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Go template, or `json`
    #[arg(short, long, value_name = "TEMPLATE")]
    format: Option<String>,

    /// Type of object to show
    #[arg(short = 't', long = "type", value_enum, value_name = "TYPE", default_value = "image")]
    kind: Kind,

    #[command(flatten)]
    platform: PlatformArg,

    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Names, digests, configuration and manifest of an image
    Image,
    /// Manifest or index as stored
    Manifest,
    /// Layers: digests, sizes and kinds
    Layer,
    /// Same as image
    App,
    /// Not available: there are no containers
    #[value(hide = true)]
    Container,
}

/// Shows one object, or an array of objects for several names.
pub(crate) fn run(args: &InspectArgs, context: &Context) -> Result<()> {
    let views =
        args.names.iter().map(|name| view(args, name, context)).collect::<Result<Vec<_>>>()?;
    let format = args.format.as_deref().map(str::trim);
    // Go's encoder uses the JSON names; templates use the names of the fields.
    let as_json = |format: &str| format == "json" || format.replace(' ', "") == "{{json.}}";
    match format {
        Some(format) if !as_json(format) => {
            let printed = print_each(format, views.iter().map(|view| &view.fields), context);
            // buildah has the configuration as a text here, docker as an object.
            printed.map_err(|error| {
                if format.contains("{{.Config.") || format.contains(" .Config.") {
                    error.hint("docker's .Config is .OCIv1.Config here: {{.OCIv1.Config.Labels}}")
                } else {
                    error
                }
            })
        }
        _ => match &views[..] {
            [view] => context.ui.json(&view.json),
            views => context.ui.json(&views.iter().map(|view| &view.json).collect::<Vec<_>>()),
        },
    }
}

fn view(args: &InspectArgs, name: &str, context: &Context) -> Result<View> {
    match Location::parse(OsStr::new(name))? {
        Location::Name(_) => stored(args, name, context),
        // `oci:v1` may be the name of a stored image.
        _ if context.store()?.resolve(name).is_ok() => stored(args, name, context),
        place => elsewhere(args, &place, context),
    }
}

/// Reads an image in a registry, an archive or a directory without importing it.
fn elsewhere(args: &InspectArgs, place: &Location, context: &Context) -> Result<View> {
    let client = args.registry.client(context)?;
    let store = context.store()?;
    let platforms = match args.platform.wanted()? {
        Some(platform) => Platforms::Only(vec![platform]),
        None => Platforms::Host,
    };
    let scratch = store.scratch_directory()?;
    let reader = Copier::reading(store, &client, context.ui.reporter());
    let source = reader.source(place, &scratch)?;
    if args.kind == Kind::Manifest {
        return json_view(&source.root()?.bytes, &place.to_string());
    }
    let plain = Plain::read(&*source, &platforms).context(|| format!("cannot inspect {place}"))?;
    let mut image = plain.image;
    image.reference = match place {
        Location::Registry(name) => Some(name.clone().on_docker_hub().qualified()),
        _ => None,
    };
    match args.kind {
        Kind::Layer => {
            let json = history::layers(&image);
            Ok(View { fields: json.clone(), json })
        }
        _ => Ok(history::image(&image, &plain.manifest_bytes, &plain.config_bytes)),
    }
}

fn json_view(bytes: &[u8], name: &str) -> Result<View> {
    let json: Value = serde_json::from_slice(bytes).map_err(|error| {
        Error::bad_content(format!("the manifest of {name} is not JSON")).caused_by(error)
    })?;
    Ok(View { fields: json.clone(), json })
}

fn stored(args: &InspectArgs, name: &str, context: &Context) -> Result<View> {
    let store = context.store()?;
    let asking = |error: Error| match error.kind() {
        imgctl_base::error::Kind::NotFound if Reference::parse(name).is_ok() => {
            error.hint(format!("run `imgctl inspect docker://{name}` to ask the registry"))
        }
        _ => error,
    };
    match args.kind {
        Kind::Image | Kind::App => {
            let image = args.platform.image(name, context).map_err(asking)?;
            let manifest = store.read_blob(&image.descriptor.digest, MAX_DOCUMENT)?;
            let config = store.read_blob(image.id(), imgctl_base::image::config::MAX_CONFIG)?;
            Ok(history::image(&image, &manifest, &config))
        }
        Kind::Manifest => {
            let digest = store.resolve(name)?.descriptor.digest;
            let manifest = store.read_blob(&digest, MAX_DOCUMENT)?;
            json_view(&manifest, name)
        }
        Kind::Layer => {
            let json = history::layers(&args.platform.image(name, context)?);
            Ok(View { fields: json.clone(), json })
        }
        Kind::Container => Err(Error::usage("there are no containers to inspect")
            .hint("run `imgctl mounts --json` to see what is mounted")),
    }
}
