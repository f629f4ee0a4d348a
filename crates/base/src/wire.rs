//! Messages between processes of this program: JSON behind its length in four bytes, and errors in
//! transferable form. Must not know what the messages mean or what carries them.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, FULL, IoContext, Kind, Result};

/// Maximum size of a message, in bytes: whole files are messages, images are not.
pub const LONGEST: usize = 64 << 20;
/// Size of the length before a message, in bytes (little endian).
const HEADER: usize = 4;

/// An [`Error`] in transferable form.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    kind: Kind,
    chain: Vec<String>,
    hints: Vec<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            chain: error.chain(),
            hints: error.hints().into_iter().map(str::to_owned).collect(),
        }
    }
}

impl Failure {
    /// Returns the error of another machine: hints about this machine's store do not apply there.
    pub fn of_another_machine(mut self) -> Error {
        if let Some(hint) = self.hints.iter_mut().find(|hint| *hint == FULL) {
            "free space on that file system of the host".clone_into(hint);
        }
        self.into()
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let mut messages = failure.chain.into_iter().rev();
        let innermost = Self::new(failure.kind, messages.next().unwrap_or_default());
        let error = failure.hints.into_iter().fold(innermost, Self::hint);
        messages.fold(error, Self::context)
    }
}

/// Encodes one message.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, message)
        .map_err(|error| Error::failed("cannot encode a message").caused_by(error))?;
    let length = bytes.len() - HEADER;
    let header = u32::try_from(length).ok().filter(|_| length <= LONGEST).ok_or_else(|| {
        Error::failed(format!(
            "a message between processes has {length} bytes; at most {LONGEST} are allowed"
        ))
    })?;
    bytes[..HEADER].copy_from_slice(&header.to_le_bytes());
    Ok(bytes)
}

/// Reads one message; returns `None` if the other end is gone.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>> {
    let doing = || "cannot read a message".to_owned();
    let mut header = [0; HEADER];
    match from.read_exact(&mut header) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(None);
        }
        other => other.doing(doing)?,
    }
    let length = length(header, LONGEST)?;
    // Grows as bytes arrive, so that a false length wastes no memory.
    let mut json = Vec::new();
    from.take(length as u64).read_to_end(&mut json).doing(doing)?;
    if json.len() == length { decode(&json).map(Some) } else { Ok(None) }
}

/// Splits a stream that arrives in pieces into messages.
pub struct Decoder {
    bytes: Vec<u8>,
    /// Number of leading bytes that have been returned.
    used: usize,
    /// Maximum size of a message, in bytes.
    longest: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(LONGEST)
    }
}

impl Decoder {
    /// Creates a decoder that refuses messages of more than `longest` bytes.
    pub fn new(longest: usize) -> Self {
        Self { bytes: Vec::new(), used: 0, longest: longest.min(LONGEST) }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.used));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message that has arrived as a whole. The caller takes all messages before
    /// it adds bytes, so at most one incomplete message is in memory.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let rest = self.bytes.get(self.used..).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = length(*header, self.longest)?;
        let Some(json) = rest.get(..length) else { return Ok(None) };
        let message = decode(json)?;
        self.used += HEADER + length;
        Ok(Some(message))
    }

    /// Returns what has arrived behind the messages that were returned.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.split_off(self.used)
    }
}

fn length(header: [u8; HEADER], longest: usize) -> Result<usize> {
    let length = u32::from_le_bytes(header) as usize;
    if length <= longest {
        return Ok(length);
    }
    Err(Error::bad_content(format!(
        "a message claims to be {length} bytes long, of at most {longest}"
    )))
}

fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|error| Error::bad_content("cannot decode a message").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_and_a_cut_one_is_the_end() {
        let bytes = encode(&("x", 9)).unwrap();
        let whole = receive::<(String, u8)>(&mut bytes.as_slice()).unwrap();
        assert_eq!(whole, Some(("x".to_owned(), 9)));
        for cut in 0..bytes.len() {
            assert!(receive::<(String, u8)>(&mut &bytes[..cut]).unwrap().is_none());
        }
    }

    #[test]
    fn messages_are_told_apart_however_the_stream_is_cut() {
        let sent: Vec<String> = (0..50).map(|n| "ab".repeat(n)).collect();
        let stream: Vec<u8> = sent.iter().flat_map(|text| encode(text).unwrap()).collect();
        for piece in [1, 2, 3, 7, 64, stream.len()] {
            let (mut decoder, mut came) = (Decoder::default(), Vec::new());
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                while let Some(text) = decoder.message::<String>().unwrap() {
                    came.push(text);
                }
            }
            assert_eq!(came, sent, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn a_monstrous_length_and_nonsense_are_refused() {
        let monstrous = u32::MAX.to_le_bytes();
        assert!(receive::<u8>(&mut monstrous.as_slice()).is_err());
        for bytes in [&monstrous[..], b"\x02\0\0\0{]"] {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert_eq!(decoder.message::<u8>().unwrap_err().kind(), Kind::BadContent);
        }
        // Not a byte of it is waited for.
        for (longest, refused) in [(LONGEST, LONGEST + 1), (LONGEST + 9, LONGEST + 1), (5, 6)] {
            let mut decoder = Decoder::new(longest);
            decoder.push(&u32::try_from(refused).unwrap().to_le_bytes());
            assert_eq!(decoder.message::<u8>().unwrap_err().kind(), Kind::BadContent);
        }
    }

    #[test]
    fn an_error_arrives_as_it_was_sent_with_every_kind() {
        for (kind, name) in Kind::NAMES {
            let sent = Error::new(kind, "it is full").hint("make room").context("cannot write /x");
            let json = serde_json::to_string(&Failure::from(&sent)).unwrap();
            assert!(json.contains(&format!("\"{name}\"")), "{json}");
            let came = Error::from(serde_json::from_str::<Failure>(&json).unwrap());
            assert_eq!(came.kind(), kind);
            assert_eq!(came.chain(), ["cannot write /x", "it is full"]);
            assert_eq!(came.hints(), ["make room"]);
        }
    }

    #[test]
    fn a_full_disk_of_another_machine_has_nothing_to_do_with_the_store_here() {
        let full = io::Error::from_raw_os_error(28);
        let sent = Error::io("cannot write /x", full).hint("or wait").context("on h1");
        assert!(sent.hints()[0].contains("--root"));
        let came = Failure::from(&sent).of_another_machine();
        assert_eq!(came.hints(), ["free space on that file system of the host", "or wait"]);
        assert_eq!((came.kind(), came.chain()), (Kind::NoSpace, sent.chain()));
    }
}
