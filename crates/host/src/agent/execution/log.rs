//! The log of one command: `HH:MM:SS.mmm o text` for each line of stdout, `e` for stderr.
//!
//! The log stays small, however much a command writes. Its beginning is in `log`; the rest is split
//! into pieces `log.N`, where N is the offset at which a piece begins, and only the last few pieces
//! are kept. A reader's position counts all bytes ever written, so it can read while the log grows.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::agent::execution::place::Place;
use crate::agent::protocol::OutputLine;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::secret::Redactor;

/// Size of `log` and of each piece, in bytes, and the number of pieces to keep.
const HEAD: u64 = 1 << 20;
const PIECE: u64 = 5 << 20;
const PIECES: usize = 3;
/// Maximum length of a line, in bytes; longer lines are cut.
pub(super) const LONGEST_LINE: usize = 64 << 10;
/// A log of up to this size is replayed in full; of a longer one, only the end.
const REPLAYED: u64 = 2 << 20;
/// Bytes to read at a time.
const CHUNK: u64 = 256 << 10;
/// Length of `HH:MM:SS.mmm o `.
const PREFIX: usize = 15;

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
    /// Not written by the command: a remark for people who read the file.
    Remark,
}

impl Stream {
    fn letter(self) -> char {
        match self {
            Self::Out => 'o',
            Self::Err => 'e',
            Self::Remark => '#',
        }
    }
}

pub(super) struct Writer {
    place: Place,
    file: BufWriter<File>,
    /// Bytes in the current file, and in total.
    here: u64,
    total: u64,
    /// Offsets at which the pieces begin.
    pieces: Vec<u64>,
    hidden: Redactor,
}

impl Writer {
    /// Creates a new log, replacing an old one.
    pub(super) fn create(place: &Place) -> Result<Self> {
        Ok(Self {
            file: create(&place.log())?,
            place: place.clone(),
            here: 0,
            total: 0,
            pieces: Vec::new(),
            hidden: Redactor::default(),
        })
    }

    /// Redacts `secrets` from the log.
    pub(super) fn hiding(mut self, secrets: Redactor) -> Self {
        self.hidden = secrets;
        self
    }

    /// Adds a line; bytes that are not UTF-8 are replaced.
    pub(super) fn line(&mut self, stream: Stream, text: &[u8]) -> Result<()> {
        let limit = if self.pieces.is_empty() { HEAD } else { PIECE };
        if self.here > 0 && self.here + (PREFIX + text.len() + 1) as u64 > limit {
            self.next_piece()?;
        }
        let text = String::from_utf8_lossy(text);
        let text = self.hidden.redact(&text).into_owned();
        self.put(stream, &text)
    }

    fn put(&mut self, stream: Stream, text: &str) -> Result<()> {
        let line = format!("{} {} {text}\n", clock(), stream.letter());
        self.file.write_all(line.as_bytes()).path("write", self.place.log())?;
        self.here += line.len() as u64;
        self.total += line.len() as u64;
        Ok(())
    }

    fn next_piece(&mut self) -> Result<()> {
        if self.pieces.is_empty() {
            self.put(
                Stream::Remark,
                "the output continues in the files log.N next to this one; only the last of them \
                 are kept",
            )?;
        }
        self.flush()?;
        self.pieces.push(self.total);
        self.file = create(&self.place.log_piece(self.total))?;
        self.here = 0;
        if self.pieces.len() > PIECES {
            let path = self.place.log_piece(self.pieces.remove(0));
            std::fs::remove_file(&path).path("remove", &path)?;
        }
        Ok(())
    }

    /// Makes the written lines visible to readers.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.file.flush().path("write", self.place.log())
    }

    /// Makes the log durable.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        let file = self.file.get_ref();
        file.sync_data().path("sync", self.place.log())
    }
}

fn create(path: &std::path::Path) -> Result<BufWriter<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .path("create", path)?;
    Ok(BufWriter::with_capacity(64 << 10, file))
}

/// Returns the time of day in UTC.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let seconds = now.as_secs();
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
        now.subsec_millis()
    )
}

/// Reads a log, even while it is being written.
pub(super) struct Reader {
    place: Place,
    position: u64,
    /// Bytes that have been read but do not form a complete line yet.
    rest: Vec<u8>,
    /// The first bytes are part of a line that began earlier.
    in_line: bool,
}

impl Reader {
    /// Reads from the beginning.
    pub(super) fn new(place: &Place) -> Self {
        Self { place: place.clone(), position: 0, rest: Vec::new(), in_line: false }
    }

    /// Reads the end of a log, or all of it if it is short.
    pub(super) fn tail(place: &Place) -> Result<Self> {
        let length = |path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let end = match place.log_pieces()?.last() {
            Some(base) => base + length(place.log_piece(*base)),
            None => length(place.log()),
        };
        let mut reader = Self::new(place);
        if end > REPLAYED {
            reader.position = end - REPLAYED / 2;
            reader.in_line = true;
        }
        Ok(reader)
    }

    /// Passes on a batch of the lines available now; returns `false` if there were none.
    pub(super) fn read(&mut self, output: &mut dyn FnMut(OutputLine)) -> Result<bool> {
        let Some(chunk) = self.chunk(output)? else {
            return Ok(false);
        };
        self.position += chunk.len() as u64;
        self.rest.extend_from_slice(&chunk);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(true);
        };
        let rest = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|byte| *byte == b'\n') {
            if std::mem::take(&mut self.in_line) {
                continue;
            }
            let stream = line.get(PREFIX - 2);
            if let (Some(b'o' | b'e'), Some(text)) = (stream, line.get(PREFIX..)) {
                output(OutputLine {
                    text: String::from_utf8_lossy(text).into_owned(),
                    error_stream: stream == Some(&b'e'),
                });
            }
        }
        Ok(true)
    }

    /// Reads the log at the current position; returns `None` if there is nothing yet.
    fn chunk(&mut self, output: &mut dyn FnMut(OutputLine)) -> Result<Option<Vec<u8>>> {
        loop {
            let pieces = self.place.log_pieces()?;
            let base = pieces.iter().rev().find(|base| **base <= self.position);
            let (path, base) = match base {
                Some(base) => (self.place.log_piece(*base), *base),
                None => (self.place.log(), 0),
            };
            let mut chunk = Vec::new();
            let read = File::open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(self.position - base))?;
                file.take(CHUNK).read_to_end(&mut chunk)
            });
            match read {
                // Removed in the meantime: the writer is far ahead of the reader.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && base > 0 => continue,
                // The file does not exist yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                read => read.path("read", &path)?,
            };
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
            // A piece may have been started since the first check.
            let pieces = self.place.log_pieces()?;
            let Some(next) = pieces.into_iter().find(|next| *next >= self.position) else {
                return Ok(None);
            };
            if next == self.position && base == next {
                return Ok(None);
            }
            if next > self.position {
                self.rest.clear();
                output(OutputLine {
                    text: format!(
                        "… {} bytes of output were skipped: the command wrote faster than its \
                         output could be kept",
                        next - self.position
                    ),
                    error_stream: true,
                });
                self.position = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Place) {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("runs"), "k").unwrap();
        place.create().unwrap();
        (directory, place)
    }

    fn all(reader: &mut Reader) -> Vec<OutputLine> {
        let mut lines = Vec::new();
        while reader.read(&mut |line| lines.push(line)).unwrap() {}
        lines
    }

    #[test]
    fn lines_come_back_as_they_were_and_while_they_are_written() {
        let (_directory, place) = place();
        let mut reader = Reader::new(&place);
        assert!(all(&mut reader).is_empty());
        let mut writer = Writer::create(&place).unwrap();
        writer.line(Stream::Out, b"one").unwrap();
        writer.line(Stream::Remark, b"not the command's").unwrap();
        writer.line(Stream::Err, b"two \xff").unwrap();
        writer.flush().unwrap();
        let lines = all(&mut reader);
        assert_eq!(lines.len(), 2);
        assert_eq!((&*lines[0].text, lines[0].error_stream), ("one", false));
        assert_eq!((&*lines[1].text, lines[1].error_stream), ("two \u{fffd}", true));
        writer.line(Stream::Out, b"").unwrap();
        writer.finish().unwrap();
        assert_eq!(all(&mut reader)[0].text, "");
        assert_eq!(all(&mut Reader::tail(&place).unwrap()).len(), 3);
    }

    #[test]
    fn a_long_log_keeps_its_beginning_and_its_end() {
        let (_directory, place) = place();
        let mut writer = Writer::create(&place).unwrap();
        let mut follower = Reader::new(&place);
        let mut followed = Vec::new();
        let count = 60_000_usize;
        for number in 0..count {
            let text = format!("{number:08} {}", "x".repeat(900));
            writer.line(Stream::Out, text.as_bytes()).unwrap();
            if number % 500 == 0 {
                writer.flush().unwrap();
                followed.extend(all(&mut follower));
            }
        }
        writer.finish().unwrap();
        followed.extend(all(&mut follower));
        // A reader that keeps up misses nothing.
        assert_eq!(followed.len(), count);
        let size: u64 = std::fs::read_dir(place.directory())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size < HEAD + PIECES as u64 * PIECE + 10_000, "{size}");
        let late = all(&mut Reader::new(&place));
        assert!(late[0].text.starts_with("00000000 "));
        assert!(late.last().unwrap().text.starts_with(&format!("{:08} ", count - 1)));
        let gaps = late.iter().filter(|line| line.text.contains("were skipped"));
        assert_eq!(gaps.count(), 1);
        let numbers: Vec<&str> =
            late.iter().filter(|line| !line.error_stream).map(|line| &line.text[..8]).collect();
        assert!(numbers.is_sorted() && numbers.len() > 11_000);
        let tail = all(&mut Reader::tail(&place).unwrap());
        assert!(tail.len() > 500 && tail.len() < 3000);
        assert!(tail.iter().all(|line| line.text.len() == 909));
    }
}
