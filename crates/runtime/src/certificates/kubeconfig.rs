//! Changes the credentials in the text of a kubeconfig. Everything else stays byte for byte.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Returns a kubeconfig with another client certificate.
pub(crate) fn with_client(text: &str, certificate: &str, key: &str) -> String {
    with(text, &[("client-certificate-data", certificate), ("client-key-data", key)])
}

/// Returns a kubeconfig that trusts `authorities`. One that names a file, or none, stays what it is.
pub(crate) fn with_authority(text: &str, authorities: &str) -> String {
    with(text, &[("certificate-authority-data", authorities)])
}

fn with(text: &str, values: &[(&str, &str)]) -> String {
    let mut new = String::new();
    // The indentation of a value that is a block of YAML, whose lines are replaced with it.
    let mut block: Option<usize> = None;
    for line in text.lines() {
        let deep = line.len() - line.trim_start().len();
        if block.is_some_and(|outer| deep > outer) {
            continue;
        }
        block = None;
        let content = line.trim_start_matches([' ', '-']);
        let indent = line.get(..line.len() - content.len()).unwrap_or_default();
        let name = content.split(':').next().unwrap_or_default();
        match values.iter().find(|(known, _)| *known == name) {
            Some((name, value)) => {
                if matches!(content.rsplit(' ').next(), Some(">" | ">-" | "|" | "|-")) {
                    block = Some(indent.len());
                }
                new.push_str(&format!("{indent}{name}: {}", STANDARD.encode(value)));
            }
            None => new.push_str(line),
        }
        new.push('\n');
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_values_change() {
        let text = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: QQ==\n  name: k\nusers:\n- name: u\n  user:\n    client-certificate-data: b2xk\n    client-key-data: b2xk\n";
        let changed = text
            .replace("client-certificate-data: b2xk", "client-certificate-data: Yw==")
            .replace("client-key-data: b2xk", "client-key-data: aw==");
        assert_eq!(with_client(text, "c", "k"), changed);
        assert_eq!(with_authority(text, "new"), text.replace("QQ==", "bmV3"));
        let blocks = text.replace("b2xk", ">-\n      b2\n      xk");
        assert_eq!(with_client(&blocks, "c", "k"), changed);
        let first = "users:\n- client-key-data: QQ==\n  a: b\n";
        assert_eq!(with_client(first, "", "k"), first.replace("QQ==", "aw=="));
    }
}
