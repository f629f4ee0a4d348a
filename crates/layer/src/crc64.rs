//! CRC-64 of ISO 3309, as tar-split has it.
//!
//! Its polynomial is x^64 + r with r = x^4 + x^3 + x + 1, so that a product by x^64 is one by r: a few
//! shifts instead of tables. r^128 has four terms as well, which are 128 bits and more apart: blocks
//! of 128 words are added up word by word, as fast as memory is read.
//!
//! Numbers are bit-reflected: the lowest bit is the coefficient of the highest power.

/// Number of words in a block.
const WORDS: usize = 128;
/// Number of bytes in a block.
const BLOCK: usize = 8 * WORDS;
/// x^(64 · WORDS) is the sum of the powers 0 and 64 times these: r^128.
const SHIFTS: [usize; 3] = [2, 6, 8];
/// The largest of them.
const CARRY: usize = 8;

/// Returns the checksum of `bytes`.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let [first, others @ ..] = blocks else { return !update(!0, rest) };
    let mut sum = [0; WORDS + CARRY];
    for (word, bytes) in sum.iter_mut().zip(first.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    sum[0] = !sum[0];
    for block in others {
        fold(&mut sum, block);
    }
    let state = sum[..WORDS].iter().fold(0, |state, word| times_r(state ^ word));
    !update(state, rest)
}

/// Returns the checksum of two consecutive runs of bytes from their own checksums; the second run
/// has `length` bytes.
pub(super) fn joined(first: u64, second: u64, length: u64) -> u64 {
    let bits = (0..u64::BITS - 3).filter(|bit| length >> bit & 1 == 1);
    bits.fold(first, |state, bit| raised(state, bit + 3)) ^ second
}

/// Multiplies `sum` by x^(64 · WORDS) and adds `block`. The words behind those of a block are zero.
fn fold(sum: &mut [u64; WORDS + CARRY], block: &[u8; BLOCK]) {
    // What leaves the block at its upper end comes in again at the lower one, multiplied.
    let mut carry = [0; CARRY];
    for shift in SHIFTS {
        for (out, word) in carry[CARRY - shift..].iter_mut().zip(&*sum) {
            *out ^= *word;
        }
    }
    for (index, bytes) in block.as_chunks::<8>().0.iter().enumerate().take(WORDS) {
        let [a, b, c] = SHIFTS;
        sum[index] ^= sum[index + a] ^ sum[index + b] ^ sum[index + c] ^ u64::from_le_bytes(*bytes);
    }
    for shift in [0].into_iter().chain(SHIFTS) {
        for (word, out) in sum[WORDS - CARRY - shift..].iter_mut().zip(&carry) {
            *word ^= *out;
        }
    }
}

/// Continues with `bytes`.
fn update(state: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let state = words.iter().fold(state, |state, word| times_r(state ^ u64::from_le_bytes(*word)));
    let byte = |state: u64, byte: &u8| state >> 8 ^ reduced((state ^ u64::from(*byte)) << 56);
    rest.iter().fold(state, byte)
}

/// Returns `state` times x^64.
fn times_r(state: u64) -> u64 {
    reduced(state) ^ reduced(state << 63 ^ state << 61 ^ state << 60)
}

/// Returns the first 64 powers of `carry` times r; there are no others if `carry` has at most 60.
fn reduced(carry: u64) -> u64 {
    carry ^ carry >> 1 ^ carry >> 3 ^ carry >> 4
}

/// Returns `state` times x^(2^power).
fn raised(state: u64, power: u32) -> u64 {
    if power < 6 {
        let shift = 1 << power;
        return state >> shift ^ reduced(state << (64 - shift));
    }
    // x^(64 · n) is r^n, and r to a power of two has r's terms, each to that power.
    let by = |state| raised(state, power - 6);
    let once = by(state);
    let thrice = by(by(once));
    state ^ once ^ thrice ^ by(thrice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the definition has it.
    fn defined(bytes: &[u8]) -> u64 {
        let mut state = !0;
        for byte in bytes {
            state ^= u64::from(*byte);
            for _ in 0..8 {
                let is_carried = state & 1 == 1;
                state >>= 1;
                if is_carried {
                    state ^= 0xd800_0000_0000_0000;
                }
            }
        }
        !state
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn it_is_the_sum_of_the_catalogue() {
        assert_eq!(checksum(b"123456789"), 0xb909_56c7_75a4_1001);
        assert_eq!(checksum(b""), 0);
    }

    #[test]
    fn blocks_words_and_bytes_give_what_bits_give() {
        let bytes = noise(5 * BLOCK + 29);
        for length in [1, 7, 8, 9, 63, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 13] {
            assert_eq!(checksum(&bytes[..length]), defined(&bytes[..length]), "{length}");
        }
        assert_eq!(checksum(&bytes), defined(&bytes));
        let ones = vec![0xff; 4 * BLOCK + 1];
        assert_eq!(checksum(&ones), defined(&ones));
    }

    #[test]
    fn sums_of_parts_give_the_sum_of_the_whole() {
        let bytes = noise(70_000);
        for middle in [0, 1, 8, 1000, 4096, 65_535, 65_536, 69_999, 70_000] {
            let (first, second) = bytes.split_at(middle);
            let joined = joined(checksum(first), checksum(second), second.len() as u64);
            assert_eq!(joined, checksum(&bytes), "{middle}");
        }
    }
}
