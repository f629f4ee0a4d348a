//! Flags that choose which platforms of images are copied into a registry.

use clap::Args;

use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_transfer::transfer::mirror::everything;
use imgctl_transfer::transfer::plan::{Platforms, Selection};

/// Platforms of multi-platform images.
#[derive(Args, Clone, Debug)]
pub(super) struct SelectionArgs {
    /// Take only these platforms of multi-platform images
    #[arg(long, value_name = "OS/ARCH", value_delimiter = ',', conflicts_with = "all")]
    platform: Vec<String>,

    /// Take only this architecture of multi-platform images
    #[arg(long, visible_alias = "override-arch", value_name = "ARCH", conflicts_with_all = ["all", "platform"])]
    arch: Option<String>,

    /// Operating system with --arch
    #[arg(long, visible_alias = "override-os", value_name = "OS", conflicts_with_all = ["all", "platform"])]
    os: Option<String>,

    /// Variant of the architecture with --arch
    #[arg(long, visible_alias = "override-variant", value_name = "VARIANT", conflicts_with_all = ["all", "platform"])]
    variant: Option<String>,

    /// Take all platforms, with everything else that belongs to the image
    #[arg(short, long)]
    all: bool,
}

impl SelectionArgs {
    /// Returns the selection for verbs that take all platforms by default.
    pub(super) fn of_all(&self) -> Result<Selection> {
        Ok(match self.given()? {
            Some(platforms) => {
                Selection { platforms: Platforms::Only(platforms), keep_index: false }
            }
            None => everything(),
        })
    }

    /// Returns the selection for verbs that take this machine's platform by default.
    pub(super) fn of_host(&self) -> Result<Platforms> {
        Ok(match self.given()? {
            Some(platforms) => Platforms::Only(platforms),
            None if self.all => Platforms::All,
            None => Platforms::Host,
        })
    }

    fn given(&self) -> Result<Option<Vec<Platform>>> {
        if !self.platform.is_empty() {
            let parsed = self.platform.iter().map(|text| Platform::parse(text));
            return parsed.collect::<Result<_>>().map(Some);
        }
        if self.arch.is_none() && self.os.is_none() && self.variant.is_none() {
            return Ok(None);
        }
        let host = Platform::host();
        let os = self.os.as_deref().unwrap_or(&host.os);
        let architecture = self.arch.as_deref().unwrap_or(&host.architecture);
        let platform = Platform::new(os, architecture, self.variant.as_deref());
        Ok(Some(vec![platform]))
    }
}
