//! `--platform` of verbs that read one image.

use clap::Args;

use crate::cli::context::Context;
use crate::error::Result;
use crate::image::Platform;
use crate::store::Image;

/// The platform wanted of an image for several.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlatformArg {
    /// Platform, if the image is for several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
}

impl PlatformArg {
    /// The platform asked for.
    pub(crate) fn wanted(&self) -> Result<Option<Platform>> {
        self.platform.as_deref().map(Platform::parse).transpose()
    }

    /// Reads `name` from the store for the platform asked for. Without one, an image of a single
    /// platform is taken whatever that is, and of several this machine's.
    pub(crate) fn image(&self, name: &str, context: &Context) -> Result<Image> {
        context.store()?.image(name, self.wanted()?.as_ref())
    }
}
