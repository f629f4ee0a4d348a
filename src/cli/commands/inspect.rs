//! `imgctl inspect`.

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::cli::commands::inspect_view;
use crate::cli::context::Context;
use crate::cli::platform::PlatformArg;
use crate::error::{Error, Result};
use crate::image::manifest::MAX_DOCUMENT;
use crate::template::value::from_json;
use crate::template::{Dialect, Missing, Template};

/// Show all about an image, a manifest or layers
#[derive(Args, Debug)]
#[command(
    after_help = "The members of an image are those buildah and sealos print, so their templates work.

Examples:
  imgctl inspect etcd:v1
  imgctl inspect -f '{{.OCIv1.Config.Labels}}' etcd:v1
  imgctl inspect -f '{{index .OCIv1.Config.Labels \"version\"}}' etcd:v1
  imgctl inspect -t manifest etcd:v1"
)]
pub(crate) struct InspectArgs {
    /// Names, IDs or digests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Go template, or `json`
    #[arg(short, long, value_name = "TEMPLATE")]
    format: Option<String>,

    /// What to show
    #[arg(
        short = 't',
        long = "type",
        value_enum,
        value_name = "TYPE",
        default_value = "image"
    )]
    kind: Kind,

    #[command(flatten)]
    platform: PlatformArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Names, digests, configuration and manifest of an image
    Image,
    /// The manifest or index as it is stored
    Manifest,
    /// The layers: digests, sizes, kinds
    Layer,
    /// Same as image
    App,
    /// Not available: there are no containers
    #[value(hide = true)]
    Container,
}

/// Shows one object, or an array of those of several names.
pub(crate) fn run(args: &InspectArgs, context: &Context) -> Result<()> {
    let views = args
        .names
        .iter()
        .map(|name| view(args, name, context))
        .collect::<Result<Vec<_>>>()?;
    let format = args.format.as_deref().map(str::trim);
    // Go's encoder uses the JSON names, templates the names of the fields.
    let as_json = |format: &str| format == "json" || format.replace(' ', "") == "{{json.}}";
    match format {
        Some(format) if !as_json(format) => {
            let text = format.replace("\\t", "\t").replace("\\n", "\n");
            let template = Template::parse("--format", &text, Dialect::Format, Missing::NoValue)?;
            for view in &views {
                context
                    .ui
                    .line(&template.render(&from_json(&view.fields))?)?;
            }
            Ok(())
        }
        _ => match &views[..] {
            [view] => context.ui.json(&view.json),
            views => context
                .ui
                .json(&views.iter().map(|view| &view.json).collect::<Vec<_>>()),
        },
    }
}

/// One object, as JSON and as templates see it.
pub(crate) struct View {
    pub(crate) json: Value,
    pub(crate) fields: Value,
}

fn view(args: &InspectArgs, name: &str, context: &Context) -> Result<View> {
    let store = context.store()?;
    match args.kind {
        Kind::Image | Kind::App => {
            let image = args.platform.image(name, context)?;
            let manifest = store.read_blob(&image.descriptor.digest, MAX_DOCUMENT)?;
            let config = store.read_blob(image.id(), crate::image::config::MAX_CONFIG)?;
            Ok(inspect_view::image(&image, &manifest, &config))
        }
        Kind::Manifest => {
            let digest = store.resolve(name)?.descriptor.digest;
            let manifest = store.read_blob(&digest, MAX_DOCUMENT)?;
            let json: Value = serde_json::from_slice(&manifest).map_err(|error| {
                Error::bad_content(format!("the manifest of {name} is not JSON")).caused_by(error)
            })?;
            Ok(View {
                fields: json.clone(),
                json,
            })
        }
        Kind::Layer => {
            let json = inspect_view::layers(&args.platform.image(name, context)?);
            Ok(View {
                fields: json.clone(),
                json,
            })
        }
        Kind::Container => Err(Error::usage("there are no containers to inspect")
            .hint("imgctl mounts --json tells what is mounted")),
    }
}
