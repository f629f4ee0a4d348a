//! Compression of large files between controller and hosts: each part of a file is one zstd frame. Must not know
//! files or connections.

use std::io::{self, BufRead as _, BufReader, Cursor, Read};

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use zstd::stream::Decoder;
use zstd::zstd_safe;

/// Fast, because the sender may be a control plane that serves requests at the same time.
const LEVEL: i32 = 1;

/// Compresses a part into a frame.
pub fn compress(part: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(part, LEVEL)
        .map_err(|error| Error::io("cannot compress a part of a file", error))
}

/// Returns the part in a frame. Fails if it has more than `longest` bytes.
pub fn decompress(frame: &[u8], longest: u64) -> Result<Vec<u8>> {
    let longest = usize::try_from(longest).unwrap_or(usize::MAX);
    zstd::bulk::decompress(frame, longest)
        .map_err(|error| Error::bad_content(error.to_string()))
        .context(|| "a part of a file arrived damaged".to_owned())
}

/// Number of bytes that are read at once.
const PIECE: u64 = 256 << 10;

/// Number of bytes of content, and their frame.
pub type Part = (u64, Vec<u8>);

/// Splits a stream of zstd frames into parts. Frames that fit are returned unchanged. From the first frame that holds
/// too much content, or does not say how much, everything is compressed anew.
pub struct Parts<R: Read> {
    input: Input<R>,
    /// Maximum number of bytes of content in a part.
    longest: u64,
}

/// The content of the bytes that were read ahead and of the rest of the stream.
type Decompressed<R> = BufReader<Decoder<'static, BufReader<io::Chain<Cursor<Vec<u8>>, R>>>>;

enum Input<R: Read> {
    /// The bytes that were read ahead, and the rest of the stream.
    Frames(Vec<u8>, R),
    Content(Decompressed<R>),
    Failed,
}

/// What the bytes that were read begin with.
enum Next {
    /// A frame that is a part: its size and that of its content, in bytes.
    Frame(usize, u64),
    /// A frame that cannot be a part.
    Other,
    End,
}

impl<R: Read> Parts<R> {
    pub fn new(frames: R, longest: u64) -> Self {
        Self { input: Input::Frames(Vec::new(), frames), longest }
    }

    fn next_part(&mut self) -> Result<Option<Part>> {
        let Input::Frames(read, rest) = &mut self.input else {
            return self.next_content();
        };
        match next_frame(read, rest, self.longest)? {
            Next::End => Ok(None),
            Next::Frame(length, content) => {
                let behind = read.split_off(length);
                Ok(Some((content, std::mem::replace(read, behind))))
            }
            Next::Other => {
                let Input::Frames(read, rest) = std::mem::replace(&mut self.input, Input::Failed)
                else {
                    return Ok(None);
                };
                let decoder = Decoder::new(Cursor::new(read).chain(rest)).doing(cannot_read)?;
                self.input = Input::Content(BufReader::new(decoder));
                self.next_content()
            }
        }
    }

    fn next_content(&mut self) -> Result<Option<Part>> {
        let Input::Content(content) = &mut self.input else {
            return Ok(None);
        };
        if content.fill_buf().doing(cannot_read)?.is_empty() {
            return Ok(None);
        }
        let mut part = Vec::new();
        content.take(self.longest).read_to_end(&mut part).doing(cannot_read)?;
        Ok(Some((part.len() as u64, compress(&part)?)))
    }
}

impl<R: Read> Iterator for Parts<R> {
    type Item = Result<Part>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.next_part();
        if part.is_err() {
            self.input = Input::Failed;
        }
        part.transpose()
    }
}

fn cannot_read() -> String {
    "cannot read compressed content".to_owned()
}

/// Reads until `read` holds the next frame.
fn next_frame(read: &mut Vec<u8>, rest: &mut impl Read, longest: u64) -> Result<Next> {
    let longest_frame =
        zstd_safe::compress_bound(usize::try_from(longest).unwrap_or(usize::MAX / 2));
    loop {
        if let Ok(length) = zstd_safe::find_frame_compressed_size(read) {
            return Ok(match zstd_safe::get_frame_content_size(read) {
                Ok(Some(content)) if content <= longest => Next::Frame(length, content),
                _ => Next::Other,
            });
        }
        if read.len() > longest_frame {
            return Ok(Next::Other);
        }
        if rest.take(PIECE).read_to_end(read).doing(cannot_read)? == 0 {
            return if read.is_empty() {
                Ok(Next::End)
            } else {
                Err(Error::bad_content("compressed content is truncated or damaged"))
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u64 = 1000;

    fn bytes(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * at / 7 % 251) as u8).collect()
    }

    /// Returns the content of all parts, and their number.
    fn parts(stream: &[u8]) -> Result<(Vec<u8>, usize)> {
        let (mut content, mut count) = (Vec::new(), 0);
        for part in Parts::new(stream, LONGEST) {
            let (length, frame) = part?;
            let part = decompress(&frame, LONGEST).unwrap();
            assert_eq!(part.len() as u64, length);
            content.extend(part);
            count += 1;
        }
        Ok((content, count))
    }

    fn frames(content: &[u8], size: usize) -> Vec<Vec<u8>> {
        content.chunks(size).map(|part| compress(part).unwrap()).collect()
    }

    #[test]
    fn frames_are_parts_as_they_are() {
        for size in [1, 999, 1000, 1001, 12_345] {
            let content = bytes(size);
            let made = frames(&content, 1000);
            let stream = made.concat();
            let read: Vec<Vec<u8>> =
                Parts::new(&stream[..], LONGEST).map(|part| part.unwrap().1).collect();
            assert!(read == made, "{size}");
        }
        assert_eq!(parts(&[]).unwrap(), (Vec::new(), 0));
        let empty = compress(&[]).unwrap();
        assert_eq!(parts(&empty).unwrap(), (Vec::new(), 1));
    }

    #[test]
    fn other_frames_become_parts() {
        let content = bytes(12_345);
        // Without the size of its content.
        let streamed = zstd::stream::encode_all(&content[..], 1).unwrap();
        assert_eq!(parts(&streamed).unwrap(), (content.clone(), 13));
        assert_eq!(parts(&frames(&content, 1001).concat()).unwrap(), (content.clone(), 13));
        // One that is too large behind one that is not, and more content than is read at once.
        let large = bytes(1 << 20);
        let stream = [compress(&content[..10]).unwrap(), compress(&large).unwrap()].concat();
        let (read, count) = parts(&stream).unwrap();
        assert!(read == [&content[..10], &large].concat() && count == 1 + 1049, "{count}");
    }

    #[test]
    fn what_is_cut_or_damaged_is_an_error() {
        let stream = frames(&bytes(3500), 1000).concat();
        assert!(parts(&stream[..stream.len() - 1]).is_err());
        assert!(parts(b"no zstd at all").is_err());
        let streamed = zstd::stream::encode_all(&bytes(3500)[..], 1).unwrap();
        assert!(parts(&streamed[..streamed.len() - 1]).is_err());
        // After an error, there is nothing.
        let mut parts = Parts::new(&b"no zstd at all"[..], LONGEST);
        assert!(parts.next().unwrap().is_err() && parts.next().is_none());
    }
}
