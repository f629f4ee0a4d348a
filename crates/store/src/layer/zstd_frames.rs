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
    /// A whole frame is in the buffer; the value is the size of its content in bytes.
    Frame(usize),
    /// Neither: the buffer holds the bytes read so far, from which a streaming decoder continues.
    Other,
    /// The stream has ended.
    End,
}

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reads the next frame into `frame` (cleared first) if its content is at most `most` bytes. Skips
/// skippable frames.
pub(super) fn next(
    source: &mut impl BufRead,
    most: usize,
    frame: &mut Vec<u8>,
) -> io::Result<Front> {
    loop {
        frame.clear();
        if source.fill_buf()?.is_empty() {
            return Ok(Front::End);
        }
        if !append(source, 4, frame)? {
            return Ok(Front::Other);
        }
        if let [0x50..=0x5f, 0x2a, 0x4d, 0x18] = frame[..] {
            if !append(source, 4, frame)? {
                return Ok(Front::Other);
            }
            let length = little_endian(&frame[4..]);
            if io::copy(&mut source.take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        }
        if frame[..] != MAGIC {
            return Ok(Front::Other);
        }
        return Ok(match rest(source, most, frame)? {
            Some(content) => Front::Frame(content),
            None => Front::Other,
        });
    }
}

/// Reads the rest of a frame after the magic number; `None` if the frame is unsuitable or
/// truncated.
fn rest(source: &mut impl BufRead, most: usize, frame: &mut Vec<u8>) -> io::Result<Option<usize>> {
    if !append(source, 1, frame)? {
        return Ok(None);
    }
    let descriptor = frame[4];
    let is_single_segment = descriptor & 0x20 != 0;
    let has_checksum = descriptor & 4 != 0;
    let window = usize::from(!is_single_segment);
    let size_length = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        code => 1 << code,
    };
    let has_dictionary = descriptor & 3 != 0;
    if size_length == 0 || has_dictionary || !append(source, window + size_length, frame)? {
        return Ok(None);
    }
    let size = little_endian(&frame[5 + window..]);
    let size = if size_length == 2 { size + 256 } else { size };
    let Some(content) = usize::try_from(size).ok().filter(|size| *size <= most) else {
        return Ok(None);
    };
    // Valid frames are hardly larger than their content; others need not be held in memory.
    let longest = content + content / 8 + (64 << 10);
    loop {
        let start = frame.len();
        if start > longest || !append(source, 3, frame)? {
            return Ok(None);
        }
        let header = little_endian(&frame[start..]);
        let is_last = header & 1 != 0;
        let is_repetition = header >> 1 & 3 == 1;
        let length = if is_repetition { 1 } else { header >> 3 };
        if !append(source, length as usize, frame)? {
            return Ok(None);
        }
        if is_last {
            let checksum = if has_checksum { 4 } else { 0 };
            return Ok(append(source, checksum, frame)?.then_some(content));
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

/// Maximum number of frames in memory; each takes at most 8 MiB, twice its largest content.
const FRAMES: usize = 3;
/// Minimum number of frames for parallel decompression.
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

    /// Returns how many frames may be in memory.
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
            assert_eq!(next(&mut source, 1 << 20, &mut frame).unwrap(), Front::Frame(content));
            assert!(frame == bytes);
        }
        assert_eq!(next(&mut source, 1 << 20, &mut frame).unwrap(), Front::End);
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
