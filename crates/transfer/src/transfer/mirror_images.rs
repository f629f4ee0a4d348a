//! Copies single images into a registry or a tree, under their names without the registry host:
//! `registry save`, `registry copy`. Must not depend on the command line.

use std::collections::BTreeMap;

use crate::transfer::mirror::Item;
use crate::transfer::mirror_place::{Place, name_of};
use crate::transfer::plan::{Platforms, Selection};
use crate::transfer::registry_source::RegistrySource;
use crate::transfer::source::ImageSource;
use crate::transfer::store_source::StoreSource;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_registry::{Client, Target};
use imgctl_store::store::Store;

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
            source: Box::new(StoreSource::new(store, &named)?),
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
