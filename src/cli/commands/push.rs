//! `imgctl push`.

use std::ffi::OsString;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::push_options::{PushFlags as Shared, write_digest};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Platform, Reference};
use imgctl_store::store::Named;
use imgctl_transfer::transfer::location::Location;
use imgctl_transfer::transfer::plan::Platforms;
use imgctl_transfer::transfer::push::{Destination, PushOptions, PushReport, push};

/// Push an image to a registry, an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "A multi-platform image is pushed with all platforms in the store, unless --platform selects some.
Content that the destination has is not sent; a registry is asked to mount blobs from its other
repositories first. Layers are pushed unchanged, unless --compression or --format changes them.

Destinations: [docker://]NAME, oci:PATH[:NAME], oci-archive:PATH[:NAME], docker-archive:PATH[:NAME],
dir:PATH, registry-dir:PATH:REPOSITORY:TAG

Examples:
  imgctl push registry.example.com/team/etcd:v1
  imgctl push etcd:v1 registry.example.com/team/etcd:v1
  imgctl push --compression gzip --format v2s2 etcd:v1 docker://old.example.com/etcd:v1
  imgctl push etcd:v1 oci-archive:etcd.tar"
)]
pub(crate) struct PushArgs {
    /// Name, ID or digest of an image in the store
    #[arg(value_name = "IMAGE")]
    image: String,

    /// Destination; without it, the registry in the image's name
    #[arg(value_name = "DESTINATION")]
    destination: Option<OsString>,

    /// Push all platforms of an image (the default)
    #[arg(long, conflicts_with = "platform")]
    all: bool,

    /// Push only these platforms of a multi-platform image
    #[arg(long, value_name = "OS/ARCH", value_delimiter = ',')]
    platform: Vec<String>,

    /// Remove the image from the store after the push
    #[arg(long)]
    rm: bool,

    #[command(flatten)]
    shared: Shared,
}

/// Pushes the image and prints its digest.
pub(crate) fn run(args: &PushArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let image = store.resolve(&args.image)?;
    let platforms = if args.platform.is_empty() {
        Platforms::All
    } else {
        Platforms::Only(
            args.platform
                .iter()
                .map(|platform| Platform::parse(platform))
                .collect::<Result<_>>()?,
        )
    };
    let options = PushOptions { platforms, ..args.shared.options()? };
    let location = match &args.destination {
        Some(text) => Location::parse(text)?,
        None => Location::Registry(own_name(&image)?),
    };
    let report = to(&location, &image, &options, &args.shared, context)?;
    write_digest(args.shared.digestfile.as_deref(), &report.root.digest)?;
    if args.rm {
        store.untag(&[image])?;
    }
    show(&location, &report, context)
}

/// Pushes to a location; also used by `manifest push`.
pub(crate) fn to(
    location: &Location,
    image: &Named,
    options: &PushOptions,
    shared: &Shared,
    context: &Context,
) -> Result<PushReport> {
    let store = context.store()?;
    let client = shared.registry.client(context)?;
    let reporter = context.ui.reporter();
    let name;
    let reference = match location {
        Location::Registry(reference) => Some(reference),
        Location::Name(text) => {
            name = Reference::parse(text)?;
            Some(&name)
        }
        _ => None,
    };
    if let Some(reference) = reference {
        let reference = addressed(reference)?;
        let destination = Destination::Registry(&reference);
        return push(store, &client, image, &destination, options, reporter);
    }
    let destination = Destination::Other(location);
    push(store, &client, image, &destination, options, reporter)
}

/// Returns the name with a registry and a tag, as a push requires.
fn addressed(reference: &Reference) -> Result<Reference> {
    if reference.registry().is_none() {
        return Err(Error::usage(format!("`{reference}` does not name a registry to push to"))
            .hint(format!(
                "write it out, for example docker.io/{reference} or localhost:5000/{reference}"
            )));
    }
    Ok(reference.qualified())
}

/// Returns the image's own name as the destination.
pub(crate) fn own_name(image: &Named) -> Result<Reference> {
    match &image.reference {
        Some(name) if name.registry() != Some(LOCAL_REGISTRY) => Ok(name.clone()),
        Some(name) => {
            Err(Error::usage(format!("the name {name} does not include a registry to push to"))
                .hint("pass a destination: imgctl push IMAGE REGISTRY/NAME:TAG"))
        }
        None => Err(Error::usage("an image without a name needs a destination")
            .hint("imgctl push IMAGE REGISTRY/NAME:TAG")),
    }
}

/// Shows the result of a push.
pub(crate) fn show(location: &Location, report: &PushReport, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        return context.ui.json(&json_of(location, report));
    }
    let moved = &report.moved;
    context.ui.say(&if report.up_to_date {
        format!("{location} is up to date")
    } else {
        format!(
            "pushed {location}: {} sent, {} mounted, {} there already",
            blobs(moved.copied),
            moved.mounted,
            moved.existed
        )
    });
    context.ui.line(&report.root.digest.to_string())
}

fn blobs(count: u64) -> String {
    format!("{count} {}", if count == 1 { "blob" } else { "blobs" })
}

fn json_of(location: &Location, report: &PushReport) -> Value {
    let moved = &report.moved;
    json!({
        "to": location.to_string(),
        "digest": report.root.digest,
        "mediaType": report.root.media_type,
        "upToDate": report.up_to_date,
        "blobs": {
            "copied": moved.copied,
            "mounted": moved.mounted,
            "existed": moved.existed,
        },
        "bytesCopied": moved.bytes,
        "bytesTotal": moved.total,
    })
}
