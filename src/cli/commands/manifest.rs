//! `imgctl manifest`: the verbs that create and change manifest lists.

use std::ffi::OsStr;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::commands::manifest_members::{DetailArgs, choice, members};
use crate::cli::commands::{push, rmi};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{self, Descriptor, Digest, Reference};
use imgctl_frontend::{context::Context, image_options::GateArg, registry_options::RegistryArgs};
use imgctl_transfer::transfer::manifest_list::{self, Details, ManifestList};
use imgctl_transfer::transfer::{
    location::Location, registry::RegistrySource, source::ImageSource,
};

/// Combine images for several platforms under one name
#[derive(Args, Debug)]
#[command(
    after_help = "A list is stored like an image, so `imgctl images`, `tag`, `rmi` and `save` work with it.

Examples:
  imgctl manifest create etcd:v1 etcd:v1-amd64 etcd:v1-arm64
  imgctl manifest push etcd:v1 docker://registry.example.com/team/etcd:v1"
)]
pub(crate) struct ManifestArgs {
    #[command(subcommand)]
    verb: ManifestVerb,
}

#[derive(Debug, Subcommand)]
enum ManifestVerb {
    Create(CreateArgs),
    Add(AddArgs),
    Annotate(AnnotateArgs),
    Inspect(InspectArgs),
    Push(Box<push::ListArgs>),
    Remove(RemoveArgs),
    Rm(RmArgs),
    Exists(ExistsArgs),
}

pub(crate) fn run(args: &ManifestArgs, context: &Context) -> Result<()> {
    match &args.verb {
        ManifestVerb::Create(args) => create(args, context),
        ManifestVerb::Add(args) => add(args, context),
        ManifestVerb::Annotate(args) => annotate(args, context),
        ManifestVerb::Inspect(args) => inspect(args, context),
        ManifestVerb::Push(args) => push::push_list(args, context),
        ManifestVerb::Remove(args) => remove(args, context),
        ManifestVerb::Rm(args) => rm(args, context),
        ManifestVerb::Exists(args) => exists(args, context),
    }
}

/// Shows the digest of a changed list.
fn show(list: &Descriptor, context: &Context) -> Result<()> {
    let view = json!({"digest": list.digest});
    context.ui.result(&view, &list.digest.to_string())
}

/// Returns the digest of a list's image, given by digest or by name.
fn digest_of(image: &str, context: &Context) -> Result<Digest> {
    if let Ok(digest) = Digest::parse(image) {
        return Ok(digest);
    }
    if let Ok(reference) = Reference::parse(image)
        && let Some(digest) = reference.digest()
    {
        return Ok(digest.clone());
    }
    Ok(context.store()?.resolve(image)?.descriptor.digest)
}

/// Create a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Images are looked up in the store, then in registries, where they stay.

Examples:
  imgctl manifest create etcd:v1
  imgctl manifest create --amend etcd:v1 etcd:v1-amd64 docker://registry.example.com/etcd:v1-arm64")]
struct CreateArgs {
    /// Name of the list
    list: String,

    /// Images to add to the list
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,

    /// Add all platforms of a multi-platform image
    #[arg(long)]
    all: bool,

    /// Add to the list if it exists
    #[arg(short, long)]
    amend: bool,

    /// Architecture to add of a multi-platform image [default: this machine's]
    #[arg(long, value_name = "ARCH", conflicts_with = "all")]
    arch: Option<String>,

    /// Operating system to add of a multi-platform image
    #[arg(long, value_name = "OS", conflicts_with = "all")]
    os: Option<String>,

    #[command(flatten)]
    registry: RegistryArgs,
}

fn create(args: &CreateArgs, context: &Context) -> Result<()> {
    let name = Reference::parse(&args.list)?;
    let choice = choice(args.all, &args.os, &args.arch);
    let mut found = Vec::new();
    for image in &args.images {
        found.extend(members(image, &choice, &args.registry, context)?);
    }
    let arbiter = args.registry.arbiter(context)?;
    let mut list = ManifestList::create(context.store()?, &name, args.amend, &arbiter)?;
    for member in found {
        list.add(member, &Details::default())?;
    }
    show(&list.save()?, context)
}

/// Add images to a manifest list
#[derive(Args, Debug)]
#[command(
    after_help = "Images are looked up in the store, then in registries, where they stay until the list is pushed.
From a multi-platform image, the one for --os and --arch is added (by default, this machine's), or
all of them with --all.

Examples:
  imgctl manifest add etcd:v1 etcd:v1-amd64
  imgctl manifest add etcd:v1 docker://registry.example.com/etcd:v1-arm64 --annotation tier=edge"
)]
struct AddArgs {
    /// Name of the list
    list: String,

    /// Images to add
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Add all platforms of a multi-platform image
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    details: DetailArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

fn add(args: &AddArgs, context: &Context) -> Result<()> {
    let details = args.details.details(context)?;
    let choice = args.details.choice(args.all);
    let mut found = Vec::new();
    for image in &args.images {
        found.extend(members(image, &choice, &args.registry, context)?);
    }
    let arbiter = args.registry.arbiter(context)?;
    let mut list = ManifestList::open(context.store()?, &args.list, &arbiter)?;
    for member in found {
        list.add(member, &details)?;
    }
    show(&list.save()?, context)
}

/// Change the entry of an image in a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl manifest annotate etcd:v1 sha256:6a92… --arch arm64 --variant v8
  imgctl manifest annotate --index --annotation org.opencontainers.image.version=1 etcd:v1")]
struct AnnotateArgs {
    /// Name of the list
    list: String,

    /// Digest of the image, or its name in the store
    #[arg(value_name = "IMAGE", required_unless_present = "index")]
    image: Option<String>,

    /// Annotate the list itself
    #[arg(long, conflicts_with = "image")]
    index: bool,

    #[command(flatten)]
    details: DetailArgs,

    #[command(flatten)]
    gate: GateArg,
}

fn annotate(args: &AnnotateArgs, context: &Context) -> Result<()> {
    let details = args.details.details(context)?;
    if details.is_empty() {
        return Err(Error::usage("nothing to change")
            .hint("pass --os, --arch, --variant, --os-version, --os-features or --annotation"));
    }
    let arbiter = args.gate.arbiter(context)?;
    let mut list = ManifestList::open(context.store()?, &args.list, &arbiter)?;
    match &args.image {
        Some(image) => list.annotate(&digest_of(image, context)?, &details)?,
        None => list.annotate_index(&details.annotations),
    }
    show(&list.save()?, context)
}

/// Show a manifest list, or the manifest of an image
#[derive(Args, Debug)]
#[command(after_help = "It is looked up in the store, then in the registry of its name.

Examples:
  imgctl manifest inspect etcd:v1
  imgctl manifest inspect docker://registry.example.com/team/etcd:v1")]
struct InspectArgs {
    /// Name of a list or image
    #[arg(value_name = "LIST")]
    name: String,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Prints the document as indented JSON.
fn inspect(args: &InspectArgs, context: &Context) -> Result<()> {
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
                Ok(named) => {
                    store.read_blob(&named.descriptor.digest, image::manifest::MAX_DOCUMENT)
                }
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

/// Remove an image from a manifest list
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl manifest remove etcd:v1 sha256:6a92cd1f…")]
struct RemoveArgs {
    /// Name of the list
    list: String,

    /// Digest of the image, or its name in the store
    image: String,

    #[command(flatten)]
    gate: GateArg,
}

fn remove(args: &RemoveArgs, context: &Context) -> Result<()> {
    let digest = digest_of(&args.image, context)?;
    let arbiter = args.gate.arbiter(context)?;
    let mut list = ManifestList::open(context.store()?, &args.list, &arbiter)?;
    list.remove(&digest)?;
    show(&list.save()?, context)
}

/// Remove manifest lists from the store
#[derive(Args, Debug)]
#[command(after_help = "Images in the list that have names of their own are kept.

Examples:
  imgctl manifest rm etcd:v1")]
struct RmArgs {
    /// Names of lists
    #[arg(required = true, value_name = "LIST")]
    lists: Vec<String>,
}

/// Removes the lists, then everything that is no longer needed.
fn rm(args: &RmArgs, context: &Context) -> Result<()> {
    let list = |name: &String| Ok(manifest_list::find(context.store()?, name)?.0);
    let chosen = args.lists.iter().map(list).collect::<Result<Vec<_>>>()?;
    rmi::remove(&chosen, context)?;
    let names: Vec<String> = chosen
        .iter()
        .map(|named| match &named.reference {
            Some(reference) => reference.to_string(),
            None => named.descriptor.digest.to_string(),
        })
        .collect();
    if context.ui.is_json() {
        return context.ui.json(&json!({"removed": names}));
    }
    names.iter().try_for_each(|name| context.ui.line(&format!("untagged: {name}")))
}

/// Report by exit code whether a manifest list exists
#[derive(Args, Debug)]
#[command(
    after_help = "The exit code is 0 if it exists, 3 if the name does not exist, 2 if it is an image.

Examples:
  imgctl manifest exists etcd:v1 || imgctl manifest create etcd:v1"
)]
struct ExistsArgs {
    /// Name of the list
    list: String,
}

/// Fails unless the list exists.
fn exists(args: &ExistsArgs, context: &Context) -> Result<()> {
    manifest_list::find(context.store()?, &args.list).map(drop)
}
