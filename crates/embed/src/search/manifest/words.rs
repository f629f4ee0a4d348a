//! Names in texts without a structure of their own: scripts, settings, lists of images. Must not know YAML.

use crate::search::names;

/// A word that is an image, whatever its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    /// Line of the text, counted from 0.
    pub(super) line: usize,
    /// Whether it is the value of a setting or a flag whose name contains `image`.
    pub(super) is_named: bool,
}

/// Returns the words of a text that are surely images, without those of comments.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| line.contains('/') && !line.trim_start().starts_with('#'));
    lines.flat_map(|(number, line)| {
        let mut end = 0;
        line.split(is_separator).filter_map(move |word| {
            let start = end;
            // Each separator has one byte.
            end += word.len() + 1;
            let name = word.trim_end_matches(['.', ':']);
            let name = name.strip_prefix("docker://").unwrap_or(name);
            is_surely_image(name).then(|| Word {
                text: name,
                line: number,
                is_named: is_named(&line[..start]),
            })
        })
    })
}

fn is_separator(c: char) -> bool {
    c.is_ascii_whitespace() || "\"'`,;=()[]{}<>|\\".contains(c)
}

/// A registry with a dot, a path, and a tag or digest.
pub(super) fn is_surely_image(text: &str) -> bool {
    let Some((first, rest)) = text.split_once('/') else { return false };
    let last = rest.rsplit('/').next().unwrap_or_default();
    !first.starts_with('.')
        && first.contains('.')
        && last.contains([':', '@'])
        && names::normalise(text).is_ok()
}

/// Whether a name contains `image`.
pub(super) fn names_image(name: &str) -> bool {
    name.to_ascii_lowercase().contains("image")
}

/// Whether what precedes a word on its line names an image: `NAME=`, `NAME:` or `--NAME`.
fn is_named(before: &str) -> bool {
    let is_quote = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | '`');
    let is_mark = |c: char| is_quote(c) || matches!(c, '=' | ':' | '?' | '+');
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let before = before.trim_end_matches(is_quote);
    let is_setting = before.ends_with(['=', ':']);
    let before = before.trim_end_matches(is_mark);
    let name = &before[before.trim_end_matches(is_part).len()..];
    (is_setting || name.starts_with('-')) && names_image(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_images_by_their_form_and_named_by_what_precedes_them() {
        for (text, expected) in [
            ("helper_image = \"q.io/a/b:1\"", Some(("q.io/a/b:1", 0, true))),
            ("a\n  -x-image=\"q.io/a:1\" \\", Some(("q.io/a:1", 1, true))),
            ("run --sidecar-image 'q.io/a:1'", Some(("q.io/a:1", 0, true))),
            ("\"imageRef\": \"q.io/a:1\",", Some(("q.io/a:1", 0, true))),
            ("IMAGE ?= docker://q.io/a:1", Some(("q.io/a:1", 0, true))),
            ("4.0.0=q.io/a:1", Some(("q.io/a:1", 0, false))),
            ("see the image q.io/a:1.", Some(("q.io/a:1", 0, false))),
            ("pull q.io/a:1", Some(("q.io/a:1", 0, false))),
            ("# image: q.io/a:1", None),
            ("https://q.io/a:1 a/b:1 q.io/a ./a/b:c q.io/a:{{ x }}", None),
            ("", None),
        ] {
            let found = words(text).next().map(|word| (word.text, word.line, word.is_named));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(words("a.b/c:1,a.b/d:2").count(), 2);
    }

    #[test]
    fn no_text_makes_it_panic() {
        bolero::check!().with_type::<String>().for_each(|text: &String| {
            let _ = words(text).count();
        });
    }
}
