//! `imgctl pull`, and `imgctl tags` for what there is to pull.

use std::ffi::OsStr;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::image_options::{PlatformsArg, PolicyArg};
use crate::cli::{context::Context, registry_options::RegistryArgs};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Reference;
use imgctl_registry::Client;
use imgctl_transfer::transfer::pull::{self, PullOptions, Pulled};
use imgctl_transfer::transfer::{engine::JOBS, location::Location, plan::Selection};

/// Pull images from registries into the store
#[derive(Args, Debug)]
#[command(
    after_help = "A name without a registry is looked up as registries.conf says, otherwise on docker.io. Content
already in the store is not downloaded again, and interrupted downloads are resumed.

Examples:
  imgctl pull quay.io/coreos/etcd:v3.5.9
  imgctl pull --all-platforms registry.example.com/team/app:v1
  imgctl pull --platform linux/arm64 --unpack docker.io/library/alpine:3"
)]
pub(crate) struct PullArgs {
    /// Image names; a leading `docker://` is allowed
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    platforms: PlatformsArg,

    /// Pull all tags of the repositories
    #[arg(short, long)]
    all_tags: bool,

    /// Unpack the layers during the download, so that the image can be mounted at once
    #[arg(long)]
    unpack: bool,

    /// Pull policy
    #[arg(long, value_enum, value_name = "POLICY", default_value = "always")]
    policy: PolicyArg,

    /// Number of blobs to download in parallel
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Pulls the images and prints their IDs.
pub(crate) fn pull(args: &PullArgs, context: &Context) -> Result<()> {
    let options = PullOptions {
        selection: Selection { platforms: args.platforms.platforms()?, keep_index: false },
        policy: args.policy.policy(),
        unpack: args.unpack,
        jobs: args.jobs,
    };
    let names = args.names.iter().map(|name| reference(name)).collect::<Result<Vec<_>>>()?;
    let store = context.store()?;
    let client = args.registry.client(context)?;
    let mut views = Vec::new();
    for name in &names {
        for name in if args.all_tags { all_tags(&client, name)? } else { vec![name.clone()] } {
            let pulled = pull::pull(store, &client, &name, &options, context.ui.reporter())?;
            show(&pulled, &mut views, context)?;
        }
    }
    if context.ui.is_json() { context.ui.json(&views) } else { Ok(()) }
}

fn show(pulled: &Pulled, views: &mut Vec<Value>, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        views.push(view(pulled));
        return Ok(());
    }
    context.ui.say(&format!("{} {}", pulled.reference, pulled.descriptor.digest));
    // Like podman, print the image ID, which scripts read from stdout.
    let id = pulled.id.as_ref().unwrap_or(&pulled.descriptor.digest);
    context.ui.line(id.hex())
}

fn view(pulled: &Pulled) -> Value {
    let moved = pulled.moved;
    json!({
        "name": pulled.reference.to_string(),
        "digest": pulled.descriptor.digest,
        "mediaType": pulled.descriptor.media_type,
        "id": pulled.id,
        "blobs": { "copied": moved.copied, "existed": moved.existed },
        "bytesCopied": moved.bytes,
        "bytesTotal": moved.total,
    })
}

/// Returns the image that a name refers to, as typed.
fn reference(text: &str) -> Result<Reference> {
    match Location::parse(OsStr::new(text))? {
        Location::Name(name) => Reference::parse(&name),
        Location::Registry(name) => Ok(name.on_docker_hub()),
        other => Err(Error::usage(format!("{other} is not in a registry"))
            .hint(format!("load it with `imgctl load`, or `imgctl copy {other} NAME`"))),
    }
}

/// Returns the images of the repository, one for each tag.
fn all_tags(client: &Client, name: &Reference) -> Result<Vec<Reference>> {
    if name.tag().is_some() || name.digest().is_some() {
        return Err(Error::usage(format!(
            "--all-tags takes a repository, but {name} is one image"
        )));
    }
    let (found, tags) = find_tags(client, name)?;
    let full = |tag: &String| Reference::parse(&format!("{}:{tag}", found.name()));
    tags.iter().map(full).collect()
}

/// Returns the tags of a repository, and its name in the registry that has it.
fn find_tags(client: &Client, name: &Reference) -> Result<(Reference, Vec<String>)> {
    let mut failed = None;
    for candidate in client.candidates(name)? {
        let tags = client
            .repository(&candidate)
            .and_then(|repository| repository.tags())
            .context(|| format!("cannot list the tags of {}", candidate.name()));
        match tags {
            Ok(tags) => return Ok((candidate, tags)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| {
        Error::usage(format!("{name} does not name a registry")).hint("write REGISTRY/NAME")
    }))
}

/// List the tags of a repository in a registry
#[derive(Args, Debug)]
#[command(
    visible_alias = "list-tags",
    after_help = "Examples:
  imgctl tags quay.io/coreos/etcd
  imgctl tags --json docker://registry.example.com/team/app"
)]
pub(crate) struct TagsArgs {
    /// Repository, with or without its registry
    repository: String,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Search registries for images
#[derive(Args, Debug)]
pub(crate) struct SearchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Tags(TagsArgs),
}

/// Same as `tags`.
pub(crate) fn search(args: &SearchArgs, context: &Context) -> Result<()> {
    match &args.what {
        What::Tags(args) => tags(args, context),
    }
}

/// Prints a line for each tag.
pub(crate) fn tags(args: &TagsArgs, context: &Context) -> Result<()> {
    let written = args.repository.trim_start_matches("docker://");
    let name = Reference::parse(written)?;
    if name.tag().is_some() || name.digest().is_some() {
        return Err(Error::usage(format!("{name} is one image"))
            .hint(format!("name its repository: {}", name.name())));
    }
    let name = if written == args.repository { name } else { name.on_docker_hub() };
    let (found, tags) = find_tags(&args.registry.client(context)?, &name)?;
    if context.ui.is_json() {
        return context.ui.json(&json!({ "repository": found.name(), "tags": tags }));
    }
    tags.iter().try_for_each(|tag| context.ui.line(tag))
}
