//! The container images in a cluster image's embedded registry: repositories, tags and digests from
//! its docker-distribution storage tree.

use std::collections::BTreeSet;

use crate::sbom::contents::Contents;
use imgctl_base::error::Result;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Digest, Document};
use imgctl_layer::LayerPath;
use imgctl_registry::layout::paths;

/// Directory of the registry in an image.
pub const ROOT: &str = "registry";
/// Maximum size of a link file, which holds one digest.
const MAX_LINK: u64 = 256;

/// Number of documents that are in memory at once.
pub const AT_ONCE: usize = 8;

/// One image of the embedded registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Embedded {
    pub repository: String,
    /// `None` for an image available only by digest.
    pub tag: Option<String>,
    /// Digest of the manifest or index.
    pub digest: Digest,
}

/// The meaning of a link file's path.
#[derive(Debug, PartialEq, Eq)]
enum Link {
    Tag { repository: String, tag: String },
    Revision { repository: String, digest: Digest },
}

/// Returns all images, sorted. Manifests that an index lists are not separate images.
pub fn all(contents: &Contents<'_>) -> Result<Vec<Embedded>> {
    let start = LayerPath::parse(format!("{ROOT}/{}", paths::repository("")).as_bytes())?;
    let (mut places, mut tags, mut revisions) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in contents.files_below(&start) {
        match link(&path, &start) {
            Some(Link::Tag { repository, tag }) => {
                places.push(path);
                tags.push((repository, tag));
            }
            Some(Link::Revision { repository, digest }) => {
                revisions.insert((repository, digest));
            }
            None => {}
        }
    }
    let links = contents.read(&places, MAX_LINK)?;
    let mut images: BTreeSet<Embedded> = BTreeSet::new();
    for ((repository, tag), link) in tags.into_iter().zip(links) {
        let text = link.and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(digest) = text.and_then(|text| Digest::parse(text.trim()).ok()) {
            images.insert(Embedded { repository, tag: Some(tag), digest });
        }
    }
    let listed = children(contents, &revisions)?;
    let tagged: BTreeSet<(String, Digest)> =
        images.iter().map(|image| (image.repository.clone(), image.digest.clone())).collect();
    for (repository, digest) in revisions {
        if !tagged.contains(&(repository.clone(), digest.clone())) && !listed.contains(&digest) {
            images.insert(Embedded { repository, tag: None, digest });
        }
    }
    Ok(images.into_iter().collect())
}

/// Returns the digests listed by the indexes among `revisions`.
fn children(
    contents: &Contents<'_>,
    revisions: &BTreeSet<(String, Digest)>,
) -> Result<BTreeSet<Digest>> {
    let digests: BTreeSet<&Digest> = revisions.iter().map(|(_, digest)| digest).collect();
    let blobs = digests
        .iter()
        .map(|digest| LayerPath::parse(format!("{ROOT}/{}", paths::blob_data(digest)).as_bytes()))
        .collect::<Result<Vec<_>>>()?;
    let mut listed = BTreeSet::new();
    for some in blobs.chunks(AT_ONCE) {
        for document in contents.read(some, MAX_DOCUMENT)?.into_iter().flatten() {
            if let Ok(Document::Index(index)) = Document::parse(&document, None) {
                listed.extend(index.manifests.into_iter().map(|child| child.digest));
            }
        }
    }
    Ok(listed)
}

/// Parses the link that `path` represents, below the directory of repositories.
fn link(path: &LayerPath, start: &LayerPath) -> Option<Link> {
    let components: Vec<&str> = path
        .components()
        .skip(start.components().count())
        .map(|component| str::from_utf8(component).ok())
        .collect::<Option<_>>()?;
    match &components[..] {
        [repository @ .., "_manifests", "tags", tag, "current", "link"] => {
            Some(Link::Tag { repository: repository.join("/"), tag: (*tag).to_owned() })
        }
        [repository @ .., "_manifests", "revisions", algorithm, hex, "link"] => {
            Some(Link::Revision {
                repository: repository.join("/"),
                digest: Digest::parse(&format!("{algorithm}:{hex}")).ok()?,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_by_their_place() {
        let path = |text: &str| LayerPath::parse(text.as_bytes()).unwrap();
        let start = path("registry/docker/registry/v2/repositories");
        let digest = Digest::of(b"x");
        let at =
            |rest: String| link(&path(&format!("/registry/docker/registry/v2/{rest}")), &start);
        assert_eq!(
            at("repositories/coredns/coredns/_manifests/tags/v1.2/current/link".to_owned()),
            Some(Link::Tag { repository: "coredns/coredns".to_owned(), tag: "v1.2".to_owned() })
        );
        assert_eq!(
            at(format!("repositories/a/_manifests/revisions/sha256/{}/link", digest.hex())),
            Some(Link::Revision { repository: "a".to_owned(), digest: digest.clone() })
        );
        for other in [
            format!("repositories/a/_layers/sha256/{}/link", digest.hex()),
            format!("repositories/a/_manifests/tags/v1/index/sha256/{}/link", digest.hex()),
            "repositories/a/_manifests/revisions/sha256/xyz/link".to_owned(),
        ] {
            assert_eq!(at(other.clone()), None, "{other}");
        }
    }
}
