//! Flags that describe a member of a manifest list, and lookup of members by name.

use std::ffi::OsStr;

use clap::Args;

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Reference;
use imgctl_frontend::{
    context::Context, image_options::platform_of, names::strict_pairs,
    registry_options::RegistryArgs,
};
use imgctl_transfer::transfer::location::Location;
use imgctl_transfer::transfer::manifest_list::{Choice, Details, Member, in_registry, in_store};

/// Description of a member in the list.
#[derive(Args, Clone, Debug)]
pub(super) struct DetailArgs {
    /// Operating system, overriding the image's
    #[arg(long, value_name = "OS")]
    os: Option<String>,

    /// Architecture, overriding the image's
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    /// Variant of the architecture
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,

    /// Version of the operating system
    #[arg(long, value_name = "VERSION")]
    os_version: Option<String>,

    /// Operating system features that the image requires
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    os_features: Vec<String>,

    /// Processor features; no longer part of OCI indexes
    #[arg(long, value_name = "FEATURE", hide = true)]
    features: Vec<String>,

    /// Annotation of the member, or of the list with --index
    #[arg(long = "annotation", value_name = "KEY=VALUE")]
    annotations: Vec<String>,
}

impl DetailArgs {
    /// Returns the flags as a value.
    pub(super) fn details(&self, context: &Context) -> Result<Details> {
        if !self.features.is_empty() {
            context.ui.note("--features has no effect: OCI indexes have no such field");
        }
        Ok(Details {
            os: self.os.clone(),
            architecture: self.arch.clone(),
            variant: self.variant.clone(),
            os_version: self.os_version.clone(),
            os_features: self.os_features.clone(),
            annotations: strict_pairs(&self.annotations, "--annotation")?,
        })
    }

    /// Returns which of an image's own platforms to take.
    pub(super) fn choice(&self, all: bool) -> Choice {
        if all {
            return Choice::All;
        }
        Choice::One(platform_of(&self.os, &self.arch, &self.variant))
    }
}

/// Returns the choice of all platforms, or of this one, with this machine's for what is missing.
pub(super) fn choice(all: bool, os: &Option<String>, arch: &Option<String>) -> Choice {
    if all { Choice::All } else { Choice::One(platform_of(os, arch, &None)) }
}

/// Returns the members that `name` refers to: an image in the store, or otherwise in a registry.
pub(super) fn members(
    name: &str,
    choice: &Choice,
    registry: &RegistryArgs,
    context: &Context,
) -> Result<Vec<Member>> {
    let store = context.store()?;
    let missing = match Location::parse(OsStr::new(name))? {
        Location::Registry(reference) => {
            return in_registry(&registry.client(context)?, &reference.on_docker_hub(), choice);
        }
        Location::Name(name) => match store.resolve(&name) {
            Ok(named) => {
                return in_store(store, &named, choice, &registry.arbiter(context)?);
            }
            Err(error) if error.kind() == Kind::NotFound => error,
            Err(error) => return Err(error),
        },
        other => {
            return Err(Error::usage(format!("cannot add {other} to a list"))
                .hint("load it first (`imgctl load`), then add it by its name"));
        }
    };
    match Reference::parse(name) {
        Ok(reference) if reference.registry().is_some() => {
            in_registry(&registry.client(context)?, &reference.on_docker_hub(), choice)
        }
        _ => Err(missing),
    }
}
