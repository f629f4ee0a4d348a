//! Which characters of foreign text must not be shown as they are, on a page or a terminal.

/// Returns whether `character` has no shape of its own and changes what others look like: control
/// characters except the tab, formatting and bidirectional characters, tags. `shown` in
/// `crates/report/src/assets/core.js` has the same list.
pub fn is_unsafe(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_or_hides_other_text_is_unsafe() {
        for character in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200d}', '\n'] {
            assert!(is_unsafe(character), "{character:?}");
        }
        for character in ['a', 'é', '日', '\t', ' ', '…'] {
            assert!(!is_unsafe(character), "{character:?}");
        }
    }
}
