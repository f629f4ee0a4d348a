//! JSON inside HTML: what a parser of HTML could take for markup becomes an escape of JSON.

use serde::Serialize;

/// Returns `value` as JSON for a `<script type="application/json">` element. No character can end the
/// element or begin another.
pub(crate) fn json_for_html(value: &impl Serialize) -> String {
    // Values of the model have only strings as keys: writing them cannot fail.
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let mut safe = String::with_capacity(json.len() + json.len() / 64);
    // The copies between the few characters that change are what this costs.
    let mut rest = json.as_str();
    while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}', '\u{7f}']) {
        safe.push_str(&rest[..at]);
        let mut following = rest[at..].chars();
        if let Some(character) = following.next() {
            safe.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
        rest = following.as_str();
    }
    safe.push_str(rest);
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_markup_remains_and_the_value_is_the_same() {
        let text = "</script><!--<script>&amp;\u{2028}\u{2029}\u{7f}\u{202e}\"\\\0é";
        let safe = json_for_html(&[text]);
        assert!(!safe.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\0']), "{safe}");
        let back: Vec<String> = serde_json::from_str(&safe).unwrap();
        assert_eq!(back, [text]);
    }
}
