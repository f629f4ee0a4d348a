//! Splits YAML text into documents and keeps the marker lines between them.

/// One document of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// The `---` line with its line ending, if there is one.
    pub(super) marker: String,
    pub(super) text: String,
}

impl Part {
    /// Reports whether the document contains anything besides blank lines and comments.
    pub(super) fn has_content(&self) -> bool {
        self.text.lines().any(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#') && line != "..."
        })
    }
}

/// Splits a stream into documents; [`join`] restores the same text.
pub(super) fn split(text: &str) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']);
        let rest = bare.strip_prefix("---");
        let is_marker = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if is_marker {
            let rest = rest.unwrap_or_default();
            let mut part = Part::default();
            if rest.trim().is_empty() || rest.trim().starts_with('#') {
                part.marker = line.to_owned();
            } else {
                part.marker = "---".to_owned();
                part.text = line.get(3..).unwrap_or_default().to_owned();
            }
            parts.push(part);
        } else if let Some(last) = parts.last_mut() {
            last.text.push_str(line);
        }
    }
    if parts.first().is_some_and(|first| first.text.is_empty()) && parts.len() > 1 {
        parts.remove(0);
    }
    parts
}

/// Joins the documents of a stream.
pub(super) fn join(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        if !part.marker.is_empty() && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&part.marker);
        text.push_str(&part.text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_come_back_as_they_were() {
        for (text, count) in [
            ("", 1),
            ("a: 1\n", 1),
            ("---\na: 1\n---\nb: 1", 2),
            ("# c\n---\na: 1\n--- # x\n\n", 3),
            ("a: |\n  ---\n  x\n", 1),
            ("--- {a: 1}\n---- \n", 1),
        ] {
            let parts = split(text);
            assert_eq!(parts.len(), count, "{text:?}");
            assert_eq!(join(&parts), text);
        }
        assert!(!split("# only\n\n")[0].has_content());
    }
}
