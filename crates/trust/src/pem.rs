//! PEM (RFC 7468): labelled base64, the file format of keys. Must not depend on the content.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use imgctl_base::error::{Error, Result};

/// Base64 characters per line (RFC 7468, section 2).
const WIDTH: usize = 64;

/// One block.
pub(super) struct Block {
    pub(super) label: String,
    pub(super) content: Vec<u8>,
}

/// Returns all blocks of `text`, in order. Ignores text between blocks; an unterminated block or
/// invalid base64 is an error.
pub(super) fn blocks(text: &[u8]) -> Result<Vec<Block>> {
    let text = std::str::from_utf8(text).map_err(|_| malformed("is not text"))?;
    let mut blocks = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(label) =
            line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"))
        else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut base64 = String::new();
        loop {
            match lines.next() {
                None => return Err(malformed("has a block without an end")),
                Some(line) if line == end => break,
                Some(line) => base64.push_str(line),
            }
        }
        let content =
            STANDARD.decode(&base64).map_err(|_| malformed("has a block that is not base64"))?;
        blocks.push(Block { label: label.to_owned(), content });
    }
    Ok(blocks)
}

/// Encodes one block as text.
pub(super) fn encode(label: &str, content: &[u8]) -> String {
    let base64 = STANDARD.encode(content);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(WIDTH));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn malformed(how: &str) -> Error {
    Error::bad_content(format!("the PEM text {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_with_noise_around() {
        let content: Vec<u8> = (0..=255).collect();
        let text = format!("noise\n{}\ntrailer", encode("X Y", &content));
        let blocks = blocks(text.as_bytes()).unwrap();
        assert_eq!(blocks.len(), 1);
        assert_eq!(blocks[0].label, "X Y");
        assert_eq!(blocks[0].content, content);
        assert!(text.lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn what_is_cut_off_or_no_base64_is_refused() {
        for bad in [
            "-----BEGIN A-----\nAAAA\n",
            "-----BEGIN A-----\nAAAA\n-----END B-----\n",
            "-----BEGIN A-----\n!\n-----END A-----\n",
        ] {
            assert!(blocks(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(blocks(b"nothing").unwrap().is_empty());
    }
}
