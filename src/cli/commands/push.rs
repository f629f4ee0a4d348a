//! `imgctl push` and `imgctl manifest push`.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::rmi::remove;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Reference, reference::LOCAL_REGISTRY};
use imgctl_frontend::context::Context;
use imgctl_frontend::image_options::{PushFlags, parsed};
use imgctl_store::store::Named;
use imgctl_transfer::transfer::push::{self, Destination, PushOptions, PushReport};
use imgctl_transfer::transfer::{location::Location, manifest_list, plan::Platforms};

/// Writes `--digestfile`: only the digest, as podman does.
fn write_digest(path: Option<&Path>, digest: &Digest) -> Result<()> {
    match path {
        Some(path) => std::fs::write(path, digest.to_string()).path("write", path),
        None => Ok(()),
    }
}

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
    shared: PushFlags,
}

/// Pushes the image and prints its digest.
pub(crate) fn push(args: &PushArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let image = store.resolve(&args.image)?;
    let platforms = match parsed(&args.platform)? {
        platforms if platforms.is_empty() => Platforms::All,
        platforms => Platforms::Only(platforms),
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
fn to(
    location: &Location,
    image: &Named,
    options: &PushOptions,
    shared: &PushFlags,
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
        return push::push(store, &client, image, &destination, options, reporter);
    }
    let destination = Destination::Other(location);
    push::push(store, &client, image, &destination, options, reporter)
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
fn own_name(image: &Named) -> Result<Reference> {
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
fn show(location: &Location, report: &PushReport, context: &Context) -> Result<()> {
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

/// Push a manifest list with its images
#[derive(Args, Debug)]
#[command(
    after_help = "Images of the list that are not in the store are copied from the registry where they were found,
within that registry if it is the same one.

Examples:
  imgctl manifest push etcd:v1 docker://registry.example.com/team/etcd:v1
  imgctl manifest push --rm registry.example.com/team/etcd:v1"
)]
pub(crate) struct ListArgs {
    /// Name of the list
    list: String,

    /// Destination; without it, the registry in the list's name
    #[arg(value_name = "DESTINATION")]
    destination: Option<OsString>,

    /// Also push the images; =false if the images are already at the destination
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    all: bool,

    /// Remove the list from the store after the push
    #[arg(long, visible_alias = "purge")]
    rm: bool,

    #[command(flatten)]
    shared: PushFlags,
}

/// Pushes the list and prints its digest.
pub(crate) fn push_list(args: &ListArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let (list, _) = manifest_list::find(store, &args.list)?;
    let options = PushOptions { list_only: !args.all, ..args.shared.options()? };
    let location = match &args.destination {
        Some(text) => Location::parse(text)?,
        None => Location::Registry(own_name(&list)?),
    };
    let report = to(&location, &list, &options, &args.shared, context)?;
    write_digest(args.shared.digestfile.as_deref(), &report.root.digest)?;
    if args.rm {
        remove(&[list], context)?;
    }
    show(&location, &report, context)
}
