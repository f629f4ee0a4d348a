//! `ENTRYPOINT` and `CMD` of cluster images: each element is a separate shell line.
//!
//! docs/cluster-image.md defines the rules. Must not depend on hosts.

use std::collections::BTreeMap;

use crate::cluster::image::ClusterImage;

/// Returns the lines of `image`, with `replacement` in place of its `CMD`. Drops elements that only
/// produce the shell form of a Kubefile.
pub fn lines(image: &ClusterImage, replacement: Option<&[String]>) -> Vec<String> {
    let command = replacement.unwrap_or(&image.command);
    image
        .entrypoint
        .iter()
        .chain(command)
        .filter(|element| !matches!(element.as_str(), "/bin/sh" | "-c"))
        .filter(|element| !element.trim().is_empty())
        .cloned()
        .collect()
}

/// Replaces `$(NAME)`, `${NAME}` and `$NAME` if NAME is known, and `$$` by `$`. Everything else is
/// left to the shell unchanged: `$(date)`, `${X:-default}`, `$1`.
pub(crate) fn expand(line: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if let Some(after) = behind.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let (name, after) = reference(behind);
        if let Some(value) = name.and_then(|name| variables.get(name)) {
            expanded.push_str(value);
            rest = after;
        } else {
            expanded.push('$');
            rest = behind;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// Returns the name at the start of the text after a `$`, and the text after the whole reference.
fn reference(behind: &str) -> (Option<&str>, &str) {
    let close = match behind.as_bytes().first() {
        Some(b'(') => ')',
        Some(b'{') => '}',
        _ => {
            let end = behind.find(|c| !is_of_name(c)).unwrap_or(behind.len());
            return ((end > 0).then(|| &behind[..end]), &behind[end..]);
        }
    };
    let inside = &behind[1..];
    match inside.find(close) {
        Some(end) if end > 0 && inside[..end].chars().all(is_of_name) => {
            (Some(&inside[..end]), &inside[end + 1..])
        }
        _ => (None, behind),
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_replaced() {
        let variables = BTreeMap::from([
            ("A".to_owned(), "1 $B".to_owned()),
            ("registry".to_owned(), "r".to_owned()),
            ("registryPort".to_owned(), "5000".to_owned()),
        ]);
        for (line, expected) in [
            ("x $(A) ${A} $A.", "x 1 $B 1 $B 1 $B."),
            ("$registryPort $registry/x", "5000 r/x"),
            ("$(date) ${X} $X $1 ${X:-d} $(X)", "$(date) ${X} $X $1 ${X:-d} $(X)"),
            ("${A:-d} $(A) ${A", "${A:-d} 1 $B ${A"),
            ("$$A $$(A) $$$A", "$A $(A) $1 $B"),
            ("$(echo $A)", "$(echo 1 $B)"),
            ("", ""),
            ("$", "$"),
            ("é$A é", "é1 $B é"),
        ] {
            assert_eq!(expand(line, &variables), expected, "{line}");
        }
    }

    #[test]
    fn elements_are_lines_and_the_shell_form_is_one() {
        let mut image = image();
        image.entrypoint = vec!["echo first".into()];
        image.command = vec!["/bin/sh".into(), "-c".into(), "a && b".into()];
        assert_eq!(lines(&image, None), ["echo first", "a && b"]);
        let other = ["c".to_owned(), "d -c".to_owned()];
        assert_eq!(lines(&image, Some(&other)), ["echo first", "c", "d -c"]);
        assert_eq!(lines(&image, Some(&[])), ["echo first"]);
    }

    fn image() -> ClusterImage {
        ClusterImage {
            name: "a".into(),
            mount_name: "a".into(),
            kind: crate::cluster::image::ImageKind::Application,
            digest: imgctl_base::image::Digest::of(b""),
            labels: BTreeMap::new(),
            environment: BTreeMap::new(),
            entrypoint: Vec::new(),
            command: Vec::new(),
            layers: Vec::new(),
        }
    }
}
