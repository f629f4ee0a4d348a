//! `imgctl registry rm`.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::Reference;
use imgctl_registry::Target;

/// Remove images from a registry
#[derive(Args, Debug)]
#[command(
    visible_alias = "delete",
    after_help = "Removes the manifest behind a tag, and with it every tag of that manifest, as skopeo delete does;
with --tag-only, only the tag, if the registry allows that. Blobs are removed when the registry
collects garbage.

Examples:
  imgctl registry rm registry.example.com/team/app:v1
  imgctl registry rm --tag-only registry.example.com/team/app:latest"
)]
pub(crate) struct RmArgs {
    /// Image names with their registry; without a tag or digest, :latest
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Remove only the tag, not the manifest
    #[arg(long)]
    tag_only: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Removes the images one by one; stops at the first failure.
pub(crate) fn run(args: &RmArgs, context: &Context) -> Result<()> {
    let names = args.names.iter().map(|name| full_name(name)).collect::<Result<Vec<_>>>()?;
    let client = args.registry.client(context)?;
    let mut views = Vec::new();
    for name in &names {
        let repository = client.repository(name)?;
        let target = match Target::of(name) {
            Target::Tag(tag) if !args.tag_only => {
                let found = repository.head(&Target::Tag(tag))?.ok_or_else(|| {
                    Error::not_found(format!("{name} is not in its registry"))
                        .hint(format!("run `imgctl tags {}` to list its tags", name.name()))
                })?;
                Target::Digest(found.digest)
            }
            target => target,
        };
        repository.delete(&target).context(|| format!("cannot remove {name}"))?;
        show(name, &target, &mut views, context)?;
    }
    if context.ui.is_json() { context.ui.json(&views) } else { Ok(()) }
}

fn show(
    name: &Reference,
    target: &Target,
    views: &mut Vec<Value>,
    context: &Context,
) -> Result<()> {
    let digest = match target {
        Target::Digest(digest) => Some(digest),
        Target::Tag(_) => None,
    };
    views.push(json!({ "name": name.to_string(), "digest": digest }));
    if context.ui.is_json() { Ok(()) } else { context.ui.line(&format!("Removed: {name}")) }
}

/// Returns the full name. The registry must be given: no other registry is searched.
fn full_name(text: &str) -> Result<Reference> {
    let name = Reference::parse(text.trim_start_matches("docker://"))?;
    if name.registry().is_none() {
        return Err(Error::usage(format!("{name} does not name a registry")));
    }
    Ok(name.with_default_tag())
}
