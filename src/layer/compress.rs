//! Compression of layers: which codec, and blocks compressed in parallel to bytes that depend on
//! the content alone.

use crate::error::Result;

/// How a layer's tar is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip { level: u32 },
    Zstd { level: i32 },
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd { level: 3 }
    }
}

impl Compression {
    /// Parses `zstd`, `gzip`, `none` with an optional level (`zstd:9`); `level` overrides.
    pub(crate) fn parse(_text: &str, _level: Option<i32>) -> Result<Self> {
        todo!()
    }

    /// The layer's media type; Docker's family has no zstd (an error that says so).
    pub(crate) fn media_type(self, _docker: bool) -> Result<&'static str> {
        todo!()
    }
}
