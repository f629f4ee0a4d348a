//! Image names: `[registry/]repository[:tag][@digest]` in the grammar of distribution/reference.
//!
//! Parsing validates but does not guess: a short name (`etcd:v1`) stays short until
//! [`Reference::qualified`] or [`Reference::candidates`] adds a registry.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::image::Digest;

/// Registry of locally built images whose name has none, as in buildah and sealos.
pub const LOCAL_REGISTRY: &str = "localhost";
/// Registry in the names of a store's own records of trees. Nothing is ever fetched from it.
pub const TREES_REGISTRY: &str = "trees.imgctl.local";
/// Registry that docker uses for a short name.
pub const DOCKER_HUB: &str = "docker.io";
/// Another name of it.
const DOCKER_HUB_INDEX: &str = "index.docker.io";
/// Beginning of the repositories of official images.
const LIBRARY: &str = "library/";
/// Default tag of a name that has neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";
/// Maximum length of a repository name (distribution/reference).
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A validated image name with at least a repository; registry, tag and digest as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: Option<String>,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Parses `text`; the error names the invalid part.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::usage(format!("`{text}` is not an image name: {why}"))
                .hint("an image name looks like registry.example.com/team/app:v1")
        };
        if text.is_empty() {
            return Err(wrong("it is empty"));
        }
        if ["./", "../", "/"].iter().any(|start| text.starts_with(start)) {
            return Err(wrong("it is a path"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest =
                    Digest::parse(digest).map_err(|_| wrong("what follows `@` is not a digest"))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(wrong(
                "a tag is up to 128 letters, digits, `_`, `.` and `-`, and does not start with `.` or `-`",
            ));
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest))
                if first == "localhost"
                    || first.contains('.')
                    || first.contains(':')
                    || first.bytes().any(|b| b.is_ascii_uppercase()) =>
            {
                (Some(first), rest)
            }
            _ => (None, name),
        };
        if let Some(registry) = registry
            && !is_registry(registry)
        {
            return Err(wrong("the registry is not a host name with an optional port"));
        }
        if repository.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(wrong("a repository is lower case"));
        }
        if name.len() > MAX_NAME || !repository.split('/').all(is_component) {
            return Err(wrong(
                "a repository is lower-case letters and digits, separated by `.`, `_`, `__`, `-` \
                 or `/`",
            ));
        }
        Ok(Self {
            registry: registry.map(str::to_owned),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }

    /// Returns the registry, if the name has one.
    pub fn registry(&self) -> Option<&str> {
        self.registry.as_deref()
    }

    /// Returns the repository without registry, tag and digest.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag as written.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest as written.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns `registry/repository` (or only the repository), without tag and digest.
    pub fn name(&self) -> String {
        match &self.registry {
            Some(registry) => format!("{registry}/{}", self.repository),
            None => self.repository.clone(),
        }
    }

    /// Returns the full name under which the store keeps an image with this name: `localhost/` for
    /// short names, `docker.io/library/` for official images of Docker Hub, `:latest` if there is
    /// neither tag nor digest.
    pub fn qualified(&self) -> Self {
        self.complete().normal()
    }

    /// Returns the name with the parts that are missing, and otherwise as written.
    pub fn complete(&self) -> Self {
        let mut full = self.clone();
        if full.registry.is_none() {
            full.registry = Some(LOCAL_REGISTRY.to_owned());
        }
        full.with_default_tag()
    }

    /// Returns the one of several spellings of a name on Docker Hub that counts (docker's
    /// distribution/reference).
    fn normal(mut self) -> Self {
        if matches!(self.registry(), Some(DOCKER_HUB | DOCKER_HUB_INDEX)) {
            self.registry = Some(DOCKER_HUB.to_owned());
            if !self.repository.contains('/') {
                self.repository.insert_str(0, LIBRARY);
            }
        }
        self
    }

    /// Returns the full names that a typed name may refer to, most likely first.
    pub fn candidates(&self) -> Vec<Self> {
        let tagged = self.clone().with_default_tag();
        if self.registry.is_some() {
            let normal = tagged.clone().normal();
            let mut all = vec![normal.clone()];
            // Other versions of imgctl kept names of Docker Hub as they were written.
            if normal.registry() == Some(DOCKER_HUB) {
                let short = normal.repository.strip_prefix(LIBRARY).map(str::to_owned);
                all.extend(short.map(|repository| Self { repository, ..normal }));
                if !all.contains(&tagged) {
                    all.push(tagged);
                }
            }
            return all;
        }
        let on = |registry: &str, repository: String| Self {
            registry: Some(registry.to_owned()),
            repository,
            ..tagged.clone()
        };
        let mut all = vec![on(LOCAL_REGISTRY, self.repository.clone())];
        if !self.repository.contains('/') {
            all.push(on(DOCKER_HUB, format!("{LIBRARY}{}", self.repository)));
        }
        all.push(on(DOCKER_HUB, self.repository.clone()));
        all
    }

    /// Returns the name with the registry that docker uses: a short name refers to Docker Hub. No
    /// tag is added.
    pub fn on_docker_hub(mut self) -> Self {
        if self.registry.is_none() {
            self.registry = Some(DOCKER_HUB.to_owned());
            if !self.repository.contains('/') {
                self.repository.insert_str(0, LIBRARY);
            }
        }
        self
    }

    /// Returns the name as requested from a registry: with `:latest` if it has neither tag nor
    /// digest.
    pub fn with_default_tag(mut self) -> Self {
        if self.tag.is_none() && self.digest.is_none() {
            self.tag = Some(DEFAULT_TAG.to_owned());
        }
        self
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

fn is_tag(tag: &str) -> bool {
    let mut bytes = tag.bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG
        && bytes.next().is_some_and(word)
        && bytes.all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_registry(registry: &str) -> bool {
    let (host, port) = match registry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            if !address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') || address.is_empty() {
                return false;
            }
            match port.strip_prefix(':') {
                Some(port) => return is_port(port),
                None => return port.is_empty(),
            }
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit())
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(component: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    if !ends.is_some_and(|(first, last)| alphanumeric(*first) && alphanumeric(*last)) {
        return false;
    }
    component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|separator| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print_back() {
        let digest = format!("@{}", Digest::of(b""));
        for (text, registry, repository, tag) in [
            ("etcd", None, "etcd", None),
            ("etcd:v1", None, "etcd", Some("v1")),
            ("team/etcd:v1", None, "team/etcd", Some("v1")),
            ("localhost/a", Some("localhost"), "a", None),
            ("localhost:5000/a:b", Some("localhost:5000"), "a", Some("b")),
            ("sealos.hub:5000/x/y__z:1.0", Some("sealos.hub:5000"), "x/y__z", Some("1.0")),
            ("[::1]:5000/a", Some("[::1]:5000"), "a", None),
            (&format!("docker.io/library/nginx{digest}"), Some("docker.io"), "library/nginx", None),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(reference.registry(), registry, "{text}");
            assert_eq!(reference.repository(), repository, "{text}");
            assert_eq!(reference.tag(), tag, "{text}");
            assert_eq!(reference.to_string(), text);
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        for text in [
            "",
            "Upper",
            "a:",
            "a:-x",
            "a@sha256:12",
            "/a",
            "a/",
            "a//b",
            "../a",
            "a/../b",
            "a b",
            "-a",
            "a.",
            "a._b",
            "a___b",
            "reg.io:port/a",
            "reg.io/",
            "a\n",
            "a:t:u",
            "é",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn short_names_are_filed_under_localhost_and_looked_up_on_docker_hub_too() {
        let short = Reference::parse("etcd").unwrap();
        assert_eq!(short.qualified().to_string(), "localhost/etcd:latest");
        let names: Vec<String> = short.candidates().iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["localhost/etcd:latest", "docker.io/library/etcd:latest", "docker.io/etcd:latest"]
        );
    }

    #[test]
    fn an_image_of_docker_hub_has_one_name() {
        for text in ["docker.io/zed:1", "docker.io/library/zed:1", "index.docker.io/zed:1"] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(reference.qualified().to_string(), "docker.io/library/zed:1");
            let names: Vec<String> =
                reference.candidates().iter().map(ToString::to_string).collect();
            assert_eq!(names[..2], ["docker.io/library/zed:1", "docker.io/zed:1"], "{text}");
        }
        for (text, expected) in [
            ("index.docker.io/library/zed", "docker.io/library/zed:latest"),
            ("index.docker.io/team/zed:1", "docker.io/team/zed:1"),
            ("docker.io/team/zed:1", "docker.io/team/zed:1"),
            ("reg.io/zed:1", "reg.io/zed:1"),
            ("zed:1", "localhost/zed:1"),
        ] {
            assert_eq!(Reference::parse(text).unwrap().qualified().to_string(), expected);
        }
        let other = Reference::parse("reg.io/zed").unwrap().candidates();
        assert_eq!(other, [Reference::parse("reg.io/zed:latest").unwrap()]);
        let as_written = Reference::parse("docker.io/zed").unwrap().complete();
        assert_eq!(as_written.to_string(), "docker.io/zed:latest");
    }

    #[test]
    fn whatever_parses_prints_back_and_is_safe_in_a_path() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return;
            };
            if let Ok(reference) = Reference::parse(text) {
                assert_eq!(Reference::parse(&reference.to_string()).unwrap(), reference);
                assert!(reference.repository().split('/').all(|part| part != ".." && part != "."));
            }
        });
    }
}
