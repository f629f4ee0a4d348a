//! Parses an image name as Kubernetes does: fills in `docker.io/` and `library/`, and keeps the tag
//! and digest.

use imgctl_base::error::Result;
use imgctl_base::image::Reference;
use imgctl_base::image::reference::DOCKER_HUB;

/// Returns the full reference for `text`. As in the kubelet, a short name refers to Docker Hub;
/// without a tag or digest, the tag is `latest`; if both are given, both are kept.
pub fn normalise(text: &str) -> Result<Reference> {
    let text = text.strip_prefix("docker://").unwrap_or(text);
    let reference = Reference::parse(text)?;
    let (registry, repository) = match reference.registry() {
        None | Some("index.docker.io" | "registry-1.docker.io") => {
            (DOCKER_HUB, reference.repository())
        }
        Some(registry) => (registry, reference.repository()),
    };
    let is_library = registry == DOCKER_HUB && !repository.contains('/');
    let library = if is_library { "library/" } else { "" };
    let mut full = format!("{registry}/{library}{repository}");
    match (reference.tag(), reference.digest()) {
        (None, None) => full.push_str(":latest"),
        (Some(tag), _) => {
            full.push(':');
            full.push_str(tag);
        }
        (None, Some(_)) => {}
    }
    if let Some(digest) = reference.digest() {
        full.push_str(&format!("@{digest}"));
    }
    Reference::parse(&full)
}

/// Confidence that a string in a given place is an image name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The place is certain to hold an image (a container's `image`): any name counts.
    Certain,
    /// Only the field name suggests an image: the string must have a tag, a digest or a `/`.
    Likely,
}

/// Classification of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Image(Reference),
    /// Reported; completes "left out: …".
    Skipped(&'static str),
    /// Clearly not an image.
    Nothing,
}

/// Suffixes of files that are pictures or disks, not container images.
const FILE_ENDINGS: [&str; 14] = [
    ".png", ".jpg", ".jpeg", ".gif", ".svg", ".ico", ".webp", ".iso", ".qcow2", ".img", ".raw",
    ".vmdk", ".vhd", ".ova",
];

/// Classifies a string found in a place that may name an image.
pub(super) fn read(text: &str, trust: Trust) -> Reading {
    let text = text.trim();
    if text.is_empty() {
        return Reading::Nothing;
    }
    if text.contains("{{") || text.contains("$(") || text.contains("${") || text.contains('%') {
        return Reading::Skipped("it is a template whose value is unknown here");
    }
    if text.contains("://") && !text.starts_with("docker://") {
        return match trust {
            Trust::Certain => Reading::Skipped("it is a URL, not an image name"),
            Trust::Likely => Reading::Nothing,
        };
    }
    let is_file = FILE_ENDINGS.iter().any(|end| text.ends_with(end));
    let is_sentence = text.contains(char::is_whitespace);
    match (normalise(text), trust) {
        (Ok(reference), Trust::Certain) => Reading::Image(reference),
        (Ok(_), Trust::Likely) if is_file => Reading::Nothing,
        (Ok(reference), Trust::Likely) if text.contains([':', '@', '/']) => {
            Reading::Image(reference)
        }
        (Ok(_), Trust::Likely) => {
            Reading::Skipped("it is a bare word, which may not be an image; pass --image to add it")
        }
        (Err(_), Trust::Certain) => Reading::Skipped("it is not an image name"),
        (Err(_), Trust::Likely) if is_file || is_sentence || text.starts_with(['/', '.']) => {
            Reading::Nothing
        }
        (Err(_), Trust::Likely) => Reading::Skipped("it is not an image name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::image::Digest;

    #[test]
    fn names_become_full_and_lose_nothing() {
        let digest = Digest::of(b"x");
        for (text, full) in [
            ("nginx", "docker.io/library/nginx:latest".to_owned()),
            ("a/b:v1", "docker.io/a/b:v1".to_owned()),
            ("docker.io/nginx:1", "docker.io/library/nginx:1".to_owned()),
            ("index.docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("docker://quay.io/a/b:t", "quay.io/a/b:t".to_owned()),
            ("localhost:5000/x", "localhost:5000/x:latest".to_owned()),
            (&format!("quay.io/a/b@{digest}"), format!("quay.io/a/b@{digest}")),
            (&format!("quay.io/a/b:t@{digest}"), format!("quay.io/a/b:t@{digest}")),
        ] {
            assert_eq!(normalise(text).unwrap().to_string(), full, "{text}");
        }
    }

    #[test]
    fn texts_are_told_apart() {
        let image = |text: &str| Reading::Image(normalise(text).unwrap());
        for (text, certain, likely) in
            [("a/b:v1", image("a/b:v1"), image("a/b:v1")), ("", Reading::Nothing, Reading::Nothing)]
        {
            assert_eq!(read(text, Trust::Certain), certain, "{text}");
            assert_eq!(read(text, Trust::Likely), likely, "{text}");
        }
        assert_eq!(read("nginx", Trust::Certain), image("nginx"));
        for text in ["nginx", "{{ .Values.image }}", "$(IMAGE)", "a b/c:"] {
            let reading = read(text, Trust::Likely);
            assert!(!matches!(reading, Reading::Image(_)), "{text}: {reading:?}");
        }
        for text in ["https://x.io/a.png", "/static/logo.png", "static/logo.png"] {
            assert_eq!(read(text, Trust::Likely), Reading::Nothing, "{text}");
        }
        assert!(matches!(read("https://x.io/a.qcow2", Trust::Certain), Reading::Skipped(_)));
    }
}
