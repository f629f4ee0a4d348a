//! Paths in the tree, relative to its root (registry/storage/paths.go of distribution). A `link`
//! file contains exactly `<algorithm>:<hex>`, without a newline.

use imgctl_base::image::Digest;

/// Directory below the root that contains the tree.
pub const BASE: &str = "docker/registry/v2";

/// Returns the path of the bytes of a blob: layer, config or manifest.
pub fn blob_data(digest: &Digest) -> String {
    let (algorithm, hex) = (digest.algorithm().as_str(), digest.hex());
    format!("{BASE}/blobs/{algorithm}/{}/{hex}/data", &hex[..2])
}

/// Returns the directory of a repository.
pub fn repository(name: &str) -> String {
    format!("{BASE}/repositories/{name}")
}

/// Returns the link that allows the repository to read a blob other than a manifest.
pub fn layer_link(name: &str, digest: &Digest) -> String {
    format!("{}/_layers/{}/link", repository(name), spread(digest))
}

/// Returns the link of a manifest in a repository, including manifests that only an index refers
/// to.
pub fn revision_link(name: &str, digest: &Digest) -> String {
    format!("{}/_manifests/revisions/{}/link", repository(name), spread(digest))
}

/// Returns the link of a tag to its current manifest.
pub fn tag_link(name: &str, tag: &str) -> String {
    format!("{}/_manifests/tags/{tag}/current/link", repository(name))
}

/// Returns the link of a tag to a current or former manifest.
pub fn tag_history_link(name: &str, tag: &str, digest: &Digest) -> String {
    format!("{}/_manifests/tags/{tag}/index/{}/link", repository(name), spread(digest))
}

/// Returns the directory of a manifest in a repository.
pub fn revision(name: &str, digest: &Digest) -> String {
    format!("{}/_manifests/revisions/{}", repository(name), spread(digest))
}

/// Returns the directory of all tags.
pub fn tags(name: &str) -> String {
    format!("{}/_manifests/tags", repository(name))
}

/// Returns the directory of one tag.
pub fn tag(name: &str, tag: &str) -> String {
    format!("{}/{tag}", tags(name))
}

/// Returns the directory of the referrers of `subject`, an extension that distribution does not
/// have.
pub fn referrers(name: &str, subject: &Digest) -> String {
    format!("{}/_manifests/referrers/{}", repository(name), spread(subject))
}

/// Returns the link that records `subject` as the subject of the manifest `digest`.
pub(crate) fn referrer_link(name: &str, subject: &Digest, digest: &Digest) -> String {
    format!("{}/{}/link", referrers(name, subject), spread(digest))
}

/// Returns the directory of the uploads to a repository.
pub fn uploads(name: &str) -> String {
    format!("{}/_uploads", repository(name))
}

/// Returns the directory of one upload.
pub fn upload(name: &str, id: &str) -> String {
    format!("{}/{id}", uploads(name))
}

fn spread(digest: &Digest) -> String {
    format!("{}/{}", digest.algorithm().as_str(), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_distribution() {
        let digest = Digest::of(b"");
        let hex = digest.hex();
        assert_eq!(blob_data(&digest), format!("docker/registry/v2/blobs/sha256/e3/{hex}/data"));
        assert_eq!(
            layer_link("a/b", &digest),
            format!("docker/registry/v2/repositories/a/b/_layers/sha256/{hex}/link")
        );
        assert_eq!(
            revision_link("a/b", &digest),
            format!("docker/registry/v2/repositories/a/b/_manifests/revisions/sha256/{hex}/link")
        );
        assert_eq!(
            tag_link("a", "v1"),
            "docker/registry/v2/repositories/a/_manifests/tags/v1/current/link"
        );
        assert_eq!(
            tag_history_link("a", "v1", &digest),
            format!("docker/registry/v2/repositories/a/_manifests/tags/v1/index/sha256/{hex}/link")
        );
    }
}
