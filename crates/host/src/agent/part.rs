//! Compression of large files between controller and hosts: each part of a file is one zstd frame. Must not know
//! files or connections.

use imgctl_base::error::{Context as _, Error, Result};

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
