//! Compression of layers: codec, level and media type of the result.

use imgctl_base::error::{Error, Result};
use imgctl_base::image::media_type;

/// Compression of a layer's tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// A plain tar.
    None,
    /// Levels 1 (fast) to 9 (small).
    Gzip { level: u32 },
    /// Levels 1 (fast) to 22 (small).
    Zstd { level: i32 },
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd { level: 3 }
    }
}

impl Compression {
    /// Parses `zstd`, `gzip` or `none` with an optional level (`zstd:9`), which `level` overrides.
    pub fn parse(text: &str, level: Option<i32>) -> Result<Self> {
        let (name, own_level) = match text.split_once(':') {
            Some((name, digits)) => {
                let level = digits.parse().map_err(|_| {
                    Error::usage(format!("`{digits}` in `{text}` is not a compression level"))
                })?;
                (name, Some(level))
            }
            None => (text, None),
        };
        let level = level.or(own_level);
        let within = |range: std::ops::RangeInclusive<i32>, default: i32| match level {
            None => Ok(default),
            Some(level) if range.contains(&level) => Ok(level),
            Some(level) => Err(Error::usage(format!("{name} has no compression level {level}"))
                .hint(format!(
                    "{name} levels go from {} (fast) to {} (small)",
                    range.start(),
                    range.end()
                ))),
        };
        match name {
            "zstd" => Ok(Self::Zstd { level: within(1..=22, 3)? }),
            "gzip" => Ok(Self::Gzip { level: within(1..=9, 6)?.unsigned_abs() }),
            "none" | "uncompressed" => match own_level {
                None => Ok(Self::None),
                Some(_) => Err(Error::usage("`none` has no compression level")),
            },
            _ => Err(Error::usage(format!("unknown compression `{text}`"))
                .hint("use zstd, gzip or none, optionally with a level: zstd:9")),
        }
    }

    /// Returns the layer's media type. Fails for zstd with Docker's media types, which do not
    /// include it.
    pub fn media_type(self, docker: bool) -> Result<&'static str> {
        let oci = match self {
            Self::None => media_type::OCI_LAYER,
            Self::Gzip { .. } => media_type::OCI_LAYER_GZIP,
            Self::Zstd { .. } => media_type::OCI_LAYER_ZSTD,
        };
        media_type::in_family(oci, docker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_levels() {
        for (text, level, expected) in [
            ("zstd", None, Compression::Zstd { level: 3 }),
            ("zstd:9", None, Compression::Zstd { level: 9 }),
            ("zstd:9", Some(4), Compression::Zstd { level: 4 }),
            ("gzip", None, Compression::Gzip { level: 6 }),
            ("gzip:1", None, Compression::Gzip { level: 1 }),
            ("none", Some(3), Compression::None),
        ] {
            assert_eq!(Compression::parse(text, level).unwrap(), expected, "{text}");
        }
        for bad in
            ["", "xz", "zstd:", "zstd:x", "zstd:0", "zstd:23", "gzip:10", "gzip:-1", "none:1"]
        {
            assert!(Compression::parse(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn docker_has_no_zstd() {
        let zstd = Compression::default();
        assert_eq!(zstd.media_type(false).unwrap(), media_type::OCI_LAYER_ZSTD);
        assert!(zstd.media_type(true).is_err());
    }
}
