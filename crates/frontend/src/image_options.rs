//! Flags of verbs that take images: which platforms of them, when to ask a registry, and in which form
//! to push.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{context::Context, registry_options::RegistryArgs};
use imgctl_base::error::Result;
use imgctl_base::image::{Platform, Verdict};
use imgctl_layer::Compression;
use imgctl_store::store::Image;
use imgctl_transfer::transfer::arbiter::Arbiter;
use imgctl_transfer::transfer::plan::{Platforms, Selection};
use imgctl_transfer::transfer::recompress_image::{Change, Format};
use imgctl_transfer::transfer::{
    engine::JOBS, mirror::everything, pull::Policy, push::PushOptions,
};

/// Platform to take from a multi-platform image.
#[derive(Args, Clone, Debug)]
pub struct PlatformArg {
    /// Platform, if the image has several [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,

    /// Architecture (short for --platform linux/ARCH)
    #[arg(long, conflicts_with = "platform", hide = true)]
    arch: Option<String>,

    /// Operating system
    #[arg(long, conflicts_with = "platform", hide = true)]
    os: Option<String>,

    /// Variant of the architecture
    #[arg(long, requires = "arch", hide = true)]
    variant: Option<String>,
}

impl PlatformArg {
    /// Returns the requested platform.
    pub fn wanted(&self) -> Result<Option<Platform>> {
        if self.arch.is_some() || self.os.is_some() {
            return Ok(Some(platform_of(&self.os, &self.arch, &self.variant)));
        }
        self.platform.as_deref().map(Platform::parse).transpose()
    }

    /// Reads `name` from the store for the requested platform. Without one, takes a single-platform
    /// image whatever its platform, and this machine's platform of a multi-platform image.
    pub fn image(&self, name: &str, context: &Context) -> Result<Image> {
        context.store()?.image(name, self.wanted()?.as_ref())
    }
}

/// Parses platforms; omits empty and repeated ones.
pub fn parsed(texts: &[String]) -> Result<Vec<Platform>> {
    let mut platforms: Vec<Platform> = Vec::new();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        let platform = platform(text.trim())?;
        if !platforms.contains(&platform) {
            platforms.push(platform);
        }
    }
    Ok(platforms)
}

/// Parses a platform; `local` is this machine's, as in buildx and buildah.
pub fn platform(text: &str) -> Result<Platform> {
    if text.eq_ignore_ascii_case("local") { Ok(Platform::host()) } else { Platform::parse(text) }
}

/// Returns the platform of `--os`, `--arch` and `--variant`, with this machine's for what is missing.
pub fn platform_of(
    os: &Option<String>,
    arch: &Option<String>,
    variant: &Option<String>,
) -> Platform {
    let host = Platform::host();
    let os = os.as_deref().unwrap_or(&host.os);
    Platform::new(os, arch.as_deref().unwrap_or(&host.architecture), variant.as_deref())
}

/// Policy that decides about images which are on this machine or come by a file.
#[derive(Args, Clone, Debug)]
pub struct GateArg {
    /// Policy for which images may be used [default: ~/.config/containers/policy.json,
    /// /etc/containers/policy.json]
    #[arg(long, value_name = "FILE")]
    signature_policy: Option<PathBuf>,
}

impl GateArg {
    /// Returns who decides.
    pub fn arbiter(&self, context: &Context) -> Result<Arbiter> {
        let policy = self.signature_policy.clone();
        RegistryArgs { signature_policy: policy, ..RegistryArgs::default() }.arbiter(context)
    }

    /// Fails unless the image of the store called `name` may be used.
    pub fn admit(&self, name: &str, context: &Context) -> Result<Verdict> {
        let store = context.store()?;
        self.arbiter(context)?.admit(store, &store.resolve(name)?)
    }

    /// Fails unless another image may be made of the image of the store called `name`.
    pub fn admit_input(&self, name: &str, context: &Context) -> Result<Verdict> {
        let store = context.store()?;
        self.arbiter(context)?.admit_input(store, &store.resolve(name)?)
    }
}

/// `--policy` and `--pull`, with buildah's and podman's spellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
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
    pub fn policy(self) -> Policy {
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
pub struct PlatformsArg {
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
    pub fn platforms(&self) -> Result<Platforms> {
        if self.all_platforms {
            return Ok(Platforms::All);
        }
        if self.arch.is_some() || self.os.is_some() {
            let platform = platform_of(&self.os, &self.arch, &self.variant);
            return Ok(Platforms::Only(vec![platform]));
        }
        let platforms = parsed(&self.platforms)?;
        Ok(if platforms.is_empty() { Platforms::Host } else { Platforms::Only(platforms) })
    }
}

/// Platforms of multi-platform images.
#[derive(Args, Clone, Debug)]
pub struct SelectionArgs {
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
    pub fn of_all(&self) -> Result<Selection> {
        Ok(match self.given()? {
            Some(platforms) => {
                Selection { platforms: Platforms::Only(platforms), keep_index: false }
            }
            None => everything(),
        })
    }

    /// Returns the selection for verbs that take this machine's platform by default.
    pub fn of_host(&self) -> Result<Platforms> {
        Ok(match self.given()? {
            Some(platforms) => Platforms::Only(platforms),
            None if self.all => Platforms::All,
            None => Platforms::Host,
        })
    }

    fn given(&self) -> Result<Option<Vec<Platform>>> {
        if !self.platform.is_empty() {
            return parsed(&self.platform).map(Some);
        }
        if self.arch.is_none() && self.os.is_none() && self.variant.is_none() {
            return Ok(None);
        }
        Ok(Some(vec![platform_of(&self.os, &self.arch, &self.variant)]))
    }
}

/// Form in which an image is pushed.
#[derive(Args, Clone, Debug)]
pub struct PushFlags {
    /// Compress every layer with zstd, gzip or none [default: unchanged]
    #[arg(long, visible_alias = "compression-format", value_name = "METHOD[:LEVEL]")]
    pub compression: Option<String>,

    /// Compression level for --compression
    #[arg(long, value_name = "N", requires = "compression")]
    pub compression_level: Option<i32>,

    /// Also recompress layers that already have that compression
    #[arg(long, requires = "compression")]
    pub force_compression: bool,

    /// Manifest format [default: unchanged]
    #[arg(short, long, value_enum, value_name = "oci|v2s2")]
    pub format: Option<FormatArg>,

    /// Write the digest of the pushed image to this file
    #[arg(long, value_name = "FILE")]
    pub digestfile: Option<PathBuf>,

    /// Do not push signatures (they are never pushed; for scripts)
    #[arg(long, hide = true)]
    pub remove_signatures: bool,

    /// Number of blobs to send in parallel
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    pub jobs: usize,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// OCI manifests and indexes
    Oci,
    /// Docker schema 2 manifests and lists
    #[value(alias = "docker")]
    V2s2,
}

impl PushFlags {
    /// Returns the flags as options, with all platforms.
    pub fn options(&self) -> Result<PushOptions> {
        let compression = self.compression.as_deref();
        Ok(PushOptions {
            change: Change {
                compression: compression
                    .map(|text| Compression::parse(text, self.compression_level))
                    .transpose()?,
                force: self.force_compression,
                format: self.format.map(|format| match format {
                    FormatArg::Oci => Format::Oci,
                    FormatArg::V2s2 => Format::Docker,
                }),
            },
            jobs: self.jobs.max(1),
            ..PushOptions::default()
        })
    }
}
