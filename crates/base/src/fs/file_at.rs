//! A file that is read at a position of its own: clones of a descriptor share theirs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;

/// Reads a file from a position that no other reader moves.
#[derive(Debug)]
pub struct FileAt {
    file: File,
    position: u64,
}

impl FileAt {
    /// Starts at `position`, in bytes.
    pub fn new(file: File, position: u64) -> Self {
        Self { file, position }
    }

    /// Returns the file.
    pub fn into_file(self) -> File {
        self.file
    }
}

impl Read for FileAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for FileAt {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = match to {
            SeekFrom::Start(position) => position,
            SeekFrom::Current(by) => self.position.saturating_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().saturating_add_signed(by),
        };
        Ok(self.position)
    }
}
