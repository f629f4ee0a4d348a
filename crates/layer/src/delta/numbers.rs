//! Numbers of a recipe: LEB128, and the numbers in a list of frames as differences.

use std::io::{self, Read};

use crate::leb128;

/// Reads one number; `None` if it has more than 64 bits.
pub(super) fn read_number(reader: &mut dyn Read) -> io::Result<Option<u64>> {
    let mut encoded = Vec::with_capacity(10);
    while encoded.len() < 10 {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        encoded.push(byte[0]);
        if byte[0] & 0x80 == 0 {
            return Ok(Numbers(&encoded).next());
        }
    }
    Ok(None)
}

/// The remaining numbers.
pub(super) struct Numbers<'a>(pub(super) &'a [u8]);

impl Numbers<'_> {
    pub(super) fn next(&mut self) -> Option<u64> {
        leb128::take(&mut self.0)
    }

    pub(super) fn index(&mut self) -> Option<usize> {
        usize::try_from(self.next()?).ok()
    }

    /// Number of items that follow; each takes at least two bytes.
    pub(super) fn count(&mut self) -> Option<usize> {
        self.index().filter(|count| *count <= self.0.len() / 2)
    }
}

/// What precedes the numbers that move with every insertion, in a list of frames.
const KEYS: [&[u8]; 2] = [b"\"offset\":", b"\"endOffset\":"];

/// Replaces each offset in a list of frames by its difference from the offset before; `None` if that
/// is not reversible.
pub(super) fn to_differences(list: &[u8]) -> Option<Vec<u8>> {
    let differences = convert(list, &mut |number, last| number.wrapping_sub(last), true)?;
    (from_differences(&differences)? == list).then_some(differences)
}

/// Reverses [`to_differences`]; `None` if the result cannot be a list of frames.
pub(super) fn from_differences(list: &[u8]) -> Option<Vec<u8>> {
    convert(list, &mut |difference, last| last.wrapping_add(difference), false)
}

fn convert(
    list: &[u8],
    number_of: &mut dyn FnMut(u64, u64) -> u64,
    is_forward: bool,
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(list.len() + list.len() / 8);
    let mut rest = list;
    let mut last = 0;
    // Keys begin with a quote: everything up to the next one is copied at once.
    while let Some(quote) = rest.iter().position(|byte| *byte == b'"') {
        let (before, from_quote) = rest.split_at(quote);
        out.extend_from_slice(before);
        let Some(key) = KEYS.iter().find(|key| from_quote.starts_with(key)) else {
            out.push(b'"');
            rest = &from_quote[1..];
            continue;
        };
        let (key, after) = from_quote.split_at(key.len());
        out.extend_from_slice(key);
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, after) = after.split_at(digits);
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let other = number_of(number, last);
        last = if is_forward { number } else { other };
        out.extend_from_slice(other.to_string().as_bytes());
        rest = after;
    }
    out.extend_from_slice(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            leb128::put(&mut bytes, number);
            assert_eq!(read_number(&mut &bytes[..]).unwrap(), Some(number));
        }
        assert_eq!(read_number(&mut &[0xff; 11][..]).unwrap(), None);
        assert!(read_number(&mut &[0x80][..]).is_err());
    }

    #[test]
    fn offsets_become_differences_and_offsets_again() {
        let list =
            br#"{"entries":[{"name":"a\"offset","offset":100,"endOffset":250},{"offset":300}]}"#;
        let differences = to_differences(list).unwrap();
        let text = String::from_utf8_lossy(&differences);
        assert!(text.contains(r#""offset":100,"endOffset":150"#), "{text}");
        assert!(text.contains(r#"{"offset":50}"#), "{text}");
        assert_eq!(from_differences(&differences).unwrap(), list);
        for strange in ["\"offset\":007", "\"offset\":", "\"offset\":99999999999999999999999"] {
            assert_eq!(to_differences(strange.as_bytes()), None, "{strange}");
        }
        assert_eq!(to_differences(b"").unwrap(), b"");
    }
}
