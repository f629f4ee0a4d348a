//! Manifest lists assembled with `manifest create`, `add`, `annotate` and `remove`.
//!
//! A list is a named index in the store. Its members need not be in the store: a member added from
//! a registry stays there, and the list's entry in the table of names records its origin (in an
//! annotation that is never sent to a registry), so that a push copies the member from its origin
//! or leaves it in place. Must not depend on the command line.

use std::collections::BTreeMap;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::names::CONTAINERD_NAME;
use crate::transfer::plan::read_config;
use crate::transfer::registry::RegistrySource;
use crate::transfer::source::ImageSource;
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::{
    Descriptor, Digest, Document, ImageConfig, Index, Platform, Reference, Verdict, media_type,
};
use imgctl_registry::Client;
use imgctl_store::store::{Named, Store};

/// Annotation on a list's entry in the table of names: a JSON object from members' digests to
/// `registry/repository`.
const ORIGINS: &str = "io.imgctl.list.origins";
/// Maximum number of members in a list.
const MAX_MEMBERS: usize = 10_000;

/// A list in the store, open for changes. While it is held, other processes cannot change lists.
pub struct ManifestList<'a> {
    store: &'a Store,
    reference: Reference,
    /// The stored list; `None` while a new one is being created.
    stored: Option<Named>,
    index: Index,
    /// Origins of members that are not in the store.
    origins: BTreeMap<Digest, String>,
    /// About the list as it was, and what was added.
    verdicts: Vec<Verdict>,
    _lock: Lock,
}

/// An image to be added to a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Includes the platform and annotations.
    pub descriptor: Descriptor,
    /// `registry/repository`, unless it is in the store.
    pub origin: Option<String>,
    /// About the image that it is, or is part of.
    pub verdict: Verdict,
}

/// Metadata of a list member; fields that are not set remain unchanged.
#[derive(Clone, Debug, Default)]
pub struct Details {
    pub os: Option<String>,
    pub architecture: Option<String>,
    pub variant: Option<String>,
    pub os_version: Option<String>,
    pub os_features: Vec<String>,
    pub annotations: BTreeMap<String, String>,
}

impl<'a> ManifestList<'a> {
    /// Creates a list. An existing list of that name is an error, unless `amend` is set, which
    /// opens it.
    pub fn create(
        store: &'a Store,
        reference: &Reference,
        amend: bool,
        arbiter: &Arbiter,
    ) -> Result<Self> {
        let lock = lock(store)?;
        let reference = reference.qualified();
        let existing =
            store.names()?.into_iter().find(|named| named.reference.as_ref() == Some(&reference));
        match existing {
            Some(_) if !amend => {
                Err(Error::usage(format!("the name {reference} is already in use")).hint(
                    "add to an existing list with --amend or `imgctl manifest add`, or remove it \
                 with `imgctl manifest rm`",
                ))
            }
            Some(named) => Self::of(store, named, arbiter, lock),
            None => Ok(Self {
                store,
                reference,
                stored: None,
                index: Index::new(Vec::new()),
                origins: BTreeMap::new(),
                verdicts: Vec::new(),
                _lock: lock,
            }),
        }
    }

    /// Opens the list called `name`.
    pub fn open(store: &'a Store, name: &str, arbiter: &Arbiter) -> Result<Self> {
        let lock = lock(store)?;
        Self::of(store, find(store, name)?.0, arbiter, lock)
    }

    fn of(store: &'a Store, named: Named, arbiter: &Arbiter, lock: Lock) -> Result<Self> {
        let index = index_of(store, &named)?;
        let verdict = arbiter.admit_input(store, &named)?;
        let reference = named.reference.clone().ok_or_else(|| {
            Error::usage(format!(
                "the list {} has no name, and only a named one can be changed",
                named.descriptor.digest
            ))
            .hint("give it one with `imgctl tag`")
        })?;
        Ok(Self {
            store,
            reference,
            origins: origins(&named.descriptor),
            stored: Some(named),
            index,
            verdicts: vec![verdict],
            _lock: lock,
        })
    }

    /// Adds a member, replacing one with the same digest in place.
    pub fn add(&mut self, member: Member, details: &Details) -> Result<()> {
        let mut entry = member.descriptor;
        entry.annotations.remove(REF_NAME);
        entry.annotations.remove(CONTAINERD_NAME);
        entry.annotations.remove(ORIGINS);
        details.apply(&mut entry);
        self.verdicts.push(member.verdict);
        match member.origin {
            Some(origin) => self.origins.insert(entry.digest.clone(), origin),
            None => self.origins.remove(&entry.digest),
        };
        let entries = &mut self.index.manifests;
        match entries.iter().position(|o| o.digest == entry.digest) {
            Some(place) => entries[place] = entry,
            None if entries.len() >= MAX_MEMBERS => {
                return Err(Error::usage(format!("a list has at most {MAX_MEMBERS} members")));
            }
            None => entries.push(entry),
        }
        Ok(())
    }

    /// Changes the metadata of a member.
    pub fn annotate(&mut self, digest: &Digest, details: &Details) -> Result<()> {
        let missing = self.missing(digest);
        let mut entries = self.index.manifests.iter_mut();
        let entry = entries.find(|entry| entry.digest == *digest);
        details.apply(entry.ok_or(missing)?);
        Ok(())
    }

    /// Annotates the list itself.
    pub fn annotate_index(&mut self, annotations: &BTreeMap<String, String>) {
        let pairs = annotations.iter().map(|(k, v)| (k.clone(), v.clone()));
        self.index.annotations.extend(pairs);
    }

    /// Removes a member.
    pub fn remove(&mut self, digest: &Digest) -> Result<()> {
        let missing = self.missing(digest);
        let before = self.index.manifests.len();
        self.index.manifests.retain(|entry| entry.digest != *digest);
        self.origins.remove(digest);
        if self.index.manifests.len() == before { Err(missing) } else { Ok(()) }
    }

    fn missing(&self, digest: &Digest) -> Error {
        Error::not_found(format!("{digest} is not in the list {}", self.reference))
            .hint("run `imgctl manifest inspect` to see what is in it")
    }

    /// Writes the list and points its name at it. The previous version is not kept as an unnamed
    /// image.
    pub fn save(self) -> Result<Descriptor> {
        let media = self.index.media_type.as_deref();
        let media = media.unwrap_or(media_type::OCI_INDEX);
        let mut descriptor = self.store.put_document(media, &self.index)?;
        set_origins(&mut descriptor, &self.origins)?;
        let verdict = Verdict::made_from(&self.verdicts);
        self.store.tag_list(&self.reference, &descriptor, &verdict)?;
        if let Some(mut old) = self.stored
            && old.descriptor.digest != descriptor.digest
        {
            // The entry that the table keeps for an image without names.
            old.reference = None;
            old.descriptor.annotations.remove(REF_NAME);
            self.store.untag(&[old])?;
        }
        Ok(descriptor)
    }
}

impl Details {
    /// Returns whether no field is set.
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.platform_is_empty()
    }

    fn platform_is_empty(&self) -> bool {
        let texts = [&self.os, &self.architecture, &self.variant, &self.os_version];
        texts.iter().all(|text| text.is_none()) && self.os_features.is_empty()
    }

    fn apply(&self, entry: &mut Descriptor) {
        let pairs = self.annotations.iter();
        entry.annotations.extend(pairs.map(|(k, v)| (k.clone(), v.clone())));
        if self.platform_is_empty() {
            return;
        }
        let old = entry.platform.take().unwrap_or_else(Platform::host);
        let os = self.os.as_deref().unwrap_or(&old.os);
        // A variant is only valid for its architecture.
        let variant = match (&self.variant, &self.architecture) {
            (Some(variant), _) => Some(variant.as_str()),
            (None, Some(_)) => None,
            (None, None) => old.variant.as_deref(),
        };
        let architecture = self.architecture.as_deref().unwrap_or(&old.architecture);
        let mut platform = Platform::new(os, architecture, variant);
        platform.os_version = self.os_version.clone().or(old.os_version);
        platform.os_features =
            if self.os_features.is_empty() { old.os_features } else { self.os_features.clone() };
        entry.platform = Some(platform);
    }
}

/// Returns the list called `name` and its index.
pub fn find(store: &Store, name: &str) -> Result<(Named, Index)> {
    let named = store.resolve(name)?;
    let index = index_of(store, &named)
        .map_err(|error| error.retold(format!("`{name}` is not a manifest list")))?;
    Ok((named, index))
}

/// Origins of members and layers that are not in the store: `registry/repository`.
pub fn origins(list: &Descriptor) -> BTreeMap<Digest, String> {
    let Some(text) = list.annotations.get(ORIGINS) else {
        return BTreeMap::new();
    };
    // imgctl writes this annotation; a malformed value counts as empty.
    let map: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    map.into_iter()
        .filter(|(_, name)| Reference::parse(name).is_ok_and(|name| name.registry().is_some()))
        .filter_map(|(digest, name)| Some((Digest::parse(&digest).ok()?, name)))
        .collect()
}

/// Notes in the descriptor of a list or image where parts are that the store does not have.
pub fn set_origins(list: &mut Descriptor, origins: &BTreeMap<Digest, String>) -> Result<()> {
    list.annotations.remove(ORIGINS);
    if origins.is_empty() {
        return Ok(());
    }
    let map: BTreeMap<String, &String> =
        origins.iter().map(|(digest, name)| (digest.to_string(), name)).collect();
    let text = serde_json::to_string(&map)
        .map_err(|error| Error::failed("cannot encode the list's origins").caused_by(error))?;
    list.annotations.insert(ORIGINS.to_owned(), text);
    Ok(())
}

fn index_of(store: &Store, named: &Named) -> Result<Index> {
    match store.document(&named.descriptor)? {
        Document::Index(index) => Ok(index),
        Document::Manifest(_) => Err(Error::new(
            Kind::Usage,
            format!("{} is an image, not a manifest list", named.descriptor.digest),
        )
        .hint("create a list with `imgctl manifest create`, then add the image to it")),
    }
}

/// Locks the manifest lists: one process at a time reads, changes and writes them.
fn lock(store: &Store) -> Result<Lock> {
    let path = store.cache_directory().join("manifest-lists.lock");
    Lock::acquire(&path, Mode::Exclusive, &mut || {
        tracing::info!("waiting for another imgctl process that changes a manifest list");
    })
}

/// Which images of a multi-platform image to add.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Every member, including attestations.
    All,
    /// The member for this platform.
    One(Platform),
}

/// Returns the members for an image in the store.
pub fn in_store(
    store: &Store,
    named: &Named,
    choice: &Choice,
    arbiter: &Arbiter,
) -> Result<Vec<Member>> {
    let verdict = arbiter.admit_input(store, named)?;
    let from = origins(&named.descriptor);
    match store.document(&named.descriptor)? {
        Document::Index(index) => {
            let chosen = choose(index, choice)?;
            let member = |descriptor: Descriptor| Member {
                origin: from.get(&descriptor.digest).cloned(),
                descriptor,
                verdict: verdict.clone(),
            };
            Ok(chosen.into_iter().map(member).collect())
        }
        Document::Manifest(manifest) => {
            let mut descriptor = named.descriptor.clone();
            if manifest.is_image() {
                let config = store.read_blob(&manifest.config.digest, MAX_CONFIG)?;
                descriptor.platform = platform(&ImageConfig::parse(&config)?);
            }
            Ok(vec![Member { descriptor, origin: None, verdict }])
        }
    }
}

/// Returns the members for an image in a registry; they remain in the registry.
pub fn in_registry(client: &Client, reference: &Reference, choice: &Choice) -> Result<Vec<Member>> {
    let source = RegistrySource::new(client, reference)?;
    let root = source.root()?;
    let digest = root.descriptor.digest.clone();
    let declared = &root.descriptor.media_type;
    let document = Document::parse(&root.bytes, Some(declared))
        .context(|| format!("cannot use image {reference}"))?;
    let descriptors = match document {
        Document::Index(index) => choose(index, choice)?,
        Document::Manifest(manifest) => {
            let mut descriptor = root.descriptor;
            if manifest.is_image() {
                descriptor.platform = platform(&read_config(&source, &manifest.config)?);
            }
            vec![descriptor]
        }
    };
    let origin = Some(reference.name());
    let manifests: Vec<Digest> = descriptors.iter().map(|entry| entry.digest.clone()).collect();
    let verdict = client.admit(reference, &digest, &manifests)?;
    let member =
        |descriptor| Member { descriptor, origin: origin.clone(), verdict: verdict.clone() };
    Ok(descriptors.into_iter().map(member).collect())
}

/// The platform in a config, if it has one.
fn platform(config: &ImageConfig) -> Option<Platform> {
    let unknown = config.os.is_empty() && config.architecture.is_empty();
    (!unknown).then(|| config.platform())
}

fn choose(index: Index, choice: &Choice) -> Result<Vec<Descriptor>> {
    match choice {
        Choice::All => Ok(index.manifests),
        Choice::One(platform) => match index.select(platform)? {
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
    use imgctl_store::store::Options;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        (directory, store)
    }

    fn name(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    fn member(content: &str, platform: &str) -> Member {
        let digest = Digest::of(content.as_bytes());
        let mut descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, 7);
        descriptor.platform = Some(Platform::parse(platform).unwrap());
        Member {
            descriptor,
            origin: Some("reg.io:5000/team/app".to_owned()),
            verdict: Verdict::not_asked("a test"),
        }
    }

    #[test]
    fn a_list_is_made_changed_and_read_back() {
        let (_directory, store) = store();
        let mut list =
            ManifestList::create(&store, &name("x:1"), false, &Arbiter::everything()).unwrap();
        let none = Details::default();
        let (one, two) = (member("1", "linux/amd64"), member("2", "linux/amd64"));
        list.add(one.clone(), &none).unwrap();
        let arm = Details {
            architecture: Some("arm64".to_owned()),
            annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            ..Details::default()
        };
        list.add(two.clone(), &arm).unwrap();
        list.save().unwrap();

        let (named, index) = find(&store, "x:1").unwrap();
        let platforms: Vec<String> = index
            .manifests
            .iter()
            .map(|entry| entry.platform.as_ref().unwrap().to_string())
            .collect();
        assert_eq!(platforms, ["linux/amd64", "linux/arm64"]);
        assert_eq!(index.manifests[1].annotations["a"], "b");
        let origins = origins(&named.descriptor);
        assert_eq!(origins[&two.descriptor.digest], "reg.io:5000/team/app");
        let stored = store.read_blob(&named.descriptor.digest, 4096).unwrap();
        assert!(!String::from_utf8(stored).unwrap().contains("reg.io"));

        let mut list = ManifestList::open(&store, "x:1", &Arbiter::everything()).unwrap();
        list.remove(&one.descriptor.digest).unwrap();
        assert!(list.remove(&one.descriptor.digest).is_err());
        list.annotate(
            &two.descriptor.digest,
            &Details { variant: Some("v9".to_owned()), ..Details::default() },
        )
        .unwrap();
        list.save().unwrap();
        let (_, index) = find(&store, "localhost/x:1").unwrap();
        let platform = index.manifests[0].platform.as_ref().unwrap();
        assert_eq!(platform.to_string(), "linux/arm64/v9");
        // Previous versions of the list are not kept as unnamed images.
        assert_eq!(store.names().unwrap().len(), 1);
    }

    #[test]
    fn a_taken_name_and_an_image_are_refused() {
        let (_directory, store) = store();
        ManifestList::create(&store, &name("x:1"), false, &Arbiter::everything())
            .unwrap()
            .save()
            .unwrap();
        let again = ManifestList::create(&store, &name("x:1"), false, &Arbiter::everything());
        assert_eq!(again.err().unwrap().kind(), Kind::Usage);
        let mut amended =
            ManifestList::create(&store, &name("x:1"), true, &Arbiter::everything()).unwrap();
        amended.add(member("1", "linux/amd64"), &Details::default()).unwrap();
        amended.save().unwrap();
        assert_eq!(find(&store, "x:1").unwrap().1.manifests.len(), 1);
        assert_eq!(find(&store, "y").unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn the_same_member_twice_is_one() {
        let (_directory, store) = store();
        let mut list =
            ManifestList::create(&store, &name("x:1"), false, &Arbiter::everything()).unwrap();
        let mut one = member("1", "linux/amd64");
        list.add(one.clone(), &Details::default()).unwrap();
        list.add(member("2", "linux/arm64"), &Details::default()).unwrap();
        one.descriptor.platform = Some(Platform::parse("linux/riscv64").unwrap());
        one.origin = None;
        list.add(one, &Details::default()).unwrap();
        list.save().unwrap();
        let (named, index) = find(&store, "x:1").unwrap();
        assert_eq!(index.manifests.len(), 2);
        let platform = index.manifests[0].platform.as_ref().unwrap();
        assert_eq!(platform.architecture, "riscv64");
        assert_eq!(origins(&named.descriptor).len(), 1);
    }

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
            in_store(store, &named, choice, &Arbiter::everything())
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
