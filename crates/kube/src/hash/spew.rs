//! The go-spew dump of a byte slice (`%#v`), which kubelets from 1.16 on hash instead of the bytes
//! themselves, with 32-bit FNV-1a.

use crate::hash::ContainerHash;

/// Returns the hash of the dump of `bytes`: `([]uint8)[123 34 …]`.
pub(super) fn hash_of_bytes(bytes: &[u8]) -> ContainerHash {
    let mut fnv = Fnv1a::new();
    fnv.feed(b"([]uint8)[");
    for (at, byte) in bytes.iter().enumerate() {
        if at > 0 {
            fnv.feed(b" ");
        }
        // At most three digits, without leading zeros.
        let digits = [byte / 100 + b'0', byte / 10 % 10 + b'0', byte % 10 + b'0'];
        let leading = usize::from(*byte < 100) + usize::from(*byte < 10);
        fnv.feed(&digits[leading..]);
    }
    fnv.feed(b"]");
    ContainerHash(fnv.value())
}

/// State of a running hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fnv1a(u32);

impl Fnv1a {
    pub(super) fn new() -> Self {
        Self(0x811c_9dc5)
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    pub(super) fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_decimal_with_blanks_between() {
        let written = |bytes: &[u8]| {
            let words: Vec<String> = bytes.iter().map(ToString::to_string).collect();
            let mut fnv = Fnv1a::new();
            fnv.feed(format!("([]uint8)[{}]", words.join(" ")).as_bytes());
            fnv.value()
        };
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&[][..], &[0], &[9, 10, 99, 100, 255], &all] {
            assert_eq!(hash_of_bytes(bytes).0, written(bytes));
        }
    }

    #[test]
    fn published_values_come_out() {
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            let mut fnv = Fnv1a::new();
            fnv.feed(text.as_bytes());
            assert_eq!(fnv.value(), hash, "{text}");
        }
    }
}
