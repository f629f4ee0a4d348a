//! What looks like a secret, in text that nobody has classified: logs of programs, messages, settings.
//!
//! Knows forms only. The secrets that imgctl knows of a cluster are replaced by its redactor, before this.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// A form of secrets, and what stands in its place.
struct Form {
    pattern: Regex,
    replacement: &'static str,
}

/// In order: whole keys first, because their lines look like other forms.
static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    const NAME: &str = r"(?:passw\w*|passphrase|secret|token|credentials?|api[_-]?key|private[_-]key|client-key-data|certificate-?key)";
    let forms = [
        (
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)"
                .to_owned(),
            "[private key]",
        ),
        (r"AGE-SECRET-KEY-[0-9A-Z]+".to_owned(), "[private key]"),
        // What is left of a key or a Secret whose beginning was cut off.
        (r"(?m)^[ \t]*[A-Za-z0-9+/]{60,}={0,2}[ \t]*$".to_owned(), "[base64]"),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}".to_owned(), "[token]"),
        // kubeadm's bootstrap tokens.
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b".to_owned(), "[token]"),
        (r"(?i)\b(authorization:\s*\w+\s+)\S+".to_owned(), "${1}***"),
        (r"(://[^\s/:@]+:)[^\s/@]+@".to_owned(), "${1}***@"),
        (format!(r"(?i)(--[\w-]*{NAME})(\s+)[^\s-]\S*"), "${1}${2}***"),
        (format!(r#"(?i)\b([\w.-]*{NAME}"?\s*[:=]\s*)"(?:[^"\\]|\\.)*""#), "${1}\"***\""),
        (format!(r#"(?i)\b([\w.-]*{NAME}["']?\s*[:=]\s*'?)[^\s"',;]+"#), "${1}***"),
    ];
    forms
        .into_iter()
        // The patterns are constants, and a test uses each of them.
        .filter_map(|(pattern, replacement)| {
            Some(Form { pattern: Regex::new(&pattern).ok()?, replacement })
        })
        .collect()
});

/// Returns `text` without what looks like a secret.
pub(super) fn redact(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for form in FORMS.iter() {
        if let Cow::Owned(changed) = form.pattern.replace_all(&text, form.replacement) {
            text = Cow::Owned(changed);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_found() {
        assert_eq!(FORMS.len(), 10);
        let key = "a -----BEGIN RSA PRIVATE KEY-----\nAAAA\nBBBB\n-----END RSA PRIVATE KEY----- b";
        let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";
        for (text, expected) in [
            (key, "a [private key] b"),
            ("-----BEGIN EC PRIVATE KEY-----\nAAAA", "[private key]"),
            ("AGE-SECRET-KEY-1QQQQ", "[private key]"),
            (line, "[base64]"),
            ("Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2lnbmF0dXJlMQ x", "Bearer [token] x"),
            ("kubeadm join --token abcdef.0123456789abcdef", "kubeadm join --token ***"),
            ("bootstrap abcdef.0123456789abcdef is", "bootstrap [token] is"),
            ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
            ("https://user:geheim@host/x", "https://user:***@host/x"),
            ("run --registry-password hunter22 --x", "run --registry-password *** --x"),
            (r#"{"password":"a \"b\" c","x":1}"#, r#"{"password":"***","x":1}"#),
            ("registryPassword: hunter22", "registryPassword: ***"),
            ("MY_TOKEN='hunter22' x", "MY_TOKEN='***' x"),
            ("client-key-data: LS0tLS1CRUdJTg==", "client-key-data: ***"),
        ] {
            assert_eq!(redact(text), expected, "{text}");
        }
    }

    #[test]
    fn ordinary_lines_stay() {
        for text in [
            "Pod kube-system/kube-proxy-abcde is not Ready",
            "sha256:4a1d98d62aaadd8ad2a4e7e6b17d84fc2dd108e0201511265e3ff742ae4ba153",
            "secretName etcd-certs is mounted at /etc/etcd",
            "10.0.0.1:6443 answers 200",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(_)), "{text}");
        }
    }
}
