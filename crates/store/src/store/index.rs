//! The table of names: `index.json` as a value that preserves content written by other tools.
//!
//! Unsupported entries and members stay in place and are skipped. Must not depend on files or
//! locks.

use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Descriptor, Digest, Origin, Reference};

/// Annotation of a name: where the image came from ([`Origin`]). Only this table writes it.
const ORIGIN: &str = "io.imgctl.origin";

/// Maximum size of the table, in bytes: a name takes about 400.
pub(super) const MAX_TABLE: u64 = 256 << 20;

/// One name of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Full name; `None` for an image that has lost its name (`<none>`), for one found by digest or
    /// ID, and for a name that another tool wrote and imgctl does not accept
    /// ([`Descriptor::ref_name`] still returns it).
    pub reference: Option<Reference>,
    /// A manifest or an index.
    pub descriptor: Descriptor,
    /// Where the image came from; `None` if no record says it.
    pub origin: Option<Origin>,
}

impl Named {
    /// Returns where the image came from. Older versions recorded nothing: names of `localhost` are those
    /// of images built here, others those of registries.
    pub fn origin(&self) -> Option<Origin> {
        if let Some(origin) = &self.origin {
            return Some(origin.clone());
        }
        let reference = self.reference.as_ref()?;
        Some(match reference.registry() {
            Some(registry) if registry != LOCAL_REGISTRY => Origin::Registry(reference.clone()),
            _ => Origin::Built,
        })
    }
}

/// Content of `index.json`.
#[derive(Debug)]
pub(super) struct NameTable {
    document: Map<String, Value>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Entry as written in the file.
    value: Value,
    /// Parsed descriptor; `None` if another tool wrote something that is not a descriptor.
    descriptor: Option<Descriptor>,
}

impl Entry {
    fn ours(descriptor: Descriptor) -> Result<Self> {
        let value = serde_json::to_value(&descriptor)
            .map_err(|error| Error::failed("cannot encode a descriptor").caused_by(error))?;
        Ok(Self { value, descriptor: Some(descriptor) })
    }

    fn is_of(&self, digest: &Digest) -> bool {
        self.descriptor.as_ref().is_some_and(|descriptor| descriptor.digest == *digest)
    }

    fn ref_name(&self) -> Option<&str> {
        self.descriptor.as_ref()?.ref_name()
    }

    fn is_built(&self) -> bool {
        let origin = self.descriptor.as_ref().and_then(|found| found.annotations.get(ORIGIN));
        origin.is_some_and(|text| Origin::parse(text) == Origin::Built)
    }
}

impl NameTable {
    /// Parses the text of an `index.json`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let malformed = || {
            Error::bad_content("the store's table of names (index.json) is malformed")
                .hint("restore index.json from a backup, or use another --root")
        };
        let mut document = match serde_json::from_slice(bytes) {
            Ok(Value::Object(document)) => document,
            Ok(_) => return Err(malformed()),
            Err(error) => return Err(malformed().caused_by(error)),
        };
        let values = match document.get_mut("manifests") {
            Some(Value::Array(values)) => std::mem::take(values),
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(malformed()),
        };
        let entries = values
            .into_iter()
            .map(|value| Entry { descriptor: serde_json::from_value(value.clone()).ok(), value })
            .collect();
        Ok(Self { document, entries })
    }

    /// Returns the text to write.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut document = self.document.clone();
        let values = self.entries.iter().map(|entry| entry.value.clone());
        document.insert("manifests".to_owned(), Value::Array(values.collect()));
        serde_json::to_vec(&Value::Object(document))
            .map_err(|error| Error::failed("cannot encode the table of names").caused_by(error))
    }

    /// Returns all entries that are descriptors, named ones first, sorted by name, then by digest.
    pub(super) fn names(&self) -> Vec<Named> {
        let mut names: Vec<Named> = self
            .entries
            .iter()
            .filter_map(|entry| entry.descriptor.as_ref())
            .map(|descriptor| {
                let mut descriptor = descriptor.clone();
                let origin = descriptor.annotations.remove(ORIGIN);
                Named {
                    reference: descriptor.ref_name().and_then(|name| Reference::parse(name).ok()),
                    descriptor,
                    origin: origin.map(|text| Origin::parse(&text)),
                }
            })
            .collect();
        let key = |named: &Named| {
            let name = named.descriptor.ref_name().map(str::to_owned);
            (name.is_none(), name, named.descriptor.digest.clone())
        };
        names.sort_by_cached_key(key);
        names
    }

    /// Points `reference` at `descriptor`, which came from `origin`. An image that thereby loses its last
    /// name stays as an unnamed entry.
    pub(super) fn set(
        &mut self,
        reference: &Reference,
        descriptor: &Descriptor,
        origin: Option<&Origin>,
    ) -> Result<()> {
        let name = reference.to_string();
        let mut fresh = from(descriptor, origin.filter(|origin| !is_own(origin, reference)));
        fresh.annotations.insert(REF_NAME.to_owned(), name.clone());
        // An image built here stays one if it comes back, from an archive that was saved here.
        let is_built = |entry: &Entry| {
            entry.ref_name() == Some(&name) && entry.is_of(&descriptor.digest) && entry.is_built()
        };
        if self.entries.iter().any(is_built) {
            fresh.annotations.insert(ORIGIN.to_owned(), Origin::Built.to_string());
        }
        let fresh = Entry::ours(fresh)?;
        // An existing name keeps its position in the file; duplicates are removed.
        let mut place = None;
        let mut replaced = Vec::new();
        let mut kept = Vec::with_capacity(self.entries.len() + 1);
        for entry in std::mem::take(&mut self.entries) {
            let is_unnamed_twin = entry.ref_name().is_none() && entry.is_of(&descriptor.digest);
            if entry.ref_name() == Some(&name) {
                place.get_or_insert(kept.len());
                replaced.extend(entry.descriptor);
            } else if !is_unnamed_twin {
                kept.push(entry);
            }
        }
        kept.insert(place.unwrap_or(kept.len()), fresh);
        self.entries = kept;
        for old in replaced {
            if !self.contains(&old.digest) {
                self.entries.push(Entry::ours(without_name(&old))?);
            }
        }
        Ok(())
    }

    /// Adds an unnamed entry, unless the image is already in the table.
    pub(super) fn add_unnamed(
        &mut self,
        descriptor: &Descriptor,
        origin: Option<&Origin>,
    ) -> Result<()> {
        if !self.contains(&descriptor.digest) {
            self.entries.push(Entry::ours(from(descriptor, origin))?);
        }
        Ok(())
    }

    /// Removes the entry that `named` was read from; reports whether it existed.
    pub(super) fn remove(&mut self, named: &Named) -> bool {
        let reference = named.reference.as_ref().map(ToString::to_string);
        let name = named.descriptor.ref_name().or(reference.as_deref());
        let before = self.entries.len();
        self.entries
            .retain(|entry| !(entry.is_of(&named.descriptor.digest) && entry.ref_name() == name));
        self.entries.len() != before
    }

    /// Reports whether any entry refers to this image.
    pub(super) fn contains(&self, digest: &Digest) -> bool {
        self.entries.iter().any(|entry| entry.is_of(digest))
    }
}

/// Whether it is the origin that a name without a record has.
fn is_own(origin: &Origin, name: &Reference) -> bool {
    matches!(origin, Origin::Registry(other) if other == name)
        && name.registry().is_some_and(|registry| registry != LOCAL_REGISTRY)
}

/// The descriptor without a name, and with nothing but `origin` as its origin.
fn from(descriptor: &Descriptor, origin: Option<&Origin>) -> Descriptor {
    let mut descriptor = without_name(descriptor);
    descriptor.annotations.remove(ORIGIN);
    if let Some(origin) = origin {
        descriptor.annotations.insert(ORIGIN.to_owned(), origin.to_string());
    }
    descriptor
}

fn without_name(descriptor: &Descriptor) -> Descriptor {
    let mut descriptor = descriptor.clone();
    descriptor.annotations.remove(REF_NAME);
    descriptor
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use imgctl_base::image::media_type;

    fn image(content: &str) -> Descriptor {
        Descriptor::new(media_type::OCI_MANIFEST, Digest::of(content.as_bytes()), 7)
    }

    fn empty() -> NameTable {
        NameTable::parse(br#"{"schemaVersion":2}"#).unwrap()
    }

    fn shown(table: &NameTable) -> Vec<(String, Digest)> {
        let name = |named: Named| {
            let name = named.descriptor.ref_name().unwrap_or("<none>").to_owned();
            (name, named.descriptor.digest)
        };
        table.names().into_iter().map(name).collect()
    }

    fn name(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn an_image_that_loses_its_last_name_stays_unnamed_and_can_be_named_again() {
        let (a, b) = (image("a"), image("b"));
        let mut table = empty();
        table.set(&name("x.io/n:1"), &a, None).unwrap();
        table.set(&name("x.io/n:2"), &a, None).unwrap();
        table.set(&name("x.io/n:1"), &b, None).unwrap();
        let expected = [("x.io/n:1", &b), ("x.io/n:2", &a)];
        assert_eq!(shown(&table), expected.map(|(n, d)| (n.to_owned(), d.digest.clone())));
        table.set(&name("x.io/n:2"), &b, None).unwrap();
        let expected = [("x.io/n:1", &b), ("x.io/n:2", &b), ("<none>", &a)];
        assert_eq!(shown(&table), expected.map(|(n, d)| (n.to_owned(), d.digest.clone())));
        table.set(&name("x.io/old:1"), &a, None).unwrap();
        let expected = [("x.io/n:1", &b), ("x.io/n:2", &b), ("x.io/old:1", &a)];
        assert_eq!(shown(&table), expected.map(|(n, d)| (n.to_owned(), d.digest.clone())));
    }

    #[test]
    fn removing_takes_one_name_and_leaves_the_others() {
        let a = image("a");
        let mut table = empty();
        table.set(&name("x.io/n:1"), &a, None).unwrap();
        table.set(&name("x.io/n:2"), &a, None).unwrap();
        let names = table.names();
        assert!(table.remove(&names[0]));
        assert!(!table.remove(&names[0]));
        assert_eq!(shown(&table), [("x.io/n:2".to_owned(), a.digest.clone())]);
        assert!(table.remove(&names[1]));
        assert!(!table.contains(&a.digest));
    }

    #[test]
    fn what_other_tools_wrote_stays_and_does_no_harm() {
        let digest = Digest::of(b"a");
        let text = format!(
            r#"{{"schemaVersion":2,"x-member":{{"k":1}},"manifests":[
                {{"mediaType":"{0}","digest":"md5:1","size":1}},
                17,
                {{"mediaType":"{0}","digest":"{digest}","size":1,"x-entry":true,
                  "annotations":{{"org.opencontainers.image.ref.name":"NOT a name"}}}}]}}"#,
            media_type::OCI_MANIFEST
        );
        let mut table = NameTable::parse(text.as_bytes()).unwrap();
        let names = table.names();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].reference, None);
        assert_eq!(names[0].descriptor.ref_name(), Some("NOT a name"));
        table.set(&name("x.io/n:1"), &image("b"), None).unwrap();
        let written: Value = serde_json::from_slice(&table.to_bytes().unwrap()).unwrap();
        assert_eq!(written["x-member"]["k"], 1);
        assert_eq!(written["manifests"][1], 17);
        assert_eq!(written["manifests"][2]["x-entry"], true);
        assert_eq!(written["manifests"].as_array().unwrap().len(), 4);
        assert!(table.remove(&names[0]), "a bad name can be removed");
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        for text in ["", "[]", "{", r#"{"manifests":3}"#] {
            assert!(NameTable::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    /// For any file content: no panic, and a parsed table is written back unchanged.
    #[test]
    fn any_bytes_are_refused_or_kept() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(table) = NameTable::parse(bytes) {
                let again = NameTable::parse(&table.to_bytes().unwrap()).unwrap();
                assert_eq!(again.names(), table.names());
            }
        });
    }

    proptest! {
        /// For any names in any order: a name points at the descriptor set last, every image that
        /// was ever set is still reachable, and the text parses to the same table.
        #[test]
        fn names_point_at_what_was_set_last(steps in prop::collection::vec((0_u8..5, 0_u8..4), 0..30)) {
            let mut table = empty();
            let mut last = std::collections::BTreeMap::new();
            for (n, i) in &steps {
                let reference = name(&format!("x.io/n:{n}"));
                table.set(&reference, &image(&i.to_string()), None).unwrap();
                last.insert(reference.to_string(), Digest::of(i.to_string().as_bytes()));
            }
            let table = NameTable::parse(&table.to_bytes().unwrap()).unwrap();
            for (name, digest) in &last {
                prop_assert!(shown(&table).contains(&(name.clone(), digest.clone())));
            }
            let unnamed = shown(&table).iter().filter(|(name, _)| name == "<none>").count();
            prop_assert_eq!(shown(&table).len(), last.len() + unnamed);
            for (_, i) in &steps {
                prop_assert!(table.contains(&Digest::of(i.to_string().as_bytes())));
            }
        }
    }
}
