//! `--platform` of verbs that read one image.

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_base::image::Platform;
use imgctl_store::store::Image;

/// Platform to take from a multi-platform image.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlatformArg {
    /// Platform, if the image has several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
}

impl PlatformArg {
    /// Returns the requested platform.
    pub(crate) fn wanted(&self) -> Result<Option<Platform>> {
        self.platform.as_deref().map(Platform::parse).transpose()
    }

    /// Reads `name` from the store for the requested platform. Without one, takes a single-platform
    /// image whatever its platform, and this machine's platform of a multi-platform image.
    pub(crate) fn image(&self, name: &str, context: &Context) -> Result<Image> {
        context.store()?.image(name, self.wanted()?.as_ref())
    }
}
