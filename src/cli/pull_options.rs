//! Flags of verbs that bring images in: when a registry is asked, and for which platforms.

use clap::{Args, ValueEnum};

use crate::error::Result;
use crate::image::Platform;
use crate::transfer::plan::Platforms;
use crate::transfer::pull::Policy;

/// `--policy` and `--pull`, with buildah's and podman's spellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Ask every time; what has not changed is not downloaded again
    #[value(alias = "true")]
    Always,
    /// Only if the image is not in the store
    #[value(alias = "ifmissing", alias = "false")]
    Missing,
    /// Ask every time, but an image that is in the store does when no registry can be reached
    #[value(alias = "ifnewer")]
    Newer,
    /// Not at all
    Never,
}

impl PolicyArg {
    /// What it means.
    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::Always => Policy::Always,
            Self::Missing => Policy::Missing,
            Self::Newer => Policy::Newer,
            Self::Never => Policy::Never,
        }
    }
}

/// The platforms wanted of an image for several.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PlatformsArg {
    /// Platforms, if the image is for several [default: this machine's]
    #[arg(
        long = "platform",
        value_name = "OS/ARCH",
        value_delimiter = ',',
        conflicts_with = "all_platforms"
    )]
    platforms: Vec<String>,

    /// All platforms, and the index that lists them
    #[arg(long, visible_alias = "all")]
    all_platforms: bool,

    /// Architecture (short for --platform linux/ARCH)
    #[arg(long, conflicts_with_all = ["platforms", "all_platforms"], hide = true)]
    arch: Option<String>,

    /// Operating system
    #[arg(long, conflicts_with_all = ["platforms", "all_platforms"], hide = true)]
    os: Option<String>,

    /// Variant of the architecture
    #[arg(long, requires = "arch", hide = true)]
    variant: Option<String>,
}

impl PlatformsArg {
    /// What they mean.
    pub(crate) fn platforms(&self) -> Result<Platforms> {
        if self.all_platforms {
            return Ok(Platforms::All);
        }
        if self.arch.is_some() || self.os.is_some() {
            let host = Platform::host();
            let os = self.os.as_deref().unwrap_or(&host.os);
            let architecture = self.arch.as_deref().unwrap_or(&host.architecture);
            let platform = Platform::new(os, architecture, self.variant.as_deref());
            return Ok(Platforms::Only(vec![platform]));
        }
        let mut platforms: Vec<Platform> = Vec::new();
        for text in self.platforms.iter().filter(|text| !text.is_empty()) {
            let platform = Platform::parse(text)?;
            if !platforms.contains(&platform) {
                platforms.push(platform);
            }
        }
        Ok(match platforms.is_empty() {
            true => Platforms::Host,
            false => Platforms::Only(platforms),
        })
    }
}
