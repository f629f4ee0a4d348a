//! Protocol buffers, as far as a few small messages need them: fields are read by number, and written
//! in order. Foreign messages are untrusted: every length is checked.

use imgctl_base::error::{Error, Result};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// A message that is written.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            // The low seven bits, and a mark that more follow.
            self.bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Adds a string or a message.
    pub(crate) fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | LENGTH);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    pub(crate) fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    #[cfg(test)]
    pub(crate) fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.bytes
    }
}

/// A message that is read.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns all values of a repeated field of strings or messages.
    pub(crate) fn all(self, field: u64) -> impl Iterator<Item = Result<&'a [u8]>> {
        self.values().filter_map(move |value| match value {
            Ok((number, Value::Bytes(bytes))) if number == field => Some(Ok(bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Returns the value of a field of strings or messages; empty if it is missing.
    pub(crate) fn bytes(self, field: u64) -> Result<&'a [u8]> {
        self.all(field).last().unwrap_or(Ok(&[]))
    }

    pub(crate) fn text(self, field: u64) -> Result<String> {
        let bytes = self.bytes(field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| malformed())
    }

    /// Returns the value of a field of whole numbers; 0 if it is missing.
    pub(crate) fn number(self, field: u64) -> Result<u64> {
        let mut found = 0;
        for value in self.values() {
            if let (number, Value::Number(value)) = value?
                && number == field
            {
                found = value;
            }
        }
        Ok(found)
    }

    fn values(self) -> impl Iterator<Item = Result<(u64, Value<'a>)>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let value = next(&mut rest);
            if value.is_err() {
                rest = &[];
            }
            Some(value)
        })
    }
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        VARINT => Value::Number(varint(rest)?),
        FIXED64 => Value::Bytes(take(rest, 8)?),
        FIXED32 => Value::Bytes(take(rest, 4)?),
        LENGTH => {
            let length = usize::try_from(varint(rest)?).map_err(|_| malformed())?;
            Value::Bytes(take(rest, length)?)
        }
        _ => return Err(malformed()),
    };
    Ok((tag >> 3, value))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length).ok_or_else(malformed)?;
    *rest = left;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(malformed())
}

fn malformed() -> Error {
    Error::bad_content("a message of containerd is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let inner = Writer::default().text(1, "k").text(2, "v").done();
        let message = Writer::default()
            .number(3, 300)
            .text(1, "first")
            .bytes(10, &inner)
            .bytes(10, b"")
            .number(5, u64::MAX)
            .done();
        let fields = Fields::of(&message);
        assert_eq!(fields.text(1).unwrap(), "first");
        assert_eq!((fields.number(3).unwrap(), fields.number(5).unwrap()), (300, u64::MAX));
        let all: Vec<_> = fields.all(10).map(Result::unwrap).collect();
        assert_eq!(all, [&inner[..], b""]);
        assert_eq!((fields.number(9).unwrap(), fields.bytes(9).unwrap()), (0, &b""[..]));
        // The example of the format's documentation.
        assert_eq!(Writer::default().number(1, 150).done(), [0x08, 0x96, 0x01]);
    }

    #[test]
    fn malformed_messages_are_errors() {
        for wrong in [&[0x0a, 0x05, 1][..], &[0x0a], &[0xff; 11], &[0x0b], &[0x09, 1, 2]] {
            assert!(Fields::of(wrong).bytes(1).is_err(), "{wrong:?}");
            assert!(Fields::of(wrong).number(1).is_err(), "{wrong:?}");
        }
    }
}
