//! Chooses names for the images of an archive, following the conventions of docker, podman and
//! skopeo.

use imgctl_base::error::{Error, Result};
use imgctl_base::image::reference::DOCKER_HUB;
use imgctl_base::image::{Descriptor, Reference};

/// Annotation in which containerd and docker record the full name of an index entry.
pub(super) const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// Parses a name of a docker archive. Docker strips its own registry when it saves, so a short name
/// belongs to Docker Hub.
pub(super) fn from_docker(text: &str) -> Result<Reference> {
    let reference = Reference::parse(text).map_err(|error| {
        Error::bad_content("the archive contains an invalid image name").caused_by(error)
    })?;
    if reference.registry().is_some() {
        return Ok(reference.qualified());
    }
    let on_hub = |candidate: &Reference| candidate.registry() == Some(DOCKER_HUB);
    let candidate = reference.candidates().into_iter().find(on_hub);
    Ok(candidate.unwrap_or_else(|| reference.qualified()))
}

/// The name of an index entry. A full name is used as it is. A bare tag, as the image-spec has it,
/// belongs to `stem` (the archive's file name without its extension), or is itself the name, as in
/// podman. An invalid name counts as no name.
pub(super) fn from_index(entry: &Descriptor, stem: Option<&str>) -> Option<Reference> {
    if let Some(name) = entry.annotations.get(CONTAINERD_NAME)
        && let Ok(reference) = from_docker(name)
    {
        return Some(reference);
    }
    let name = entry.ref_name()?;
    let is_lone_tag = !name.contains(['/', ':', '@']);
    if is_lone_tag
        && let Some(stem) = stem
        && let Ok(reference) = Reference::parse(&format!("{}:{name}", repository(stem)))
    {
        return Some(reference.qualified());
    }
    Reference::parse(name).ok().map(|name| name.qualified())
}

/// Converts a file name to a repository name: lower case, with dashes for characters that are not
/// allowed.
fn repository(stem: &str) -> String {
    let text: String = stem
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '.' | '_' | '-') => c,
            _ => '-',
        })
        .collect();
    text.trim_matches(['.', '_', '-']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::descriptor::REF_NAME;
    use imgctl_base::image::{Digest, media_type};

    #[test]
    fn dockers_short_names_are_docker_hubs() {
        for (text, name) in [
            ("nginx:1", "docker.io/library/nginx:1"),
            ("team/app:1", "docker.io/team/app:1"),
            ("localhost/app:1", "localhost/app:1"),
            ("reg.io/app", "reg.io/app:latest"),
        ] {
            assert_eq!(from_docker(text).unwrap().to_string(), name);
        }
        assert!(from_docker("../etc:1").is_err());
    }

    #[test]
    fn index_entries_are_named_fully_or_by_the_file() {
        for (annotations, stem, name) in [
            (&[(REF_NAME, "reg.io/app:1")][..], Some("x"), Some("reg.io/app:1")),
            (&[(REF_NAME, "app:1")], Some("x"), Some("localhost/app:1")),
            (&[(REF_NAME, "v1")], Some("My App_"), Some("localhost/my-app:v1")),
            (&[(REF_NAME, "v1")], None, Some("localhost/v1:latest")),
            (
                &[(REF_NAME, "v1"), (CONTAINERD_NAME, "nginx:1")],
                None,
                Some("docker.io/library/nginx:1"),
            ),
            (&[(REF_NAME, "NOT/a name")], Some("x"), None),
            (&[], Some("x"), None),
        ] {
            let mut entry = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(b""), 0);
            for (key, value) in annotations {
                entry.annotations.insert((*key).to_owned(), (*value).to_owned());
            }
            let found = from_index(&entry, stem).map(|reference| reference.to_string());
            assert_eq!(found.as_deref(), name, "{annotations:?}");
        }
    }
}
