//! Finds the members to add to a manifest list: images of the store, or images of a registry, of
//! which only the documents are read. Must not depend on how lists are stored.

use crate::transfer::manifest_list::{Member, origins};
use crate::transfer::plan::read_config;
use crate::transfer::registry_source::RegistrySource;
use crate::transfer::source::ImageSource;
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::{
    Descriptor, Document, ImageConfig, Index, Manifest, Platform, Reference, media_type,
};
use imgctl_registry::Client;
use imgctl_store::store::{Named, Store};

/// Which images of a multi-platform image to add.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Every member, including attestations.
    All,
    /// The member for this platform.
    One(Platform),
}

/// Returns the members for an image in the store.
pub fn in_store(store: &Store, named: &Named, choice: &Choice) -> Result<Vec<Member>> {
    let from = origins(&named.descriptor);
    match store.document(&named.descriptor)? {
        Document::Index(index) => {
            let chosen = choose(index, choice)?;
            let member = |descriptor: Descriptor| Member {
                origin: from.get(&descriptor.digest).cloned(),
                descriptor,
            };
            Ok(chosen.into_iter().map(member).collect())
        }
        Document::Manifest(manifest) => {
            let mut descriptor = named.descriptor.clone();
            if is_image(&manifest) {
                let config = store.read_blob(&manifest.config.digest, MAX_CONFIG)?;
                descriptor.platform = platform(&ImageConfig::parse(&config)?);
            }
            Ok(vec![Member { descriptor, origin: None }])
        }
    }
}

/// Returns the members for an image in a registry; they remain in the registry.
pub fn in_registry(client: &Client, reference: &Reference, choice: &Choice) -> Result<Vec<Member>> {
    let source = RegistrySource::new(client, reference)?;
    let root = source.root()?;
    let declared = &root.descriptor.media_type;
    let document = Document::parse(&root.bytes, Some(declared))
        .context(|| format!("cannot use image {reference}"))?;
    let descriptors = match document {
        Document::Index(index) => choose(index, choice)?,
        Document::Manifest(manifest) => {
            let mut descriptor = root.descriptor;
            if is_image(&manifest) {
                descriptor.platform = platform(&read_config(&source, &manifest.config)?);
            }
            vec![descriptor]
        }
    };
    let origin = Some(reference.name());
    let member = |descriptor| Member { descriptor, origin: origin.clone() };
    Ok(descriptors.into_iter().map(member).collect())
}

fn is_image(manifest: &Manifest) -> bool {
    let media = manifest.config.media_type.as_str();
    matches!(media, media_type::OCI_CONFIG | media_type::DOCKER_CONFIG)
}

/// The platform in a config, if it has one.
fn platform(config: &ImageConfig) -> Option<Platform> {
    let unknown = config.os.is_empty() && config.architecture.is_empty();
    (!unknown).then(|| config.platform())
}

fn choose(index: Index, choice: &Choice) -> Result<Vec<Descriptor>> {
    match choice {
        Choice::All => Ok(index.manifests),
        Choice::One(platform) => match index.select(platform) {
            Some(entry) => Ok(vec![entry.clone()]),
            None => Err(Error::not_found(format!("the image is not available for {platform}"))
                .hint("add all of its platforms with --all, or choose one with --os and --arch")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::testing::{self, fixture, layer, load_bytes, tar};

    #[test]
    fn an_image_of_the_store_is_one_member_and_an_index_is_one_or_all() {
        let fixture = fixture();
        let mut layout = testing::Layout::default();
        let bytes = layer("x");
        let layers = [(media_type::OCI_LAYER, bytes.clone(), bytes)];
        let amd = layout.image(&layers, "linux/amd64");
        let arm = layout.image(&layers, "linux/arm64");
        let index = layout.index(vec![amd.clone(), arm.clone()]);
        layout.name(index, Some("reg.io/multi:1"));
        layout.name(arm.clone(), Some("reg.io/one:1"));
        load_bytes(&fixture.store, &tar(&layout.members())).unwrap();
        let store = &fixture.store;
        let members = |name: &str, choice: &Choice| {
            let named = store.resolve(name).unwrap();
            in_store(store, &named, choice)
        };
        let platform = |text: &str| Choice::One(Platform::parse(text).unwrap());
        let one = members("reg.io/one:1", &platform("linux/amd64")).unwrap();
        assert_eq!(one[0].descriptor.digest, arm.digest);
        let shown = one[0].descriptor.platform.as_ref().unwrap().to_string();
        assert_eq!(shown, "linux/arm64");
        let one = members("reg.io/multi:1", &platform("linux/amd64")).unwrap();
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].descriptor.digest, amd.digest);
        assert_eq!(members("reg.io/multi:1", &Choice::All).unwrap().len(), 2);
        assert!(members("reg.io/multi:1", &platform("linux/s390x")).is_err());
    }
}
