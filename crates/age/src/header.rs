//! The header of an age file: stanzas, each with the file's key wrapped for one recipient, and an
//! authentication of all of them by that key.

use std::io::{BufRead, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::keys::FileKey;
use crate::stanza::{Stanza, decode, malformed};
use imgctl_base::error::{Error, IoContext as _, Result};

pub(super) const VERSION: &str = "age-encryption.org/v1";
/// Maximum size of a header, in bytes: a stanza of X25519 has about 100.
const LONGEST: u64 = 256 << 10;
/// Columns of a stanza's body.
const COLUMNS: usize = 64;

/// A header that was read; nothing in it is trusted before [`Header::verify`].
pub(super) struct Header {
    pub(super) stanzas: Vec<Stanza>,
    /// What the authentication covers.
    covered: String,
    mac: Vec<u8>,
}

impl Header {
    /// Fails if the header is not the one that was written with `key`.
    pub(super) fn verify(&self, key: &FileKey) -> Result<()> {
        if key.authenticates(self.covered.as_bytes(), &self.mac)? {
            return Ok(());
        }
        Err(Error::bad_content("the header of the encrypted file was changed"))
    }
}

/// Returns the text of a header.
pub(super) fn write(stanzas: &[Stanza], key: &FileKey) -> Result<String> {
    let mut text = format!("{VERSION}\n");
    for stanza in stanzas {
        text.push_str("-> ");
        text.push_str(&stanza.kind);
        for argument in &stanza.arguments {
            text.push(' ');
            text.push_str(argument);
        }
        text.push('\n');
        let body = STANDARD_NO_PAD.encode(&stanza.body);
        // The last line is shorter than the others, if need be empty.
        let mut rest = body.as_str();
        while rest.len() >= COLUMNS {
            let (line, behind) = rest.split_at(COLUMNS);
            text.push_str(line);
            text.push('\n');
            rest = behind;
        }
        text.push_str(rest);
        text.push('\n');
    }
    text.push_str("---");
    let mac = STANDARD_NO_PAD.encode(key.authenticate(text.as_bytes())?);
    text.push(' ');
    text.push_str(&mac);
    text.push('\n');
    Ok(text)
}

/// Reads a header and nothing behind it.
pub(super) fn read(source: &mut impl BufRead) -> Result<Header> {
    let mut lines = Lines { source: source.take(LONGEST), covered: String::new() };
    if lines.next()? != VERSION {
        return Err(Error::bad_content("it is not encrypted with age, version 1"));
    }
    let mut stanzas = Vec::new();
    loop {
        let before = lines.covered.len();
        let line = lines.next()?;
        if let Some(mac) = line.strip_prefix("--- ") {
            let mac = decode(mac)?;
            let mut covered = lines.covered;
            covered.truncate(before + "---".len());
            return Ok(Header { stanzas, covered, mac });
        }
        let words = line.strip_prefix("-> ").ok_or_else(malformed)?;
        let mut words = words.split(' ').map(str::to_owned);
        let kind = words.next().filter(|kind| !kind.is_empty()).ok_or_else(malformed)?;
        let arguments = words.collect();
        let mut body = String::new();
        loop {
            let line = lines.next()?;
            body.push_str(&line);
            match line.len() {
                0..COLUMNS => break,
                COLUMNS => {}
                _ => return Err(malformed()),
            }
        }
        stanzas.push(Stanza { kind, arguments, body: decode(&body)? });
    }
}

/// Lines of bounded total length; all that was read.
struct Lines<R> {
    source: std::io::Take<R>,
    covered: String,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        let read = self.source.read_until(b'\n', &mut bytes);
        read.doing(|| "cannot read the header of the encrypted file".to_owned())?;
        if bytes.pop() != Some(b'\n') {
            return Err(Error::bad_content("the encrypted file is truncated, or is not of age"));
        }
        let line = String::from_utf8(bytes).map_err(|_| malformed())?;
        if line.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(malformed());
        }
        self.covered.push_str(&line);
        self.covered.push('\n');
        Ok(line)
    }
}
