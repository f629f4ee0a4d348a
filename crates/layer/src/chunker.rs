//! Content-defined borders of chunks in large files: bytes that are inserted or removed move only
//! the borders near them, so that later chunks of two versions are the same.
//!
//! The rolling hash is the gear hash of FastCDC (Xia et al., 2016). The sizes and the table are part
//! of the format: a change gives every layer with a large file a new digest.

/// Size up to which a file is one chunk, and the size at which a chunk ends at the latest, in bytes.
pub(super) const LARGEST: usize = 4 << 20;
/// Minimum size of a chunk, in bytes.
const SMALLEST: usize = 512 << 10;
/// A border has these bits of the hash clear: one byte in 1 Mi. The hash's upper bits depend on the
/// last 64 bytes, the lower ones on fewer.
const MASK: u64 = ((1 << 20) - 1) << 44;

/// Finds the borders in a stream of bytes.
#[derive(Debug, Default)]
pub(super) struct Chunker {
    hash: u64,
    /// Number of bytes since the last border.
    length: usize,
}

impl Chunker {
    /// Returns how many of the next `bytes` belong to the current chunk if it ends among them. The
    /// next call continues after the border; without a border all bytes are consumed.
    pub(super) fn border(&mut self, bytes: &[u8]) -> Option<usize> {
        let most = LARGEST - self.length;
        // The last 64 bytes before the minimum are enough to fill the hash.
        let ahead = SMALLEST.saturating_sub(64 + self.length).min(bytes.len());
        let mut hash = self.hash;
        for (index, byte) in bytes.iter().enumerate().take(most).skip(ahead) {
            hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
            if hash & MASK == 0 && self.length + index + 1 >= SMALLEST {
                return Some(self.end(index + 1));
            }
        }
        if bytes.len() >= most {
            return Some(self.end(most));
        }
        self.hash = hash;
        self.length += bytes.len();
        None
    }

    fn end(&mut self, count: usize) -> usize {
        *self = Self::default();
        count
    }
}

/// Pseudorandom numbers by SplitMix64 (Steele et al., 2014).
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut state: u64 = 0;
    let mut index = 0;
    while index < table.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[index] = mixed ^ (mixed >> 31);
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    /// The chunks of `bytes`, which arrive in pieces of `step` bytes.
    fn chunks(bytes: &[u8], step: usize) -> Vec<&[u8]> {
        let mut chunker = Chunker::default();
        let (mut chunks, mut start, mut position) = (Vec::new(), 0, 0);
        while position < bytes.len() {
            let end = bytes.len().min(position + step);
            match chunker.border(&bytes[position..end]) {
                Some(count) => {
                    position += count;
                    chunks.push(&bytes[start..position]);
                    start = position;
                }
                None => position = end,
            }
        }
        chunks.push(&bytes[start..]);
        chunks
    }

    #[test]
    fn borders_do_not_depend_on_how_the_bytes_arrive() {
        let bytes = noise(24 << 20);
        let whole = chunks(&bytes, bytes.len());
        assert!((8..=48).contains(&whole.len()), "{}", whole.len());
        for step in [1000, 65_536, 1 << 20, 5 << 20] {
            assert!(chunks(&bytes, step) == whole, "{step}");
        }
        let (last, others) = whole.split_last().unwrap();
        assert!(others.iter().all(|chunk| (SMALLEST..=LARGEST).contains(&chunk.len())));
        assert!(last.len() <= LARGEST);
    }

    #[test]
    fn an_insertion_changes_the_chunks_around_it() {
        let bytes = noise(24 << 20);
        let mut longer = bytes.clone();
        longer.splice(7_000_000..7_000_000, *b"inserted");
        let (old, new) = (chunks(&bytes, bytes.len()), chunks(&longer, longer.len()));
        let fresh = new.iter().filter(|chunk| !old.contains(chunk)).count();
        assert!((1..=2).contains(&fresh), "{fresh}");
    }

    #[test]
    fn a_chunk_of_zeros_ends_at_the_maximum() {
        let lengths: Vec<usize> =
            chunks(&vec![0; 9 << 20], 100_000).iter().map(|chunk| chunk.len()).collect();
        assert_eq!(lengths, [LARGEST, LARGEST, 1 << 20]);
    }
}
