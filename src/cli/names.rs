//! Names as users type them: image names, `IMAGE:PATH`, patterns.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use imgctl_base::error::{Error, Result};
use imgctl_store::layer::{LayerPath, Tree};

/// Patterns with `*` (any characters) and `?` (one character).
pub(crate) trait PatternExt {
    /// Whether the pattern matches all of `text`.
    fn fits(&self, text: &str) -> bool;
}

impl PatternExt for str {
    fn fits(&self, text: &str) -> bool {
        let (pattern, text) = (self.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(c) if *c == b'?' || *c == text[t] => {
                    p += 1;
                    t += 1;
                }
                // Let the last star match one more character.
                _ => match star {
                    Some((star_p, star_t)) => {
                        star = Some((star_p, star_t + 1));
                        p = star_p + 1;
                        t = star_t + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == b'*')
    }
}

/// Splits `IMAGE:/PATH`. Tags and ports never start with a slash, so the first `:/` is the
/// separator. Without a path, the root is used.
pub(crate) fn image_and_path(text: &OsStr) -> Result<(String, LayerPath)> {
    let bytes = text.as_bytes();
    let split = bytes.windows(2).position(|pair| pair == b":/");
    let (image, path) = match split {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"/"[..]),
    };
    let image = str::from_utf8(image)
        .map_err(|_| Error::usage(format!("`{}` is not an image name", text.display())))?;
    if image.is_empty() {
        return Err(Error::usage(format!("`{}` does not name an image", text.display()))
            .hint("write IMAGE:/PATH, for example etcd:v1:/etc"));
    }
    // The path is user input, not untrusted content.
    let path = LayerPath::parse(path).map_err(|error| {
        Error::usage(format!("`{}` is not a path in an image", text.display())).caused_by(error)
    })?;
    Ok((image.to_owned(), path))
}

/// Formats a name from an untrusted image for display: unchanged if printable, otherwise with
/// escapes.
pub(crate) fn printable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Returns the names in an image that are nearest to a missing one, for a hint.
pub(crate) fn nearest(tree: &Tree, path: &LayerPath) -> Option<String> {
    let parent = path.parent()?;
    if tree.lookup(&parent).is_none() {
        return nearest(tree, &parent);
    }
    let mut names: Vec<String> =
        tree.children(&parent).take(8).map(|(name, _)| printable(name)).collect();
    if tree.children(&parent).nth(8).is_some() {
        names.push("…".to_owned());
    }
    if names.is_empty() {
        Some(format!("{parent} is empty"))
    } else {
        Some(format!("{parent} contains {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_paths_are_told_apart() {
        for (text, image, path) in [
            ("etcd:v1:/etc/x", "etcd:v1", "/etc/x"),
            ("localhost:5000/a/b:1:/", "localhost:5000/a/b:1", "/"),
            ("etcd", "etcd", "/"),
            ("etcd:/usr/./bin/", "etcd", "/usr/bin"),
            ("a@sha256:12:/x:/y", "a@sha256:12", "/x:/y"),
        ] {
            let (found, at) = image_and_path(OsStr::new(text)).unwrap();
            assert_eq!((found.as_str(), at.to_string().as_str()), (image, path), "{text}");
        }
        for wrong in [":/etc", "", "a:/../x"] {
            assert!(image_and_path(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn odd_names_are_escaped_and_unambiguous() {
        assert_eq!(printable(b"a\xff\n\\n"), "a\\xff\\n\\\\n");
        assert_eq!(printable("über".as_bytes()), "über");
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a", "aab", false),
            ("", "x", false),
        ] {
            assert_eq!(pattern.fits(text), expected, "{pattern} {text}");
        }
    }
}
