//! One stanza of a header: the file's key, wrapped for one recipient. Must not know how.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use imgctl_base::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stanza {
    pub(super) kind: String,
    pub(super) arguments: Vec<String>,
    pub(super) body: Vec<u8>,
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>> {
    STANDARD_NO_PAD.decode(text).map_err(|_| malformed())
}

pub(super) fn malformed() -> Error {
    Error::bad_content("the header of the encrypted file is malformed")
}
