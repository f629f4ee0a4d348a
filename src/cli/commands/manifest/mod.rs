//! `imgctl manifest`: the group of verbs that create and change manifest lists.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, Reference};

mod add;
mod annotate;
mod create;
mod details;
mod exists;
mod inspect;
mod push;
mod remove;
mod rm;

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
    Create(create::CreateArgs),
    Add(add::AddArgs),
    Annotate(annotate::AnnotateArgs),
    Inspect(inspect::InspectArgs),
    Push(Box<push::PushArgs>),
    Remove(remove::RemoveArgs),
    Rm(rm::RmArgs),
    Exists(exists::ExistsArgs),
}

/// Runs the verb.
pub(crate) fn run(args: &ManifestArgs, context: &Context) -> Result<()> {
    match &args.verb {
        ManifestVerb::Create(args) => create::run(args, context),
        ManifestVerb::Add(args) => add::run(args, context),
        ManifestVerb::Annotate(args) => annotate::run(args, context),
        ManifestVerb::Inspect(args) => inspect::run(args, context),
        ManifestVerb::Push(args) => push::run(args, context),
        ManifestVerb::Remove(args) => remove::run(args, context),
        ManifestVerb::Rm(args) => rm::run(args, context),
        ManifestVerb::Exists(args) => exists::run(args, context),
    }
}

/// Shows the digest of a changed list.
fn show(list: &Descriptor, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        context.ui.json(&json!({"digest": list.digest}))
    } else {
        context.ui.line(&list.digest.to_string())
    }
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
