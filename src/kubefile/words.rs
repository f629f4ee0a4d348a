//! Cutting an instruction's arguments into raw words: by blanks, by blanks outside quotes, or as
//! a JSON array. Quotes and escapes stay; [`super::expand`] takes them away.

/// White space between arguments as BuildKit sees it (a newline cannot occur in a folded line).
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0b' | '\x0c' | '\r')
}

/// Where `inner`, a slice of `outer`, begins in it; `None` if it is not a slice of it.
pub(super) fn offset_in(outer: &str, inner: &str) -> Option<usize> {
    let offset = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    (offset + inner.len() <= outer.len()).then_some(offset)
}

/// Cuts at blanks, quotes or not: `FROM`, `EXPOSE`, `COPY`, `ADD`, `VOLUME`.
pub(super) fn split_blanks(text: &str) -> Vec<&str> {
    text.split(is_blank)
        .filter(|word| !word.is_empty())
        .collect()
}

/// Cuts at the first blank: (word, rest without leading blanks).
pub(super) fn split_first(text: &str) -> (&str, &str) {
    match text.find(is_blank) {
        Some(at) => (&text[..at], text[at..].trim_start()),
        None => (text, ""),
    }
}

/// Cuts at blanks outside quotes: `ENV`, `LABEL`, `ARG`. A quote that is never closed runs to
/// the end; an escape as the very last character is dropped.
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
            // Whatever follows belongs to the word, a quote or a blank as well.
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

/// What the arguments are, taken as JSON.
pub(super) enum Json {
    /// An array of strings: the exec form.
    Strings(Vec<String>),
    /// A valid array with something else in it, which is an error rather than shell form.
    OtherArray,
    /// Not an array: shell form.
    No,
}

/// Reads the arguments as the JSON form.
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
            (
                r#"a=${b:-" --set c=d "} e"#,
                &[r#"a=${b:-" --set c=d "}"#, "e"],
            ),
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
        for text in [
            "['a']",
            r#"["a""#,
            r#"["a"] b"#,
            r#"["a",]"#,
            "a",
            "[ -f x ]",
            "",
        ] {
            assert!(matches!(json_form(text), Json::No), "{text}");
        }
    }
}
