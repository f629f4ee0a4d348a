//! Images to copy into a registry or a tree under their own names without the registry host: from
//! registries, the store and archives (`registry save`, `registry copy`). Must not depend on the
//! command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::transfer::arbiter::Arbiter;
use crate::transfer::copy::Copier;
use crate::transfer::location::Location;
use crate::transfer::mirror::{self, Item, MirrorOptions, Mirrored};
use crate::transfer::mirror_place::{Place, name_of};
use crate::transfer::plan::{Platforms, Selection};
use crate::transfer::registry::RegistrySource;
use crate::transfer::source::ImageSource;
use crate::transfer::store::StoreSource;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Target};
use imgctl_store::store::Store;

/// Images to copy, as the user named them.
#[derive(Debug, Default)]
pub struct Sources {
    images: Vec<Reference>,
    archives: Vec<(Location, Reference)>,
}

impl Sources {
    /// Returns images given by name.
    pub fn of(words: &[OsString]) -> Result<Self> {
        let mut sources = Self::default();
        for word in words {
            let text = word.to_str().ok_or_else(|| {
                Error::usage(format!("`{}` is not an image name", word.display()))
            })?;
            sources.add_images([text])?;
        }
        Ok(sources)
    }

    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.archives.is_empty()
    }

    /// Adds images of registries, of the store, and archives as for [`Self::add_tar`].
    pub fn add_images<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for name in names {
            let reference = match Location::parse(OsStr::new(name))? {
                Location::Registry(reference) => reference,
                Location::Name(name) => Reference::parse(&name)?,
                _ => {
                    self.add_tar(name)?;
                    continue;
                }
            };
            if !self.images.contains(&reference) {
                self.images.push(reference);
            }
        }
        Ok(())
    }

    /// Adds images of registries; an archive of the same name takes precedence.
    pub fn add(&mut self, images: Vec<Reference>, archives: Vec<(Location, Reference)>) {
        let is_archived =
            |name: &Reference| archives.iter().any(|(_, reference)| reference == name);
        self.images.extend(images.into_iter().filter(|name| !is_archived(name)));
        self.archives.extend(archives);
    }

    /// Returns the number of images.
    pub fn count(&self) -> usize {
        self.images.len() + self.archives.len()
    }

    /// Adds an archive given as `docker-archive:FILE@NAME`.
    pub fn add_tar(&mut self, text: &str) -> Result<()> {
        let wrong = || {
            Error::usage(format!("`{text}` does not name the image"))
                .hint("write it as docker-archive:FILE@NAME:TAG or oci-archive:FILE@NAME:TAG")
        };
        let (place, name) = text.rsplit_once('@').ok_or_else(wrong)?;
        let place = Location::parse(OsStr::new(place))?;
        if matches!(place, Location::Name(_) | Location::Registry(_)) {
            return Err(wrong());
        }
        self.archives.push((place, Reference::parse(name)?.qualified()));
        Ok(())
    }

    /// Finds the images and copies them to a place under their own names, `jobs` at once.
    pub fn copy(
        &self,
        to: &Place,
        store: &Store,
        client: &Client,
        platforms: &Platforms,
        jobs: usize,
        reporter: &dyn Reporter,
    ) -> Result<Vec<Mirrored>> {
        // Archives are unpacked there.
        let scratch = store.scratch_directory()?;
        let mut found = Vec::new();
        for name in &self.images {
            found.push(find(store, client, name)?);
        }
        let reader = Copier::reading(store, client, reporter);
        for (place, reference) in &self.archives {
            let source = reader.source(place, &scratch)?;
            found.push(Found { reference: reference.clone(), source });
        }
        let options = MirrorOptions { selection: Selection::default(), images: jobs.max(1) };
        mirror::copy_all(&items(found, to, platforms)?, &options, reporter)
    }
}

/// A found image and its name.
pub struct Found<'a> {
    pub reference: Reference,
    pub source: Box<dyn ImageSource + 'a>,
}

/// Finds an image by name: local builds (`localhost/…`) in the store, all others in registries.
pub fn find<'a>(store: &Store, client: &Client, name: &Reference) -> Result<Found<'a>> {
    let is_local = name.registry().is_none_or(|host| host == LOCAL_REGISTRY);
    if is_local
        && let Ok(named) = store.resolve(&name.to_string())
        && let Some(reference) = &named.reference
        && reference.registry() == Some(LOCAL_REGISTRY)
    {
        return Ok(Found {
            reference: reference.clone(),
            source: Box::new(StoreSource::new(store, &named, &Arbiter::policy(client))?),
        });
    }
    let candidates = client.candidates(name)?;
    let mut last = Error::not_found(format!("there is no image `{name}`"));
    for reference in &candidates {
        let source = RegistrySource::new(client, reference)?;
        // A single candidate is checked when it is read.
        let there = match candidates.len() {
            1 => Ok(true),
            _ => source.exists(),
        };
        match there {
            Ok(true) => {
                return Ok(Found { reference: reference.clone(), source: Box::new(source) });
            }
            Ok(false) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the items to copy to `to`. Two images with the same name at the destination are an
/// error.
pub fn items<'a>(
    found: Vec<Found<'a>>,
    to: &'a Place,
    platforms: &Platforms,
) -> Result<Vec<Item<'a>>> {
    let mut names: BTreeMap<String, Reference> = BTreeMap::new();
    let mut items = Vec::new();
    for Found { reference, source } in found {
        let repository = reference.repository().to_owned();
        let target = match (reference.tag(), reference.digest()) {
            (Some(tag), _) => Target::Tag(tag.to_owned()),
            (None, Some(digest)) => Target::Digest(digest.clone()),
            (None, None) => Target::Tag("latest".to_owned()),
        };
        let name = name_of(&repository, &target);
        if let Some(other) = names.insert(name.clone(), reference.clone()) {
            if other == reference {
                continue;
            }
            return Err(Error::usage(format!(
                "{other} and {reference} would both be named {name}"
            ))
            .hint(
                "names are stored without their registry: copy one of the two to another \
                     place (`imgctl copy`)",
            ));
        }
        items.push(Item {
            sink: to.sink(&repository, &target)?,
            there: to.digest(&repository, &target)?,
            repository: to.repository(&repository),
            selection: selection(&reference, platforms),
            name,
            source,
        });
    }
    Ok(items)
}

/// An image named by digest must keep that digest, so its index stays complete whatever platforms
/// are selected.
fn selection(reference: &Reference, platforms: &Platforms) -> Selection {
    Selection {
        platforms: platforms.clone(),
        keep_index: reference.digest().is_some() || *platforms == Platforms::All,
    }
}

/// Parses a list of names, one per line; ignores blank lines, comments and quotes.
pub fn read_list(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.trim().trim_matches(['"', '\'']).trim())
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_comments_quotes_and_blank_lines() {
        let text = "# images\n\n quay.io/a:1 \r\n\"docker.io/b:2\"\n'c'\n#d\n";
        assert_eq!(read_list(text), ["quay.io/a:1", "docker.io/b:2", "c"]);
    }
}
