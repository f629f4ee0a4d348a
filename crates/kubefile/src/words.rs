//! Splits an instruction's arguments into raw words: at blanks, at blanks outside quotes, or as a
//! JSON array. Quotes and escapes remain; [`super::expand`] removes them.

/// Returns whether BuildKit treats the character as white space between arguments (a folded line
/// contains no newlines).
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0b' | '\x0c' | '\r')
}

/// Returns the offset of `inner` in `outer`; `None` if `inner` is not a slice of `outer`.
pub(super) fn offset_in(outer: &str, inner: &str) -> Option<usize> {
    let offset = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    (offset + inner.len() <= outer.len()).then_some(offset)
}

/// Splits at blanks, ignoring quotes: `FROM`, `EXPOSE`, `COPY`, `ADD`, `VOLUME`.
pub(super) fn split_blanks(text: &str) -> Vec<&str> {
    text.split(is_blank).filter(|word| !word.is_empty()).collect()
}

/// Splits at the first blank and returns the word and the rest without leading blanks.
pub(super) fn split_first(text: &str) -> (&str, &str) {
    match text.find(is_blank) {
        Some(at) => (&text[..at], text[at..].trim_start()),
        None => (text, ""),
    }
}

/// Splits at blanks outside quotes: `ENV`, `LABEL`, `ARG`. An unclosed quote extends to the end; a
/// trailing escape character is dropped.
pub(super) fn split_quoted(text: &str, escape: char) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            if let Some(start) = start.take() {
                words.push(&text[start..at]);
            }
            continue;
        }
        start.get_or_insert(at);
        if c == escape && quote != Some('\'') {
            // The next character belongs to the word, even if it is a quote or a blank.
            if chars.next().is_none() {
                end = at;
            }
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
        }
    }
    match start {
        Some(start) if start < end => words.push(&text[start..end]),
        _ => {}
    }
    words
}

/// The arguments interpreted as JSON.
pub(super) enum Json {
    /// An array of strings: the exec form.
    Strings(Vec<String>),
    /// A valid array with other elements, which is an error and not shell form.
    OtherArray,
    /// Not an array: shell form.
    No,
}

/// Parses the arguments as the JSON form.
pub(super) fn json_form(text: &str) -> Json {
    let text = text.trim();
    if !text.starts_with('[') {
        return Json::No;
    }
    if let Ok(strings) = serde_json::from_str::<Vec<String>>(text) {
        return Json::Strings(strings);
    }
    match serde_json::from_str::<Vec<serde::de::IgnoredAny>>(text) {
        Ok(_) => Json::OtherArray,
        Err(_) => Json::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_quotes_and_escapes_do_not_cut() {
        for (text, expected) in [
            ("a=b c=d", &["a=b", "c=d"][..]),
            (r#"a="b c" d"#, &[r#"a="b c""#, "d"]),
            (r"a='b \' c", &[r"a='b \'", "c"]),
            (r#"a="b \" c" d"#, &[r#"a="b \" c""#, "d"]),
            (r"a=b\ c d", &[r"a=b\ c", "d"]),
            (r#"a=${b:-" --set c=d "} e"#, &[r#"a=${b:-" --set c=d "}"#, "e"]),
            (r#"a="open b"#, &[r#"a="open b"#]),
            ("a\\", &["a"]),
            ("\\", &[]),
            ("  ", &[]),
            (r#""""#, &[r#""""#]),
        ] {
            assert_eq!(split_quoted(text, '\\'), expected, "{text}");
        }
        assert_eq!(split_quoted("a=b` c d", '`'), ["a=b` c", "d"]);
    }

    #[test]
    fn json_is_taken_only_when_it_is_valid() {
        let strings = |text: &str| match json_form(text) {
            Json::Strings(strings) => Some(strings),
            _ => None,
        };
        assert_eq!(strings(r#" ["a", "b\n"] "#).unwrap(), ["a", "b\n"]);
        assert!(strings("[]").unwrap().is_empty());
        assert!(matches!(json_form("[1]"), Json::OtherArray));
        assert!(matches!(json_form(r#"["a", ["b"]]"#), Json::OtherArray));
        for text in ["['a']", r#"["a""#, r#"["a"] b"#, r#"["a",]"#, "a", "[ -f x ]", ""] {
            assert!(matches!(json_form(text), Json::No), "{text}");
        }
    }
}
