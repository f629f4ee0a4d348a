//! Content digests: a strict grammar, so that a parsed [`Digest`] is always safe in a path, and the
//! hashers that verify digests.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use crate::error::{Error, Result};

/// The supported digest algorithms, as registered in image-spec, descriptor.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    /// Returns the name before the colon.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_length(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }
}

/// `algorithm:lower-case-hex`, validated.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// Returns the SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Parses `text`; anything other than `alg:hex` of the correct length is an error.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::bad_content(format!("`{}` is not a digest", clip(text)))
                .hint("a digest looks like sha256:<64 lower-case hex digits>")
        };
        let (algorithm, hex) = text.split_once(':').ok_or_else(wrong)?;
        let algorithm = match algorithm {
            "sha256" => Algorithm::Sha256,
            "sha384" => Algorithm::Sha384,
            "sha512" => Algorithm::Sha512,
            _ => return Err(wrong()),
        };
        let is_hex = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if hex.len() != algorithm.hex_length() || !is_hex {
            return Err(wrong());
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }

    /// Returns the algorithm before the colon.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the hex digits after the colon.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Returns the first twelve hex digits, for display in tables.
    pub fn short(&self) -> &str {
        self.hex.get(..12).unwrap_or(&self.hex)
    }

    fn from_bytes(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hex = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                hex.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        Self { algorithm, hex }
    }
}

/// A SHA-256 digest in 32 bytes, for long lists in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sha256Sum([u8; 32]);

impl Sha256Sum {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the digest as text has it.
    pub fn digest(&self) -> Digest {
        Digest::from_bytes(Algorithm::Sha256, &self.0)
    }
}

fn clip(text: &str) -> String {
    text.chars().take(160).collect()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A running hash. The only place that names the hash implementation.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher {
    /// Returns a SHA-256 hasher, which is used for everything that imgctl writes.
    pub fn new() -> Self {
        Self::with(Algorithm::Sha256)
    }

    /// Returns a hasher that can verify a digest of `algorithm`.
    pub fn with(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha384 => State::Sha384(Sha384::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(hash) => hash.update(bytes),
            State::Sha384(hash) => hash.update(bytes),
            State::Sha512(hash) => hash.update(bytes),
        }
    }

    /// Returns the SHA-256 digest of all added bytes; `None` for a hasher of another algorithm.
    pub fn finish_sha256(self) -> Option<Sha256Sum> {
        match self.0 {
            State::Sha256(hash) => Some(Sha256Sum(hash.finalize().into())),
            State::Sha384(_) | State::Sha512(_) => None,
        }
    }

    /// Returns the digest of all added bytes.
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha256(hash) => Digest::from_bytes(Algorithm::Sha256, &hash.finalize()),
            State::Sha384(hash) => Digest::from_bytes(Algorithm::Sha384, &hash.finalize()),
            State::Sha512(hash) => Digest::from_bytes(Algorithm::Sha512, &hash.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_digest_is_the_known_one() {
        assert_eq!(
            Digest::of(b"").to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn only_the_grammar_is_accepted() {
        let good = Digest::of(b"x").to_string();
        assert_eq!(Digest::parse(&good).unwrap().to_string(), good);
        for bad in [
            "",
            "sha256:",
            "sha256:abc",
            "sha256",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            "sha256:../../../../../../etc/passwd",
            &good.to_uppercase(),
            &format!("{good}0"),
            &format!("{good}\n"),
        ] {
            assert!(Digest::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn other_algorithms_verify() {
        let mut hasher = Hasher::with(Algorithm::Sha512);
        hasher.update(b"abc");
        let digest = hasher.finish();
        assert!(digest.to_string().starts_with("sha512:ddaf35a193617aba"));
        assert_eq!(Digest::parse(&digest.to_string()).unwrap(), digest);
    }
}
