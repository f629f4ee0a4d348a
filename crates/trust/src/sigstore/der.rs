//! A reader of DER (X.690) that never copies, never recurses and never reads past its input; and
//! the few encodings that requests need. Must not depend on what the values mean.

use imgctl_base::error::{Error, Result};

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Returns the tag of a constructed context-specific value.
pub(super) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// One value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// Tag, length and content.
    pub(super) whole: &'a [u8],
}

impl<'a> Value<'a> {
    /// Reads the values inside.
    pub(super) fn inside(&self) -> Reader<'a> {
        Reader(self.content)
    }
}

/// Reads one value after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads the next value, whatever it is.
    pub(super) fn any(&mut self) -> Result<Value<'a>> {
        let input = self.0;
        let (&tag, rest) = input.split_first().ok_or_else(|| malformed("ends too early"))?;
        if tag & 0x1f == 0x1f {
            return Err(malformed("has a long tag"));
        }
        let (&first, rest) = rest.split_first().ok_or_else(|| malformed("ends too early"))?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 {
                return Err(malformed("has a length that is not definite"));
            }
            let (bytes, rest) =
                rest.split_at_checked(count).ok_or_else(|| malformed("ends too early"))?;
            (bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)), rest)
        };
        let (content, rest) =
            rest.split_at_checked(length).ok_or_else(|| malformed("ends too early"))?;
        let whole = input.get(..input.len() - rest.len()).unwrap_or_default();
        self.0 = rest;
        Ok(Value { tag, content, whole })
    }

    /// Reads a value with this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Result<Value<'a>> {
        let value = self.any()?;
        if value.tag == tag {
            Ok(value)
        } else {
            Err(malformed(&format!("has tag {:#04x} in place of {tag:#04x}", value.tag)))
        }
    }

    /// Reads a value if it has this tag.
    pub(super) fn optional(&mut self, tag: u8) -> Result<Option<Value<'a>>> {
        if self.0.first() == Some(&tag) { self.any().map(Some) } else { Ok(None) }
    }

    /// Reads a sequence and returns a reader of its values.
    pub(super) fn sequence(&mut self) -> Result<Self> {
        Ok(self.expect(SEQUENCE)?.inside())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if anything is left.
    pub(super) fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(malformed("goes on behind its end")) }
    }
}

/// Reads the only value of `input`.
pub(super) fn only(input: &[u8], tag: u8) -> Result<Value<'_>> {
    let mut reader = Reader(input);
    let value = reader.expect(tag)?;
    reader.end()?;
    Ok(value)
}

/// Encodes a value.
pub(super) fn encode(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = vec![tag];
    if let Ok(short @ 0..0x80) = u8::try_from(length) {
        bytes.push(short);
    } else {
        let digits: Vec<u8> =
            length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        bytes.push(0x80 | u8::try_from(digits.len()).unwrap_or(8));
        bytes.extend(digits);
    }
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Parses a UTCTime or GeneralizedTime in UTC, as seconds since 1970; fractions are cut off.
pub(super) fn time(value: &Value<'_>) -> Result<i64> {
    let wrong = || malformed("has a time that cannot be read");
    let text = std::str::from_utf8(value.content).map_err(|_| wrong())?;
    let text = text.strip_suffix('Z').ok_or_else(wrong)?;
    let full = match value.tag {
        // RFC 5280 §4.1.2.5.1.
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.split('.').next().unwrap_or_default().to_owned(),
        _ => return Err(wrong()),
    };
    if full.len() != 14 || !full.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let (date, clock) = full.split_at(8);
    let written = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &date[..4],
        &date[4..6],
        &date[6..],
        &clock[..2],
        &clock[2..4],
        &clock[4..]
    );
    let time: jiff::Timestamp = written.parse().map_err(|_| wrong())?;
    Ok(time.as_second())
}

fn malformed(how: &str) -> Error {
    Error::bad_content(format!("the DER {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_reads_back() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; length];
            let bytes = encode(OCTET_STRING, &[&content]);
            let value = only(&bytes, OCTET_STRING).unwrap();
            assert_eq!((value.content, value.whole), (&*content, &*bytes));
            assert!(only(&bytes[..bytes.len() - 1], OCTET_STRING).is_err());
            assert!(only(&[&bytes[..], b"x"].concat(), OCTET_STRING).is_err());
        }
        bolero::check!().for_each(|bytes: &[u8]| {
            let mut reader = Reader(bytes);
            while let Ok(value) = reader.any() {
                let _ = time(&value);
            }
        });
    }

    #[test]
    fn times_of_both_kinds() {
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000001Z", Some(1)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "19700101000002Z", Some(2)),
            (GENERALIZED_TIME, "19700101000002.5Z", Some(2)),
            (GENERALIZED_TIME, "19700101000002+01", None),
            (GENERALIZED_TIME, "19701301000002Z", None),
            (UTC_TIME, "7001010000Z", None),
        ] {
            let bytes = encode(tag, &[text.as_bytes()]);
            assert_eq!(time(&only(&bytes, tag).unwrap()).ok(), seconds, "{text}");
        }
    }
}
