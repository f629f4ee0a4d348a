//! Publishes an image of the store so that no tag refers to an incomplete image: pushes the image to
//! every repository by digest, then its attachments, and writes the tags last. Must not depend on the command line, or on what is attached.

use std::collections::BTreeMap;

use crate::transfer::push::{self, Destination, PushOptions, PushReport};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Reference, manifest::MAX_DOCUMENT};
use imgctl_base::progress::Reporter;
use imgctl_registry::{Client, Repository, Target};
use imgctl_store::store::{Named, Store};

/// A place in a registry that gets the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Includes a registry.
    pub name: Reference,
    /// Only the repository gets the image, under its digest; no tag is written.
    pub by_digest: bool,
}

impl Place {
    /// Returns the place that `name` means. Refuses a name without a registry, because a push must not
    /// guess its destination.
    pub fn new(name: &Reference, by_digest: bool) -> Result<Self> {
        if name.registry().is_none_or(|registry| registry == LOCAL_REGISTRY) {
            let bare = name.repository();
            return Err(Error::usage(format!("`{name}` does not name a registry to push to"))
                .hint(format!(
                    "write it out, for example docker.io/{bare} or registry.example.com/{bare}"
                )));
        }
        if name.digest().is_some() {
            return Err(Error::usage(format!("cannot push to {name}: its digest is not chosen"))
                .hint("name a tag, or push to the repository by digest"));
        }
        Ok(Self { name: name.clone().with_default_tag(), by_digest })
    }
}

/// A place to which the image was published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The name with its tag, or the repository with the digest.
    pub name: Reference,
    pub report: PushReport,
}

/// Runs in each repository after the image is there and before a tag refers to it.
pub type Attach<'a> = dyn Fn(&Repository) -> Result<()> + 'a;

/// Publishes `image` at `places`, in their order. A failure leaves all names as they were, unless it
/// is the writing of the names itself that fails; the error says which name is missing.
pub fn publish(
    store: &Store,
    client: &Client,
    image: &Named,
    places: &[Place],
    jobs: usize,
    attach: &Attach<'_>,
    reporter: &dyn Reporter,
) -> Result<Vec<Published>> {
    let root = &image.descriptor;
    let lease = store.lease()?;
    lease.hold_all(store.parts(root)?.keys())?;
    let document = store.read_blob(&root.digest, MAX_DOCUMENT)?;
    let options = PushOptions { jobs, ..PushOptions::default() };
    let mut reports: BTreeMap<String, (Reference, PushReport)> = BTreeMap::new();
    for Place { name, .. } in places {
        if reports.contains_key(&name.name()) {
            continue;
        }
        let at = Reference::parse(&format!("{}@{}", name.name(), root.digest))?;
        let destination = Destination::Registry(&at);
        let report = push::push(store, client, image, &destination, &options, reporter)?;
        attach(&client.repository(&at)?)?;
        reports.insert(name.name(), (at, report));
    }
    let mut published = Vec::new();
    for Place { name, by_digest } in places {
        let Some((at, report)) = reports.get(&name.name()) else {
            continue;
        };
        let mut done = Published { name: at.clone(), report: report.clone() };
        if !by_digest {
            done.name = name.clone();
            let repository = client.repository(name)?;
            let target = Target::of(name);
            let there = repository.head(&target)?;
            if there.is_none_or(|there| there.digest != root.digest) {
                done.report.up_to_date = false;
                repository.push_document(&target, &root.media_type, &document).context(|| {
                    format!("cannot name the image {name}; {at} is complete and has no other name")
                })?;
            }
        }
        published.push(done);
    }
    Ok(published)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    #[test]
    fn a_place_names_a_registry_and_no_digest() {
        let place = |text: &str| Place::new(&Reference::parse(text).unwrap(), false);
        assert_eq!(place("reg.io/a/b").unwrap().name.to_string(), "reg.io/a/b:latest");
        let digest = format!("reg.io/a@sha256:{}", "0".repeat(64));
        for wrong in ["a/b:v1", "localhost/a/b:v1", &digest] {
            assert_eq!(place(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }
}
