//! `imgctl tags`.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::Reference;

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
        What::Tags(args) => run(args, context),
    }
}

/// Prints a line for each tag.
pub(crate) fn run(args: &TagsArgs, context: &Context) -> Result<()> {
    let written = args.repository.trim_start_matches("docker://");
    let name = Reference::parse(written)?;
    if name.tag().is_some() || name.digest().is_some() {
        return Err(Error::usage(format!("{name} is one image"))
            .hint(format!("name its repository: {}", name.name())));
    }
    let name = if written == args.repository { name } else { name.on_docker_hub() };
    let client = args.registry.client(context)?;
    let candidates = client.candidates(&name)?;
    let mut failed = None;
    for candidate in &candidates {
        let tags = client
            .repository(candidate)
            .and_then(|repository| repository.tags())
            .context(|| format!("cannot list the tags of {}", candidate.name()));
        match tags {
            Ok(tags) if context.ui.is_json() => {
                let view = json!({ "repository": candidate.name(), "tags": tags });
                return context.ui.json(&view);
            }
            Ok(tags) => return tags.iter().try_for_each(|tag| context.ui.line(tag)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed
        .unwrap_or_else(|| Error::new(Kind::Usage, format!("{name} does not name a registry"))))
}
