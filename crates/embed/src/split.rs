//! Splits an existing registry tree into one part per image, so that a changed image changes only
//! one layer.
//!
//! Follows tags to manifests to blobs; files that it does not recognize stay together. Must not
//! depend on the source of the files.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{self, DIRECTORY};
use imgctl_base::error::Result;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Digest, Document};
use imgctl_registry::layout::paths;

/// Maximum size of a link file, in bytes.
const MAX_LINK: u64 = 256;
/// Maximum nesting depth of indexes that are followed.
const MAX_NESTING: usize = 4;

/// Reads the file with the given number; `None` if it is larger than the given size.
pub type ReadFile<'a> = dyn FnMut(usize, u64) -> Result<Option<Vec<u8>>> + 'a;

/// Purpose of a file in the tree.
#[derive(Debug, PartialEq, Eq)]
enum Role<'a> {
    Blob(Digest),
    Layer { repository: &'a str, digest: Digest },
    Revision { repository: &'a str, digest: Digest },
    Tag { repository: &'a str, tag: &'a str, is_current: bool },
    Other,
}

/// Returns the name of the part that each of `files` (paths in a cluster image) belongs to. Files
/// that belong to no image have the part `""`.
pub fn parts(files: &[&str], read: &mut ReadFile<'_>) -> Result<Vec<String>> {
    let roles: Vec<Role<'_>> = files.iter().map(|file| role(file)).collect();
    let tree = Tree::new(&roles, read)?;
    Ok(roles.iter().map(|role| tree.part(role)).collect())
}

/// The parts that use each digest and tag.
struct Tree<'a> {
    /// The part of each tag of each repository.
    tags: BTreeMap<(&'a str, &'a str), String>,
    /// The parts that use a digest.
    users: BTreeMap<Digest, BTreeSet<String>>,
    /// The first part that uses a digest in a repository.
    of_repository: BTreeMap<(&'a str, Digest), String>,
}

impl<'a> Tree<'a> {
    fn new(roles: &[Role<'a>], read: &mut ReadFile<'_>) -> Result<Self> {
        let mut blobs = BTreeMap::new();
        let mut current = BTreeMap::new();
        let mut revisions = BTreeSet::new();
        for (number, role) in roles.iter().enumerate() {
            match role {
                Role::Blob(digest) => {
                    blobs.insert(digest, number);
                }
                Role::Tag { repository, tag, is_current: true } => {
                    current.insert((*repository, *tag), number);
                }
                Role::Revision { repository, digest } => {
                    revisions.insert((*repository, digest.clone()));
                }
                _ => {}
            }
        }
        // Tagged roots come first; an untagged revision becomes a separate part.
        let mut roots: Vec<(&str, Option<&str>, Digest)> = Vec::new();
        for ((repository, tag), number) in current {
            let link = read(number, MAX_LINK)?.unwrap_or_default();
            let text = String::from_utf8_lossy(&link);
            if let Ok(digest) = Digest::parse(text.trim()) {
                roots.push((repository, Some(tag), digest));
            }
        }
        let mut documents = Documents { blobs: &blobs, read, known: BTreeMap::new() };
        let mut reached = BTreeSet::new();
        for (repository, _, root) in &roots {
            let all = documents.all_of(root)?;
            reached.extend(all.into_iter().map(|digest| (*repository, digest)));
        }
        // An index comes before the manifests that only it references.
        let mut untagged = Vec::new();
        for (repository, digest) in revisions {
            if !reached.contains(&(repository, digest.clone())) {
                untagged.push((documents.all_of(&digest)?.len(), repository, digest));
            }
        }
        untagged.sort_by(|a, b| (b.0, a.1, &a.2).cmp(&(a.0, b.1, &b.2)));
        for (_, repository, root) in untagged {
            if !reached.contains(&(repository, root.clone())) {
                let all = documents.all_of(&root)?;
                reached.extend(all.into_iter().map(|digest| (repository, digest)));
                roots.push((repository, None, root));
            }
        }
        Self::of_roots(&roots, &mut documents)
    }

    fn of_roots(
        roots: &[(&'a str, Option<&'a str>, Digest)],
        documents: &mut Documents<'_, '_>,
    ) -> Result<Self> {
        let is_crowded = roots.len() > plan::MAX_OWN_LAYERS;
        let mut tree =
            Self { tags: BTreeMap::new(), users: BTreeMap::new(), of_repository: BTreeMap::new() };
        for (repository, tag, root) in roots {
            let part = match (is_crowded, tag) {
                (true, _) => plan::bucket(repository),
                (false, Some(tag)) => format!("{repository}:{tag}"),
                (false, None) => format!("{repository}@{root}"),
            };
            if let Some(tag) = tag {
                tree.tags.insert((repository, tag), part.clone());
            }
            for digest in documents.all_of(root)? {
                let users = tree.users.entry(digest.clone()).or_default();
                users.insert(part.clone());
                let here = tree.of_repository.entry((repository, digest));
                here.or_insert_with(|| part.clone());
            }
        }
        Ok(tree)
    }

    fn part(&self, role: &Role<'_>) -> String {
        let part = match role {
            Role::Blob(digest) => {
                let users = self.users.get(digest);
                return match users.and_then(|users| Some((users.len(), users.first()?))) {
                    None => String::new(),
                    Some((1, part)) => part.clone(),
                    Some(_) => plan::shared(digest),
                };
            }
            Role::Layer { repository, digest } | Role::Revision { repository, digest } => {
                self.of_repository.get(&(*repository, digest.clone()))
            }
            Role::Tag { repository, tag, .. } => self.tags.get(&(*repository, *tag)),
            Role::Other => None,
        };
        part.cloned().unwrap_or_default()
    }
}

/// Documents of the tree, each read once.
struct Documents<'t, 'r> {
    blobs: &'t BTreeMap<&'t Digest, usize>,
    read: &'t mut ReadFile<'r>,
    /// Digests that each document references.
    known: BTreeMap<Digest, Vec<Digest>>,
}

impl Documents<'_, '_> {
    /// Returns the digest itself and everything reachable from it, without duplicates.
    fn all_of(&mut self, root: &Digest) -> Result<Vec<Digest>> {
        let mut all = vec![root.clone()];
        let mut seen = BTreeSet::from([root.clone()]);
        let mut pending = vec![(root.clone(), 0)];
        while let Some((digest, nesting)) = pending.pop() {
            for (child, is_document) in self.named_by(&digest)? {
                if seen.insert(child.clone()) {
                    all.push(child.clone());
                    if is_document && nesting < MAX_NESTING {
                        pending.push((child, nesting + 1));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns the digests that a document references, and whether each is a document; a malformed
    /// document references none.
    fn named_by(&mut self, digest: &Digest) -> Result<Vec<(Digest, bool)>> {
        let with = |children: &[Digest], is_document| {
            let children = children.iter();
            children.map(|child| (child.clone(), is_document)).collect()
        };
        if let Some(known) = self.known.get(digest) {
            return Ok(with(known, true));
        }
        let Some(number) = self.blobs.get(digest) else {
            return Ok(Vec::new());
        };
        let bytes = (self.read)(*number, MAX_DOCUMENT)?.unwrap_or_default();
        match Document::parse(&bytes, None) {
            Err(_) => Ok(Vec::new()),
            Ok(Document::Index(index)) => {
                let children = index.manifests.into_iter().map(|entry| entry.digest);
                let children: Vec<Digest> = children.collect();
                let named = with(&children, true);
                self.known.insert(digest.clone(), children);
                Ok(named)
            }
            Ok(Document::Manifest(manifest)) => {
                let parts = std::iter::once(manifest.config).chain(manifest.layers);
                Ok(parts.map(|part| (part.digest, false)).collect())
            }
        }
    }
}

/// Returns the purpose of the file at `path`.
fn role(path: &str) -> Role<'_> {
    let inside = path
        .strip_prefix(DIRECTORY)
        .and_then(|rest| rest.strip_prefix('/')?.strip_prefix(paths::BASE)?.strip_prefix('/'));
    inside.and_then(role_inside).unwrap_or(Role::Other)
}

fn role_inside(path: &str) -> Option<Role<'_>> {
    let digest = |algorithm: &str, hex: &str| Digest::parse(&format!("{algorithm}:{hex}")).ok();
    if let Some(blob) = path.strip_prefix("blobs/") {
        let [algorithm, start, hex, "data"] = blob.split('/').collect::<Vec<_>>()[..] else {
            return None;
        };
        let blob = digest(algorithm, hex).filter(|_| hex.starts_with(start))?;
        return Some(Role::Blob(blob));
    }
    let path = path.strip_prefix("repositories/")?;
    let (repository, rest) =
        path.split_once("/_").filter(|(repository, _)| !repository.is_empty())?;
    let parts: Vec<&str> = rest.split('/').collect();
    Some(match parts[..] {
        ["layers", algorithm, hex, "link"] => {
            Role::Layer { repository, digest: digest(algorithm, hex)? }
        }
        ["manifests", "revisions", algorithm, hex, "link"] => {
            Role::Revision { repository, digest: digest(algorithm, hex)? }
        }
        ["manifests", "tags", tag, "current", "link"] => {
            Role::Tag { repository, tag, is_current: true }
        }
        ["manifests", "tags", tag, "index", _, _, "link"] => {
            Role::Tag { repository, tag, is_current: false }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::{Descriptor, Index, media_type};

    #[derive(Default)]
    struct Registry(BTreeMap<String, Vec<u8>>);

    impl Registry {
        fn put(&mut self, path: &str, bytes: &[u8]) {
            self.0.insert(format!("{DIRECTORY}/{path}"), bytes.to_vec());
        }

        fn blob(&mut self, media: &str, bytes: &[u8]) -> Descriptor {
            let digest = Digest::of(bytes);
            self.put(&paths::blob_data(&digest), bytes);
            Descriptor::new(media, digest, bytes.len() as u64)
        }

        fn manifest(&mut self, repository: &str, layers: &[&str]) -> Descriptor {
            let config = self.blob(media_type::OCI_CONFIG, format!("{layers:?}").as_bytes());
            let layers: Vec<Descriptor> = layers
                .iter()
                .map(|layer| self.blob(media_type::OCI_LAYER, layer.as_bytes()))
                .collect();
            for part in layers.iter().chain([&config]) {
                let link = paths::layer_link(repository, &part.digest);
                self.put(&link, part.digest.to_string().as_bytes());
            }
            let manifest = serde_json::json!({
                "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
                "config": config, "layers": layers,
            });
            self.document(repository, media_type::OCI_MANIFEST, &manifest.to_string())
        }

        fn document(&mut self, repository: &str, media: &str, text: &str) -> Descriptor {
            let document = self.blob(media, text.as_bytes());
            let link = paths::revision_link(repository, &document.digest);
            self.put(&link, document.digest.to_string().as_bytes());
            document
        }

        fn tag(&mut self, repository: &str, tag: &str, digest: &Digest) {
            let text = digest.to_string();
            self.put(&paths::tag_link(repository, tag), text.as_bytes());
            let history = paths::tag_history_link(repository, tag, digest);
            self.put(&history, text.as_bytes());
        }

        /// Returns the number of files in each part.
        fn counted(&self) -> BTreeMap<String, usize> {
            let files: Vec<&str> = self.0.keys().map(String::as_str).collect();
            let contents: Vec<&Vec<u8>> = self.0.values().collect();
            let mut read = |number: usize, _| Ok(Some(contents[number].clone()));
            let mut count = BTreeMap::new();
            for part in parts(&files, &mut read).unwrap() {
                *count.entry(part).or_insert(0) += 1;
            }
            count
        }
    }

    #[test]
    fn each_tag_and_each_untagged_index_is_a_part() {
        let mut registry = Registry::default();
        let one = registry.manifest("a/one", &["base", "one"]);
        registry.tag("a/one", "v1", &one.digest);
        let two = registry.manifest("two", &["base", "two"]);
        let index = serde_json::to_string(&Index::new(vec![two])).unwrap();
        let index = registry.document("two", media_type::OCI_INDEX, &index);
        registry.put("docker/registry/v2/repositories/two/_uploads/x/data", b"");
        registry.put("readme", b"");
        registry.blob(media_type::OCI_LAYER, b"nobody's");
        let shared = plan::shared(&Digest::of(b"base"));
        let expected = BTreeMap::from([
            (String::new(), 3),
            (shared, 1),
            // Two tag links, one revision, three layer links, three blobs.
            ("a/one:v1".to_owned(), 9),
            // Two revisions, three layer links, four blobs.
            (format!("two@{}", index.digest), 9),
        ]);
        assert_eq!(registry.counted(), expected);
    }

    #[test]
    fn paths_that_are_not_the_registrys_are_nobodys() {
        let hex = "a".repeat(64);
        for path in [
            "registry".to_owned(),
            "etc/docker/registry/v2/x".to_owned(),
            format!("registry/docker/registry/v2/blobs/sha256/bb/{hex}/data"),
            format!("registry/docker/registry/v2/blobs/sha256/aa/{hex}"),
            format!("registry/docker/registry/v2/repositories/_layers/sha256/{hex}/link"),
            "registry/docker/registry/v2/repositories/a/_layers/sha256/12/link".to_owned(),
        ] {
            assert_eq!(role(&path), Role::Other, "{path}");
        }
    }
}
