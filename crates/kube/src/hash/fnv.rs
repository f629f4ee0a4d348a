//! 32-bit FNV-1a.

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
    fn published_values_come_out() {
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            let mut fnv = Fnv1a::new();
            fnv.feed(text.as_bytes());
            assert_eq!(fnv.value(), hash, "{text}");
        }
    }
}
