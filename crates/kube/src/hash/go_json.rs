//! Writes strings as Go's `encoding/json` does.

/// Appends `text` quoted. In addition to what JSON requires, Go escapes characters that are special
/// in HTML and JavaScript: `<`, `>`, `&`, U+2028 and U+2029.
///
/// Backspace and form feed are written as in Go before 1.22 (`\u0008`); see
/// [`has_unsettled_escape`].
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut plain = 0;
    for (at, character) in text.char_indices() {
        let escape = match character {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                format!("\\u{:04x}", u32::from(character))
            }
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[plain..at]);
        out.extend_from_slice(escape.as_bytes());
        plain = at + character.len_utf8();
    }
    out.extend_from_slice(&text.as_bytes()[plain..]);
    out.push(b'"');
}

/// Returns whether `json`, as written by [`write_string`], contains a backspace or a form feed. Go
/// 1.22 and later write them as `\b` and `\f`, and patch releases of the same Kubernetes minor
/// release were built with either.
pub(crate) fn has_unsettled_escape(json: &[u8]) -> bool {
    // A backslash before the `u` may be escaped itself, so preceding backslashes are counted.
    json.windows(6).enumerate().any(|(at, window)| {
        (window == b"\\u0008" || window == b"\\u000c")
            && json[..at].iter().rev().take_while(|b| **b == b'\\').count() % 2 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        write_string(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn strings_are_escaped_as_go_does() {
        assert_eq!(written("a<b>&c"), r#""a\u003cb\u003e\u0026c""#);
        assert_eq!(written("tab\tq\"\\"), r#""tab\tq\"\\""#);
        assert_eq!(written("é\u{7f}/'\u{fffd}"), "\"é\u{7f}/'\u{fffd}\"");
        assert_eq!(written("\u{2028}\u{2029}\0\u{1f}"), r#""\u2028\u2029\u0000\u001f""#);
        assert_eq!(written("\u{8}\u{c}\r\n"), r#""\u0008\u000c\r\n""#);
    }

    #[test]
    fn unsettled_escapes_are_seen_and_others_are_not() {
        let has = |text: &str| has_unsettled_escape(written(text).as_bytes());
        assert!(has("\u{8}") && has("a\\\u{c}"));
        assert!(!has("\\u0008") && !has("\\\\u000c") && !has("\u{7}\u{b}") && !has(""));
    }

    // An independent implementation: serde_json's escaping, followed by Go's additions, character
    // by character.
    fn independent(text: &str) -> String {
        serde_json::to_string(text)
            .unwrap()
            .replace("\\b", "\\u0008")
            .replace("\\f", "\\u000c")
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026")
            .replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029")
    }

    proptest::proptest! {
        #[test]
        fn escaping_agrees_with_another_formulation(
            // A backslash before b or f would break the replacements of the independent
            // implementation.
            text in "[^\\\\]{0,40}"
        ) {
            proptest::prop_assert_eq!(written(&text), independent(&text));
        }

        #[test]
        fn what_is_written_is_read_back(text in ".{0,40}|[\\\\\"<>&\u{0}-\u{1f}\u{2028}bfu0]{0,12}") {
            let back: String = serde_json::from_str(&written(&text)).unwrap();
            proptest::prop_assert_eq!(back, text);
        }
    }
}
