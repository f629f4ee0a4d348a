//! Two corners in which the parser differs from Go's, put right in the text before it is parsed. No
//! byte moves, so places in errors stay true.

/// A comment whose opening trims (`{{- /* … */}}`) must not trim what follows it, and a pipe that
/// ends in nothing (`{{ x | }}`) is allowed.
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
    // Only ASCII was written, and whole characters were overwritten.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// Whether ` -}}` follows.
fn closing_trims(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    let spaces = rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
    spaces > 0 && rest.get(spaces) == Some(&b'-')
}

/// Makes a comment an empty text, which prints nothing.
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

/// Goes over an action up to its end and takes a pipe before that end away.
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

/// Where the quoted text that begins at `start` ends: at its closing quote.
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
