//! Which image a verb about signatures means: in a registry, in the store, in an OCI layout or in an
//! archive of one.

use std::ffi::OsStr;

use crate::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Reference, reference::LOCAL_REGISTRY};
use imgctl_registry::Client;
use imgctl_store::store::{Named, ScratchDirectory};
use imgctl_transfer::transfer::location::{Archived, Location};
use imgctl_trust::payload::expanded;
use imgctl_trust::place::Place;

/// An image as the command line names it.
pub enum Located {
    Registry(Reference),
    Store(Box<Named>),
    Layout(Archived),
    Archive(Archived),
}

impl std::fmt::Display for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Registry(reference) => write!(f, "{reference}"),
            Self::Store(named) => match &named.reference {
                Some(reference) => write!(f, "{reference}"),
                None => write!(f, "{}", named.descriptor.digest),
            },
            Self::Layout(place) => write!(f, "{}", Location::OciDirectory(place.clone())),
            Self::Archive(place) => write!(f, "{}", Location::OciArchive(place.clone())),
        }
    }
}

impl Located {
    /// Returns room to unpack an archive.
    pub fn scratch(&self, context: &Context) -> Result<Option<ScratchDirectory>> {
        match self {
            Self::Archive(_) => context.store()?.scratch_directory().map(Some),
            _ => Ok(None),
        }
    }

    /// Finds the image.
    pub fn place<'a>(
        &self,
        client: &Client,
        scratch: Option<&ScratchDirectory>,
        context: &'a Context,
    ) -> Result<Place<'a>> {
        match (self, scratch) {
            (Self::Registry(reference), _) => Place::in_registry(client, reference),
            (Self::Store(named), _) => Place::in_store(context.store()?, named),
            (Self::Archive(place), Some(scratch)) => {
                Place::in_archive(place, scratch.path(), context.settings.limits)
            }
            (Self::Layout(place) | Self::Archive(place), _) => Place::in_layout(place),
        }
    }
}

/// Finds out what the words mean: a name with a registry is there, unless `local`; any other name, an
/// ID or a digest is in the store.
pub fn located(images: &[String], local: bool, context: &Context) -> Result<Vec<Located>> {
    let one = |text: &String| match Location::parse(OsStr::new(text))? {
        Location::Registry(_) => Ok(Located::Registry(remote_image(text)?)),
        Location::OciDirectory(place) => Ok(Located::Layout(place)),
        Location::OciArchive(place) => Ok(Located::Archive(place)),
        Location::Name(name) => {
            let reference = Reference::parse(&name).ok();
            let registry = reference.as_ref().and_then(Reference::registry);
            if registry.is_some_and(|registry| registry != LOCAL_REGISTRY) && !local {
                return Ok(Located::Registry(remote_image(&name)?));
            }
            let found = context.store()?.resolve(&name);
            found.map(|found| Located::Store(Box::new(found))).map_err(|error| match reference {
                Some(reference) if registry_is_missing(&reference) && !local => {
                    error.hint(format!(
                        "for an image in a registry, write the full name, for example {}",
                        expanded(&reference)
                    ))
                }
                _ => error,
            })
        }
        other => Err(Error::usage(format!("{other} has no place for signatures"))
            .hint("NAME, oci:PATH[:NAME] and oci-archive:PATH[:NAME] have")),
    };
    images.iter().map(one).collect()
}

fn registry_is_missing(reference: &Reference) -> bool {
    reference.registry().is_none()
}

/// Parses an image in a registry, with or without a leading `docker://`; no tag means `:latest`.
/// Short names are refused: one can mean several images, and the wrong one would be signed.
pub fn remote_image(text: &str) -> Result<Reference> {
    let reference = Reference::parse(text.strip_prefix("docker://").unwrap_or(text))?;
    if reference.registry().is_none() {
        return Err(Error::usage(format!("`{text}` does not name a registry"))
            .hint(format!("write the full name, for example {}", expanded(&reference))));
    }
    Ok(reference.with_default_tag())
}
