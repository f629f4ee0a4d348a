//! Grammar of repository names, tags and upload IDs (distribution-spec 1.1, "Pulling manifests"). A
//! valid name is safe as part of a path.

use imgctl_base::error::{Error, Result};

/// Maximum length of a repository name, in bytes, as in distribution.
const MAX_REPOSITORY: usize = 255;
/// Maximum length of a tag, in bytes (distribution-spec).
const MAX_TAG: usize = 128;

/// Returns whether `name` is `component(/component)*`, where each component is
/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`.
pub fn is_repository(name: &str) -> bool {
    name.len() <= MAX_REPOSITORY && name.split('/').all(is_component)
}

/// Returns whether `tag` is `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
pub fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= MAX_TAG
        && bytes.next().is_some_and(word)
        && bytes.all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

/// Returns whether `id` is a possible upload ID: hex digits and dashes, as in a UUID.
pub(crate) fn is_upload(id: &str) -> bool {
    (8..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Returns `name` if it is a repository name.
pub(super) fn repository(name: &str) -> Result<&str> {
    if is_repository(name) {
        return Ok(name);
    }
    Err(Error::usage(format!("`{}` is not a repository name", clip(name)))
        .hint("it is lower-case letters and digits, separated by `.`, `_`, `__`, `-` or `/`"))
}

/// Returns `text` if it is a tag.
pub(super) fn tag(text: &str) -> Result<&str> {
    if is_tag(text) {
        return Ok(text);
    }
    Err(Error::usage(format!("`{}` is not a tag", clip(text)))
        .hint("a tag is up to 128 letters, digits, `_`, `.` and `-`, not starting with `.` or `-`"))
}

fn is_component(component: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    if !bytes.first().is_some_and(alphanumeric) || !bytes.last().is_some_and(alphanumeric) {
        return false;
    }
    component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|between| {
        matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
    })
}

fn clip(text: &str) -> String {
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_grammar_passes() {
        let long = "a".repeat(255);
        for good in ["a", "library/nginx", "a/b-c/d__e.f", "0--1", &long] {
            assert!(is_repository(good), "{good}");
        }
        let longer = "a".repeat(256);
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "a/../b",
            "a/./b",
            "A",
            "_layers",
            "a/_manifests",
            "a___b",
            "a._b",
            "-a",
            "a\0",
            "a b",
            "é",
            &longer,
        ] {
            assert!(!is_repository(bad), "{bad:?}");
        }
        let long = "t".repeat(128);
        for good in ["v1", "_x", "1.2-3_4", "V", &long] {
            assert!(is_tag(good), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-a", "a/b", "a:b", "a\n", "é", &"t".repeat(129)] {
            assert!(!is_tag(bad), "{bad:?}");
        }
        assert!(is_upload("0123abcd-0000-4000-8000-000000000000"));
        for bad in ["", "..", "a/b", "short", "0123abcd/../x"] {
            assert!(!is_upload(bad), "{bad:?}");
        }
    }
}
