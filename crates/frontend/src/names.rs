//! Names as users type them: image names, `IMAGE:PATH`, `NAME=VALUE`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::environment::Environment;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
pub use imgctl_base::quote::quote;
pub use imgctl_base::text::csv;
use imgctl_layer::{LayerPath, Tree};
use imgctl_store::store::resolve::is_identifier;

/// Splits `IMAGE:/PATH`. Tags and ports never start with a slash, so the first `:/` is the
/// separator. Without a path, the root is used.
pub fn image_and_path(text: &OsStr) -> Result<(String, LayerPath)> {
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
pub fn printable(name: &[u8]) -> String {
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
pub fn nearest(tree: &Tree, path: &LayerPath) -> Option<String> {
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

/// Returns the full names that `-t` flags and arguments give to images. A name cannot promise a content, or look
/// like an image ID (docker).
pub fn references(names: &[String]) -> Result<Vec<Reference>> {
    let reference = |name: &String| {
        let parsed = Reference::parse(name)?;
        if parsed.digest().is_some() {
            return Err(Error::usage(format!(
                "`{name}` cannot be given to an image: it has a digest"
            ))
            .hint("omit the digest: it belongs to the content"));
        }
        if is_identifier(name) || is_identifier(parsed.name().as_str()) {
            return Err(Error::usage(format!(
                "`{name}` cannot be given to an image: it is an image ID"
            ))
            .hint("choose a name that is not 64 hexadecimal digits"));
        }
        Ok(parsed.qualified())
    };
    names.iter().map(reference).collect()
}

/// Parses `NAME=VALUE` flags into a map; a name alone gets an empty value.
pub fn pairs(specs: &[String], flag: &str) -> Result<BTreeMap<String, String>> {
    specs
        .iter()
        .map(|spec| match spec.split_once('=') {
            Some(_) => split(spec, '=', flag, "NAME=VALUE"),
            // As in Docker, a label may have no value.
            None => Ok((spec.clone(), String::new())),
        })
        .collect()
}

/// Parses `NAME=VALUE` flags into a map; a name alone is an error.
pub fn strict_pairs(specs: &[String], flag: &str) -> Result<BTreeMap<String, String>> {
    specs.iter().map(|spec| split(spec, '=', flag, "NAME=VALUE")).collect()
}

/// Parses `NAME=VALUE`, or `NAME` for the value of that variable; omits variables that are not set.
pub fn pairs_or_environment(
    specs: &[String],
    flag: &str,
    environment: &Environment,
) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for spec in specs {
        if spec.contains('=') {
            pairs.push(split(spec, '=', flag, "NAME=VALUE")?);
        } else if let Some(value) = environment.lossless(spec)? {
            pairs.push((spec.clone(), value));
        }
    }
    Ok(pairs)
}

/// Returns the values that are not empty: scripts pass unset variables, which docker ignores.
pub fn given(values: &[String]) -> impl Iterator<Item = &String> {
    values.iter().filter(|value| !value.is_empty())
}

pub fn split(text: &str, separator: char, flag: &str, form: &str) -> Result<(String, String)> {
    match text.split_once(separator) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::usage(format!("{flag} `{text}` is not of the form {form}"))),
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
    fn values_may_hold_the_separator_and_may_come_from_the_environment() {
        let specs = ["A=b=c", "TOKEN", "UNSET", "E="].map(str::to_owned);
        let environment = Environment::new(vec![("TOKEN".into(), "s3cret".into())]);
        let pairs = pairs_or_environment(&specs, "--env", &environment).unwrap();
        let expected = [("A", "b=c"), ("TOKEN", "s3cret"), ("E", "")];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(pairs_or_environment(&["=x".to_owned()], "--env", &environment).is_err());
    }
}
