//! Platforms: `os/architecture[/variant]`, normalized as in containerd, and matching.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::null::or_default;

/// The platform of an image (image-spec, image-index.md).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    #[serde(
        rename = "os.features",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "or_default"
    )]
    pub os_features: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Returns a normalized platform from its parts.
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        let (architecture, variant) = normalise(architecture, variant.filter(|v| !v.is_empty()));
        Self {
            architecture,
            os: os.to_ascii_lowercase(),
            os_version: None,
            os_features: Vec::new(),
            variant,
        }
    }

    /// Returns the platform that this binary runs on.
    pub fn host() -> Self {
        Self::new("linux", std::env::consts::ARCH, None)
    }

    /// Parses `os/arch[/variant]` or an architecture alone (`arm64`).
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not a platform"))
                .hint("a platform looks like linux/amd64 or linux/arm/v7")
        };
        // `windows(10.0.20348.1006)/amd64`
        if let Some((os, rest)) = text.split_once('(')
            && let Some((version, rest)) = rest.split_once(')')
            && !version.is_empty()
        {
            let plain = Self::parse(&format!("{os}{rest}")).map_err(|_| wrong())?;
            return Ok(Self { os_version: Some(version.to_owned()), ..plain });
        }
        let parts: Vec<&str> = text.split('/').collect();
        let word = |part: &&str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        };
        if !parts.iter().all(word) {
            return Err(wrong());
        }
        // containerd's words: an OS alone means this machine's architecture, and macOS is darwin.
        let parts: Vec<&str> =
            parts.iter().map(|part| if *part == "macos" { "darwin" } else { part }).collect();
        match parts[..] {
            [os @ ("linux" | "windows" | "darwin" | "freebsd")] => {
                Ok(Self::new(os, std::env::consts::ARCH, None))
            }
            [architecture] => Ok(Self::new("linux", architecture, None)),
            [os, architecture] => Ok(Self::new(os, architecture, None)),
            [os, architecture, variant] => Ok(Self::new(os, architecture, Some(variant))),
            _ => Err(wrong()),
        }
    }

    /// Returns whether programs choose `other` in place of `self`, which matches at least as well:
    /// containerd normalizes spellings, and skopeo, podman and buildah take them as they are written.
    pub(crate) fn is_rivalled_by(&self, other: &Platform) -> bool {
        let normal = |it: &Self| Self::new(&it.os, &it.architecture, it.variant.as_deref());
        let spelling = |it: &Self| {
            let variant = it.variant.clone().filter(|variant| !variant.is_empty());
            (it.os.clone(), it.architecture.clone(), variant)
        };
        let is_alias = |it: &Self| {
            let normal = normal(it);
            normal.os != it.os || normal.architecture != it.architecture
        };
        let is_one = spelling(&normal(self)) == spelling(&normal(other));
        (is_one && spelling(self) != spelling(other)) || (is_alias(self) && !is_alias(other))
    }

    /// Returns how well `self` (of an image) matches `wanted`: `None` = not at all, lower is
    /// better.
    pub fn distance_to(&self, wanted: &Platform) -> Option<u32> {
        let ours = Self::new(&self.os, &self.architecture, self.variant.as_deref());
        let wanted = Self::new(&wanted.os, &wanted.architecture, wanted.variant.as_deref());
        if ours.os != wanted.os || ours.architecture != wanted.architecture {
            return None;
        }
        if ours.variant == wanted.variant {
            return Some(0);
        }
        // arm v8 runs v7, v6, v5; amd64 v3 runs v2 and plain; a higher level is closer.
        let level = |variant: &Option<String>| match variant.as_deref() {
            None => Some(if wanted.architecture == "arm" { 7 } else { 1 }),
            Some(variant) => variant.strip_prefix('v').and_then(|n| n.parse::<u32>().ok()),
        };
        let (ours, wanted) = (level(&ours.variant)?, level(&wanted.variant)?);
        wanted.checked_sub(ours)
    }
}

/// Normalizes architecture and variant as containerd does.
fn normalise(architecture: &str, variant: Option<&str>) -> (String, Option<String>) {
    let architecture = architecture.to_ascii_lowercase();
    let variant = variant.map(str::to_ascii_lowercase);
    let (architecture, variant) = match architecture.as_str() {
        "x86_64" | "x86-64" | "amd64" => ("amd64", variant.filter(|v| v != "v1")),
        "aarch64" | "arm64" => ("arm64", variant.filter(|v| v != "8" && v != "v8")),
        "armhf" => ("arm", Some("v7".to_owned())),
        "armel" => ("arm", Some("v6".to_owned())),
        "arm" => (
            "arm",
            Some(match variant.as_deref() {
                None | Some("" | "7") => "v7".to_owned(),
                Some(n @ ("5" | "6" | "8")) => format!("v{n}"),
                Some(other) => other.to_owned(),
            }),
        ),
        "i386" | "i686" | "x86" | "386" => ("386", variant),
        other => return (other.to_owned(), variant),
    };
    (architecture.to_owned(), variant)
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_one_platform() {
        for (text, printed) in [
            ("linux/x86_64", "linux/amd64"),
            ("amd64", "linux/amd64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/amd64/v3", "linux/amd64/v3"),
        ] {
            assert_eq!(Platform::parse(text).unwrap().to_string(), printed, "{text}");
        }
        for bad in ["", "linux/", "a/b/c/d", "windows(/amd64", "windows()/amd64", "linux/a b"] {
            assert!(Platform::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lower_variants_serve_higher_ones() {
        let p = |text| Platform::parse(text).unwrap();
        assert_eq!(p("linux/arm/v7").distance_to(&p("linux/arm/v7")), Some(0));
        assert_eq!(p("linux/arm/v6").distance_to(&p("linux/arm/v7")), Some(1));
        assert_eq!(p("linux/arm/v7").distance_to(&p("linux/arm/v6")), None);
        assert_eq!(p("linux/amd64").distance_to(&p("linux/amd64/v3")), Some(2));
        assert_eq!(p("linux/arm64").distance_to(&p("linux/amd64")), None);
    }
}
