//! Parts of large files as they travel between controller and hosts: each is one frame of zstd, so that a
//! line carries what the part compresses to.

use imgctl_base::error::{Context as _, Error, Result};

/// Fast: the sender is a control plane that serves meanwhile.
const LEVEL: i32 = 1;

/// Returns a part as a frame.
pub fn compress(part: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(part, LEVEL)
        .map_err(|error| Error::io("cannot compress a part of a file", error))
}

/// Returns the part in a frame, which has at most `longest` bytes.
pub fn decompress(frame: &[u8], longest: u64) -> Result<Vec<u8>> {
    let longest = usize::try_from(longest).unwrap_or(usize::MAX);
    zstd::bulk::decompress(frame, longest)
        .map_err(|error| Error::bad_content(error.to_string()))
        .context(|| "a part of a file arrived damaged".to_owned())
}
