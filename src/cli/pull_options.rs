//! Flags of verbs that pull images: when to ask a registry, and for which platforms.

use clap::{Args, ValueEnum};

use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_transfer::transfer::plan::Platforms;
use imgctl_transfer::transfer::pull::Policy;

/// `--policy` and `--pull`, with buildah's and podman's spellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Ask the registry every time; do not download unchanged content again
    #[value(alias = "true")]
    Always,
    /// Ask the registry only if the image is not in the store
    #[value(alias = "ifmissing", alias = "false")]
    Missing,
    /// Ask the registry every time, but use the image in the store if no registry can be reached
    #[value(alias = "ifnewer")]
    Newer,
    /// Never ask the registry
    Never,
}

impl PolicyArg {
    /// Returns the corresponding policy.
    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::Always => Policy::Always,
            Self::Missing => Policy::Missing,
            Self::Newer => Policy::Newer,
            Self::Never => Policy::Never,
        }
    }
}

/// Platforms to take from a multi-platform image.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PlatformsArg {
    /// Platforms, if the image has several [default: this machine's]
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
    /// Returns the platforms that the flags select.
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
        Ok(if platforms.is_empty() { Platforms::Host } else { Platforms::Only(platforms) })
    }
}
