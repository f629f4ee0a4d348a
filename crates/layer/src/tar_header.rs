//! The fields of a 512-byte tar header as the reader sees them: their positions and the decoding of
//! numbers and checksums (POSIX.1-2017 pax, "ustar Interchange Format", GNU's and star's extensions).
//!
//! The `tar` crate's views of a header are unsuitable here: they depend on the version after the magic,
//! which Go's archive/tar ignores, and its numbers tolerate what readers disagree about.

use imgctl_base::error::{Error, Result};

/// Size of a header in bytes, and the unit to which everything in a tar is padded.
pub(super) const BLOCK: usize = 512;

/// A field of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    offset: usize,
    length: usize,
}

impl Field {
    pub(super) const NAME: Self = Self::new(0, 100);
    pub(super) const MODE: Self = Self::new(100, 8);
    pub(super) const UID: Self = Self::new(108, 8);
    pub(super) const GID: Self = Self::new(116, 8);
    pub(super) const SIZE: Self = Self::new(124, 12);
    pub(super) const MTIME: Self = Self::new(136, 12);
    pub(super) const CHECKSUM: Self = Self::new(148, 8);
    pub(super) const TYPE: usize = 156;
    pub(super) const LINK: Self = Self::new(157, 100);
    /// Magic and version together.
    pub(super) const MAGIC: Self = Self::new(257, 8);
    pub(super) const MAJOR: Self = Self::new(329, 8);
    pub(super) const MINOR: Self = Self::new(337, 8);
    pub(super) const PREFIX: Self = Self::new(345, 155);
    /// star stores times after a shorter prefix.
    pub(super) const STAR_PREFIX: Self = Self::new(345, 131);
    pub(super) const STAR_TRAILER: Self = Self::new(508, 4);
    /// GNU: times in the prefix's place.
    pub(super) const GNU_ATIME: Self = Self::new(345, 12);
    pub(super) const GNU_CTIME: Self = Self::new(357, 12);
    /// GNU: four pieces of a sparse file, whether more follow, and its size including holes.
    pub(super) const GNU_SPARSE: Self = Self::new(386, 96);
    pub(super) const GNU_IS_EXTENDED: Self = Self::new(482, 1);
    pub(super) const GNU_REAL_SIZE: Self = Self::new(483, 12);

    /// Creates a field of `length` bytes at `offset`; both within the block.
    pub(super) const fn new(offset: usize, length: usize) -> Self {
        assert!(offset + length <= BLOCK);
        Self { offset, length }
    }

    /// Returns the length in bytes.
    pub(super) const fn len(self) -> usize {
        self.length
    }

    /// Returns the positions of the field's bytes in the header.
    pub(super) const fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.length
    }
}

/// Returns the bytes of a field.
pub(super) fn get(block: &[u8; BLOCK], field: Field) -> &[u8] {
    &block[field.range()]
}

/// Returns the bytes of a field up to the first NUL.
pub(super) fn text(block: &[u8; BLOCK], field: Field) -> &[u8] {
    until_nul(get(block, field))
}

/// Returns the bytes before the first NUL.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}

/// Returns whether the checksum is correct, summed over unsigned bytes or, as some tools did,
/// signed ones.
pub(super) fn checksum_holds(block: &[u8; BLOCK]) -> bool {
    let Ok(expected) = octal(get(block, Field::CHECKSUM)) else {
        return false;
    };
    let (mut unsigned, mut signed) = (0, 0);
    for (index, byte) in block.iter().enumerate() {
        let in_checksum = index.wrapping_sub(Field::CHECKSUM.offset) < Field::CHECKSUM.length;
        let byte = if in_checksum { b' ' } else { *byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    expected == unsigned || expected == signed
}

/// Parses a number in a header: octal digits between blanks, or base-256 (GNU, star). A field of
/// blanks is 0.
pub(super) fn number(field: &[u8]) -> Result<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base_256(field),
        _ => octal(field),
    }
}

fn octal(field: &[u8]) -> Result<i64> {
    let is_blank = |b: &u8| matches!(b, b' ' | 0);
    let mut number: i64 = 0;
    for byte in until_blank(field.trim_ascii_start(), is_blank)? {
        let digit = match byte {
            b'0'..=b'7' => i64::from(byte - b'0'),
            _ => return Err(malformed(field)),
        };
        number = number
            .checked_mul(8)
            .and_then(|number| number.checked_add(digit))
            .ok_or_else(|| malformed(field))?;
    }
    Ok(number)
}

/// Returns the bytes before the first blank; only blanks may follow.
fn until_blank(field: &[u8], is_blank: impl Fn(&u8) -> bool) -> Result<&[u8]> {
    let end = field.iter().position(&is_blank).unwrap_or(field.len());
    let (digits, rest) = field.split_at(end);
    if rest.iter().all(is_blank) { Ok(digits) } else { Err(malformed(field)) }
}

/// Parses a two's complement number whose highest bit is a mark and whose next bit is the sign.
fn base_256(field: &[u8]) -> Result<i64> {
    let mut number: i64 = match field.first() {
        Some(first) if first & 0x40 != 0 => -1,
        _ => 0,
    };
    for (index, byte) in field.iter().enumerate() {
        let byte = match (index, number) {
            (0, 0) => *byte & 0x7f,
            _ => *byte,
        };
        number = number
            .checked_mul(256)
            .and_then(|number| number.checked_add(i64::from(byte)))
            .ok_or_else(|| malformed(field))?;
    }
    Ok(number)
}

fn malformed(field: &[u8]) -> Error {
    Error::bad_content(format!("malformed number `{}` in a tar header", field.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_spelling() {
        for (field, expected) in [
            (&b"0000644\0"[..], 0o644),
            (b"   644 \0", 0o644),
            (b"644 \0\0\0\0", 0o644),
            (b"77777777", 0o77_777_777),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"        ", 0),
            (b"\x80\0\0\0\0\0\x01\0", 256),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", -1),
            (b"\xff\xff\xff\xff\xff\xff\xfe\xff", -257),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", i64::MAX),
        ] {
            assert_eq!(number(field).unwrap(), expected, "{}", field.escape_ascii());
        }
        for bad in [
            &b"9\0"[..],
            b"-1\0",
            b"12x4567\0",
            b"12 34\0\0\0",
            b"\0\x31\0",
            b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x80\x01\0\0\0\0\0\0\0\0\0\0",
            b"7777777777777777777777777",
        ] {
            assert!(number(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn both_kinds_of_checksum_hold() {
        let mut header = tar::Header::new_ustar();
        header.set_path("größe").unwrap();
        header.set_cksum();
        let mut block = *header.as_bytes();
        assert!(checksum_holds(&block));
        let unsigned = number(get(&block, Field::CHECKSUM)).unwrap();
        let high_bytes = block.iter().filter(|b| **b >= 0x80).count() as i64;
        let signed = format!("{:06o}\0 ", unsigned - 256 * high_bytes);
        block[Field::CHECKSUM.range()].copy_from_slice(signed.as_bytes());
        assert!(checksum_holds(&block));
        block[0] ^= 1;
        assert!(!checksum_holds(&block));
    }
}
