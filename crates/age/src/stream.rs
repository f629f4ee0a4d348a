//! The content of an age file: chunks of 64 KiB, each sealed with its number and with whether it is
//! the last one, so that nothing can be cut, moved or added.

use std::io::{self, BufRead, Read, Write};

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::keys::{FileKey, random};
use imgctl_base::error::{IoContext as _, Result};

const CHUNK: usize = 64 << 10;
const TAG: usize = 16;
const SALT: usize = 16;

/// Number of a chunk, and whether it is the last.
fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(is_last);
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts what is written to it.
pub struct Encrypting<W> {
    target: W,
    key: LessSafeKey,
    number: u64,
    chunk: Vec<u8>,
}

impl<W: Write> Encrypting<W> {
    pub(super) fn new(mut target: W, key: &FileKey) -> Result<Self> {
        let salt: [u8; SALT] = random()?;
        target.write_all(&salt).doing(|| "cannot write the encrypted file".to_owned())?;
        let chunk = Vec::with_capacity(CHUNK + TAG);
        Ok(Self { target, key: key.content(&salt)?, number: 0, chunk })
    }

    /// Writes the last chunk and returns the target.
    pub fn finish(mut self) -> Result<W> {
        self.seal(true).doing(|| "cannot write the encrypted file".to_owned())?;
        Ok(self.target)
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        self.key
            .seal_in_place_append_tag(nonce(self.number, is_last), Aad::empty(), &mut self.chunk)
            .map_err(|_| io::Error::other("the cryptographic library refuses"))?;
        self.target.write_all(&self.chunk)?;
        self.chunk.clear();
        self.number += 1;
        Ok(())
    }
}

impl<W: Write> Write for Encrypting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is sealed only when more follows: the last one may be full.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.seal(false)?;
        }
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives the content, chunk by chunk, each after its verification.
pub struct Decrypted<R> {
    source: R,
    key: LessSafeKey,
    number: u64,
    chunk: Vec<u8>,
    at: usize,
    is_done: bool,
}

impl<R: BufRead> Decrypted<R> {
    pub(super) fn new(mut source: R, key: &FileKey) -> Result<Self> {
        let mut salt = [0; SALT];
        source.read_exact(&mut salt).doing(|| "the encrypted file is truncated".to_owned())?;
        let key = key.content(&salt)?;
        Ok(Self { source, key, number: 0, chunk: Vec::new(), at: 0, is_done: false })
    }

    fn next(&mut self) -> io::Result<()> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut sealed = Vec::with_capacity(CHUNK + TAG);
        (&mut self.source).take((CHUNK + TAG) as u64).read_to_end(&mut sealed)?;
        let is_last = sealed.len() < CHUNK + TAG || self.source.fill_buf()?.is_empty();
        if sealed.len() < TAG {
            return Err(bad("the encrypted file is truncated"));
        }
        let nonce = nonce(self.number, is_last);
        let length = self
            .key
            .open_in_place(nonce, Aad::empty(), &mut sealed)
            .map_err(|_| bad("the encrypted file is truncated or was changed"))?
            .len();
        // Only the content that is empty as a whole ends with an empty chunk.
        if length == 0 && self.number > 0 {
            return Err(bad("the encrypted file was changed: its last chunk is empty"));
        }
        sealed.truncate(length);
        (self.chunk, self.at, self.is_done) = (sealed, 0, is_last);
        self.number += 1;
        Ok(())
    }
}

impl<R: BufRead> Read for Decrypted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.at == self.chunk.len() {
            if self.is_done {
                return Ok(0);
            }
            self.next()?;
        }
        let taken = into.len().min(self.chunk.len() - self.at);
        into[..taken].copy_from_slice(&self.chunk[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}
