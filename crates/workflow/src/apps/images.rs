//! References to images that were pushed elsewhere, and their new names in text.
//!
//! Text is edited token by token and never reformatted, so that everything else in a manifest stays
//! byte for byte. A token counts only if it names an image that was pushed, by tag or digest; a
//! short name (`nginx:1`) only where a field or flag called `image` says that it is one. Must not
//! depend on how images are pushed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use imgctl_base::image::{Digest, Reference, reference::DOCKER_HUB};

/// The images in a registry, by their names without the registry they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pushed {
    /// `HOST[:PORT][/PREFIX]`.
    to: String,
    repositories: BTreeMap<String, Content>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    tags: BTreeSet<String>,
    digests: BTreeSet<String>,
}

impl Pushed {
    pub fn new(to: &str) -> Self {
        Self { to: to.to_owned(), repositories: BTreeMap::new() }
    }

    /// Adds an image.
    pub fn add(&mut self, repository: &str, tag: Option<&str>, digest: &Digest) {
        let content = self.repositories.entry(repository.to_owned()).or_default();
        content.tags.extend(tag.map(str::to_owned));
        content.digests.insert(digest.to_string());
    }

    pub fn is_empty(&self) -> bool {
        self.repositories.is_empty()
    }

    /// Returns the text with new names in it.
    pub fn rewrite<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = String::new();
        let mut copied = 0;
        for (start, end) in tokens(text) {
            let token = &text[start..end];
            if let Some(name) = self.target(token, is_image_field(&text[..start])) {
                out.push_str(&text[copied..start]);
                out.push_str(&name);
                copied = end;
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }

    /// Returns the new name of an image; `is_field`: its place says that it is one.
    fn target(&self, token: &str, is_field: bool) -> Option<String> {
        if !is_field && !token.contains('/') {
            return None;
        }
        let reference = Reference::parse(token).ok()?;
        let is_explicit = reference.tag().is_some() || reference.digest().is_some();
        if !(is_field || reference.registry().is_some() && is_explicit) {
            return None;
        }
        let is_hub = matches!(
            reference.registry(),
            None | Some(DOCKER_HUB | "index.docker.io" | "registry-1.docker.io")
        );
        let repository = match reference.repository() {
            short if is_hub && !short.contains('/') => format!("library/{short}"),
            repository => repository.to_owned(),
        };
        let content = self.repositories.get(&repository)?;
        let to = &self.to;
        match (reference.tag(), reference.digest()) {
            (tag, Some(digest)) if content.digests.contains(&digest.to_string()) => {
                let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
                Some(format!("{to}/{repository}{tag}@{digest}"))
            }
            // An embedded image has one platform, so that the digest of an index is not there.
            (Some(tag), _) if content.tags.contains(tag) => {
                Some(format!("{to}/{repository}:{tag}"))
            }
            (None, None) if content.tags.contains("latest") => {
                Some(format!("{to}/{repository}:latest"))
            }
            _ => None,
        }
        .filter(|name| name != token)
    }
}

/// Returns the ranges of words that could be references.
fn tokens(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let is_part = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/' | b':' | b'@')
    };
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at + bytes[at..].iter().position(|&byte| is_part(byte))?;
            let length = bytes[start..].iter().position(|&byte| !is_part(byte));
            let mut end = length.map_or(bytes.len(), |length| start + length);
            at = end;
            // The end of a key or of a sentence. A word with other letters around it is not ASCII.
            while end > start && matches!(bytes[end - 1], b':' | b'.' | b'/' | b'-' | b'@' | b'_') {
                end -= 1;
            }
            let is_whole = bytes.get(at).is_none_or(u8::is_ascii)
                && (start == 0 || bytes[start - 1].is_ascii());
            if is_whole && end > start {
                return Some((start, end));
            }
        }
        None
    })
}

/// Reports whether the text before a word ends with `image:`, `"image":` or `--image=`.
fn is_image_field(before: &str) -> bool {
    let quotes = ['"', '\''];
    let line = before.rsplit('\n').next().unwrap_or_default();
    let line = line.trim_end_matches(quotes).trim_end();
    let Some(key) = line.strip_suffix([':', '=']) else { return false };
    let key = key.trim_end().trim_end_matches(quotes);
    key.ends_with("image") || key.ends_with("Image") || key.ends_with("IMAGE")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed() -> (Pushed, Digest) {
        let mut pushed = Pushed::new("reg.example:5000/team");
        let digest = Digest::of(b"x");
        pushed.add("library/nginx", Some("1.25"), &digest);
        pushed.add("library/nginx", Some("latest"), &digest);
        pushed.add("coreos/etcd", Some("v3"), &digest);
        (pushed, digest)
    }

    #[test]
    fn references_to_pushed_images_change_and_nothing_else() {
        let (pushed, digest) = pushed();
        let new = "reg.example:5000/team/library/nginx:1.25";
        for (text, expected) in [
            ("image: nginx:1.25", format!("image: {new}")),
            ("  - image: 'docker.io/nginx:1.25' # x", format!("  - image: '{new}' # x")),
            ("{\"image\":\"nginx:1.25\",\"a\":1}", format!("{{\"image\":\"{new}\",\"a\":1}}")),
            ("image: nginx", "image: reg.example:5000/team/library/nginx:latest".to_owned()),
            ("initImage:   nginx:1.25\n", format!("initImage:   {new}\n")),
            ("- --image=nginx:1.25", format!("- --image={new}")),
            ("- --x=docker.io/library/nginx:1.25", format!("- --x={new}")),
            (
                "value: quay.io/coreos/etcd:v3.",
                "value: reg.example:5000/team/coreos/etcd:v3.".to_owned(),
            ),
            (
                "é: sealos.hub:5000/coreos/etcd:v3",
                "é: reg.example:5000/team/coreos/etcd:v3".to_owned(),
            ),
            (
                &format!("image: quay.io/coreos/etcd:v3@{digest}"),
                format!("image: reg.example:5000/team/coreos/etcd:v3@{digest}"),
            ),
        ] {
            assert_eq!(pushed.rewrite(text), expected, "{text}");
        }
        let other = Digest::of(b"y");
        for text in [
            "image: nginx:1.26",
            "image: nginx:1.25é",
            "image: other/nginx:1.25",
            "image: reg.example:5000/team/library/nginx:1.25",
            "command: [nginx, 1.25]",
            "text: nginx:1.25 and nginx",
            "url: https://quay.io/coreos/etcd:v3",
            "url: docker://quay.io/coreos/etcd:v3",
            "path: quay.io/coreos/etcd",
            &format!("image: nginx@{other}"),
            "",
            ":::: image:",
        ] {
            assert!(matches!(pushed.rewrite(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn rewriting_twice_is_rewriting_once() {
        let (pushed, _) = pushed();
        let once =
            pushed.rewrite("image: nginx:1.25\nimage: quay.io/coreos/etcd:v3\n").into_owned();
        assert_eq!(pushed.rewrite(&once), once);
        let mut bare = Pushed::new("reg.example:5000");
        bare.add("library/nginx", Some("1.25"), &Digest::of(b"x"));
        let once = bare.rewrite("image: nginx:1.25").into_owned();
        assert_eq!(once, "image: reg.example:5000/library/nginx:1.25");
        assert_eq!(bare.rewrite(&once), once);
    }
}
