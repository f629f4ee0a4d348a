//! Scans single lines, as sealos does with every manifest; here only for text that is not YAML.

use crate::embed::found::{How, Place};
use crate::embed::search::collector::Collector;
use crate::embed::search::names::Trust;

/// Marks a line that names an image.
const MARK: &str = "image:";

/// Adds what follows the first `image:` of each line that is not a comment. `before` is the number
/// of lines of the file before `text`.
pub(super) fn scan(text: &str, file: &str, before: usize, trust: Trust, found: &mut Collector) {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        let Some((_, rest)) = line.split_once(MARK) else {
            continue;
        };
        let value = without_comment(rest.trim());
        let value = value.trim_matches(['"', '\'']).trim();
        let place = Place { file: file.to_owned(), line: before + number + 1, how: How::Line };
        found.text(value, trust, place);
    }
}

/// Removes a YAML comment.
fn without_comment(text: &str) -> &str {
    match text.find(" #") {
        Some(at) => text[..at].trim_end(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_images_as_in_sealos() {
        let text = "# image: no\n  image: \"quay.io/a/b:1\" # why\n- image: nginx\nimage:\n\
                    image: {{ .x }}\n";
        let mut found = Collector::new("");
        scan(text, "m.tmpl", 10, Trust::Certain, &mut found);
        let found = found.finish();
        let images: Vec<String> = found
            .images
            .iter()
            .map(|image| format!("{} {}", image.reference, image.places[0]))
            .collect();
        assert_eq!(images, ["docker.io/library/nginx:latest m.tmpl:13", "quay.io/a/b:1 m.tmpl:12"]);
        assert_eq!(found.skipped.len(), 1);
        assert_eq!(found.skipped[0].place.line, 15);
    }
}
