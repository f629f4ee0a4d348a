//! Finds the ends of zstd frames without decompressing them (RFC 8878, 3.1.1), so several threads
//! can decompress one each.
//!
//! Handles only frames that declare the size of their content, as those written by imgctl do; all
//! others are for the streaming decoder.

use std::io::{self, BufRead, Read};
use std::sync::{Mutex, PoisonError};

/// What is at the front of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// A whole frame was appended to the buffer; the value is the size of its content in bytes.
    Frame(usize),
    /// Neither: the bytes read so far were appended, from which a streaming decoder continues.
    Other,
    /// The stream has ended.
    End,
}

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Frames to decompress together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Size of their content, in bytes.
    pub(super) content: usize,
    /// What follows them instead of another frame.
    pub(super) end: Option<End>,
}

/// What follows the last frame.
#[derive(Debug)]
pub(super) enum End {
    /// Nothing.
    Stream,
    /// Something else, of which these bytes were read.
    Other(Vec<u8>),
}

/// Reads frames into `frames` (cleared first) until their content is at least `enough` bytes: small
/// ones are not worth a thread's attention each. None of them has more than `most` bytes.
pub(super) fn batch(
    source: &mut impl BufRead,
    most: usize,
    enough: usize,
    frames: &mut Vec<u8>,
) -> io::Result<Batch> {
    frames.clear();
    let mut batch = Batch::default();
    // Frames without content must not fill the memory.
    while batch.content < enough && frames.len() < most && batch.end.is_none() {
        let start = frames.len();
        match next(source, most, frames)? {
            Front::Frame(content) => batch.content += content,
            Front::Other => batch.end = Some(End::Other(frames.split_off(start))),
            Front::End => batch.end = Some(End::Stream),
        }
    }
    Ok(batch)
}

/// Appends the next frame to `frames` if its content is at most `most` bytes. Skips skippable
/// frames.
fn next(source: &mut impl BufRead, most: usize, frames: &mut Vec<u8>) -> io::Result<Front> {
    let start = frames.len();
    loop {
        frames.truncate(start);
        if source.fill_buf()?.is_empty() {
            return Ok(Front::End);
        }
        if !append(source, 4, frames)? {
            return Ok(Front::Other);
        }
        if is_skippable(&frames[start..]) {
            if !append(source, 4, frames)? {
                return Ok(Front::Other);
            }
            let length = little_endian(&frames[start + 4..]);
            if io::copy(&mut source.take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        }
        return Ok(match rest_of_frame(source, most, frames)? {
            Some(content) => Front::Frame(content),
            None => Front::Other,
        });
    }
}

/// Whether a magic number is that of a skippable frame.
pub(super) fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// Reads the rest of a frame, whose magic number is at the end of `frames`, and returns the size of
/// its content in bytes; `None` if it is no frame, or an unsuitable or truncated one.
pub(super) fn rest_of_frame(
    source: &mut impl BufRead,
    most: usize,
    frames: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    if !frames.ends_with(&MAGIC) {
        return Ok(None);
    }
    let header = frames.len();
    if !append(source, 1, frames)? {
        return Ok(None);
    }
    let descriptor = frames[header];
    let is_single_segment = descriptor & 0x20 != 0;
    let has_checksum = descriptor & 4 != 0;
    let window = usize::from(!is_single_segment);
    let size_length = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        code => 1 << code,
    };
    let has_dictionary = descriptor & 3 != 0;
    if size_length == 0 || has_dictionary || !append(source, window + size_length, frames)? {
        return Ok(None);
    }
    let size = little_endian(&frames[header + 1 + window..]);
    let size = if size_length == 2 { size + 256 } else { size };
    let Some(content) = usize::try_from(size).ok().filter(|size| *size <= most) else {
        return Ok(None);
    };
    // Valid frames are hardly larger than their content; others need not be held in memory.
    let longest = content + content / 8 + (64 << 10);
    loop {
        let start = frames.len();
        if start - header > longest || !append(source, 3, frames)? {
            return Ok(None);
        }
        let block = little_endian(&frames[start..]);
        let is_last = block & 1 != 0;
        let is_repetition = block >> 1 & 3 == 1;
        let length = if is_repetition { 1 } else { block >> 3 };
        if !append(source, length as usize, frames)? {
            return Ok(None);
        }
        if is_last {
            let checksum = if has_checksum { 4 } else { 0 };
            return Ok(append(source, checksum, frames)?.then_some(content));
        }
    }
}

/// Appends `count` bytes; returns `false` if there are fewer. `count` is below 2 MiB.
fn append(source: &mut impl BufRead, count: usize, frame: &mut Vec<u8>) -> io::Result<bool> {
    let read = source.take(count as u64).read_to_end(frame)?;
    Ok(read == count)
}

fn little_endian(bytes: &[u8]) -> u64 {
    let add = |number, byte: &u8| number << 8 | u64::from(*byte);
    bytes.iter().rev().fold(0, add)
}

/// Maximum number of batches in memory; each takes at most 10 MiB, twice its largest content.
const FRAMES: usize = 3;
/// Minimum number of batches for parallel decompression.
const LEAST: usize = 2;

static FREE: Mutex<usize> = Mutex::new(FRAMES);

/// One layer's share, returned on drop.
#[derive(Debug)]
pub(super) struct FrameShare {
    frames: usize,
    /// The amount taken from the shared memory; less than `frames` if the minimum was granted on
    /// demand.
    taken: usize,
}

impl FrameShare {
    /// Takes all free frames, or none if there are too few. With `insist`, always grants at least
    /// the minimum instead of waiting: a reader that it would wait for may be waiting for this one.
    pub(super) fn take(insist: bool) -> Option<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = if *free >= LEAST { std::mem::take(&mut *free) } else { 0 };
        match (taken, insist) {
            (0, false) => None,
            (taken, _) => Some(Self { frames: taken.max(LEAST), taken }),
        }
    }

    /// Returns how many batches may be in memory.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }
}

impl Drop for FrameShare {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skippable(content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_le_bytes();
        [&[0x53, 0x2a, 0x4d, 0x18], &length[..], content].concat()
    }

    fn with_checksum(content: &[u8]) -> Vec<u8> {
        let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
        let flag = zstd::zstd_safe::CParameter::ChecksumFlag(true);
        compressor.set_parameter(flag).unwrap();
        compressor.compress(content).unwrap()
    }

    #[test]
    fn frames_are_cut_where_they_end() {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        let noise: Vec<u8> = (0..700_000_u64).map(|n| ((n * n) >> 7) as u8).collect();
        for length in [0, 1, 255, 256, 257, 65_791, 65_792, 700_000] {
            for content in [&noise[..length], &vec![b'x'; length]] {
                for frame in [zstd::bulk::compress(content, 3).unwrap(), with_checksum(content)] {
                    stream.extend_from_slice(&skippable(b"between"));
                    stream.extend_from_slice(&frame);
                    expected.push((frame, content.len()));
                }
            }
        }
        stream.extend_from_slice(&skippable(b""));
        // A small buffer, so every structure is split somewhere.
        let mut source = io::BufReader::with_capacity(7, &stream[..]);
        let mut frame = Vec::new();
        for (bytes, content) in expected {
            frame.clear();
            assert_eq!(next(&mut source, 1 << 20, &mut frame).unwrap(), Front::Frame(content));
            assert!(frame == bytes);
        }
        assert_eq!(next(&mut source, 1 << 20, &mut frame).unwrap(), Front::End);
    }

    #[test]
    fn small_frames_come_together() {
        let small = zstd::bulk::compress(&[b'x'; 300], 3).unwrap();
        let large = zstd::bulk::compress(&[b'y'; 5000], 3).unwrap();
        let stream = [&small[..], &small, &large, &small, &skippable(b"list"), &small].concat();
        let mut source = &stream[..];
        let mut frames = vec![1];
        let first = batch(&mut source, 5000, 601, &mut frames).unwrap();
        assert!(first.content == 5600 && first.end.is_none());
        assert!(frames == [&small[..], &small, &large].concat());
        let second = batch(&mut source, 5000, 601, &mut frames).unwrap();
        assert!(second.content == 600 && matches!(second.end, Some(End::Stream)));
        assert!(frames == [&small[..], &small].concat());

        let mut source = &stream[..];
        let third = batch(&mut source, 4999, 10_000, &mut frames).unwrap();
        let Some(End::Other(rest)) = third.end else { panic!("{third:?}") };
        assert!(third.content == 600 && frames == small.repeat(2));
        assert!([&rest[..], source].concat() == stream[2 * small.len()..]);
    }

    #[test]
    fn other_frames_are_left_to_the_streaming_decoder() {
        let frame = zstd::bulk::compress(&[b'x'; 5000], 3).unwrap();
        let unsized_frame = zstd::stream::encode_all(&b"abc"[..], 3).unwrap();
        for (name, stream, most) in [
            ("too large", &frame[..], 4999),
            ("unknown size", &unsized_frame, 5000),
            ("cut off", &frame[..frame.len() - 1], 5000),
            ("cut off in the header", &frame[..5], 5000),
            ("no frame", b"abcdefg", 5000),
            ("short", b"abc", 5000),
        ] {
            let mut source = stream;
            let mut read = Vec::new();
            assert_eq!(next(&mut source, most, &mut read).unwrap(), Front::Other, "{name}");
            assert_eq!([&read[..], source].concat(), stream, "{name}");
        }
        let cut = &skippable(b"abc")[..9];
        assert!(next(&mut &cut[..], 10, &mut Vec::new()).is_err());
    }
}
