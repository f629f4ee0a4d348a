//! Corrects two differences between the parser and Go's in the text before it is parsed. No byte
//! moves, so positions in error messages stay correct.

/// A comment whose opening trims (`{{- /* … */}}`) must not trim the text after it, and a trailing
/// pipe (`{{ x | }}`) is allowed.
pub(super) fn adapted(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut position = 0;
    while let Some(open) = find(&bytes, position, b"{{") {
        let trims = bytes.get(open + 2) == Some(&b'-')
            && bytes.get(open + 3).is_some_and(u8::is_ascii_whitespace);
        let mut start = open + if trims { 3 } else { 2 };
        while bytes.get(start).is_some_and(u8::is_ascii_whitespace) {
            start += 1;
        }
        position = if bytes.get(start..start + 2) == Some(b"/*") {
            let Some(end) = find(&bytes, start + 2, b"*/") else {
                break;
            };
            if trims && !closing_trims(&bytes, end + 2) {
                blank(&mut bytes, start, end + 2);
            }
            end + 2
        } else {
            action(&mut bytes, start)
        };
    }
    // Only ASCII bytes were written, and only whole characters were overwritten.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Returns whether ` -}}` follows.
fn closing_trims(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    let spaces = rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
    spaces > 0 && rest.get(spaces) == Some(&b'-')
}

/// Replaces a comment with an empty string literal, which prints nothing.
fn blank(bytes: &mut [u8], start: usize, end: usize) {
    for byte in bytes.get_mut(start..end).unwrap_or_default() {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
    for byte in bytes.get_mut(start..start + 2).unwrap_or_default() {
        *byte = b'"';
    }
}

/// Scans an action to its end and removes a pipe before that end.
fn action(bytes: &mut [u8], start: usize) -> usize {
    let mut position = start;
    let mut pipe = None;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'}' if bytes.get(position + 1) == Some(&b'}') => {
                if let Some(slot) = pipe.and_then(|at: usize| bytes.get_mut(at)) {
                    *slot = b' ';
                }
                return position + 2;
            }
            b'"' | b'\'' | b'`' => position = quoted_end(bytes, position),
            b'|' => pipe = Some(position),
            b'-' if bytes.get(position + 1..position + 3) == Some(b"}}") => {}
            byte if byte.is_ascii_whitespace() => {}
            _ => pipe = None,
        }
        if matches!(byte, b'"' | b'\'' | b'`') {
            pipe = None;
        }
        position += 1;
    }
    position
}

/// Returns the position of the closing quote of the string that begins at `start`.
fn quoted_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes.get(start).copied().unwrap_or(b'"');
    let mut position = start + 1;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'\\' if quote != b'`' => position += 1,
            byte if byte == quote => return position,
            _ => {}
        }
        position += 1;
    }
    position
}

fn find(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let at = rest.windows(wanted.len()).position(|w| w == wanted)?;
    Some(from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_corners_change() {
        for (text, expected) in [
            ("a {{- /* é */}} b", "a {{- \"\"      }} b"),
            ("a {{- /* c */ -}} b", "a {{- /* c */ -}} b"),
            ("a {{/* c */}} b", "a {{/* c */}} b"),
            ("{{ x | trunc 5 | }}", "{{ x | trunc 5   }}"),
            ("{{ x | -}}", "{{ x   -}}"),
            (r#"{{ "a | }}" | b }}|"#, r#"{{ "a | }}" | b }}|"#),
            ("{{ `\\` | x }} | }}", "{{ `\\` | x }} | }}"),
            ("{{", "{{"),
            ("{{ \"", "{{ \""),
        ] {
            assert_eq!(adapted(text), expected, "{text}");
        }
    }
}
