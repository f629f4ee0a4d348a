//! Flags that `push` and `manifest push` share.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::image::Digest;
use imgctl_store::layer::Compression;
use imgctl_transfer::transfer::push::PushOptions;
use imgctl_transfer::transfer::recompress_image::{Change, Format};

/// Form in which an image is pushed.
#[derive(Args, Clone, Debug)]
pub(crate) struct PushFlags {
    /// Compress every layer with zstd, gzip or none [default: unchanged]
    #[arg(long, visible_alias = "compression-format", value_name = "METHOD[:LEVEL]")]
    pub(crate) compression: Option<String>,

    /// Compression level for --compression
    #[arg(long, value_name = "N", requires = "compression")]
    pub(crate) compression_level: Option<i32>,

    /// Also recompress layers that already have that compression
    #[arg(long, requires = "compression")]
    pub(crate) force_compression: bool,

    /// Manifest format [default: unchanged]
    #[arg(short, long, value_enum, value_name = "oci|v2s2")]
    pub(crate) format: Option<FormatArg>,

    /// Write the digest of the pushed image to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) digestfile: Option<PathBuf>,

    /// Do not push signatures (they are never pushed; for scripts)
    #[arg(long, hide = true)]
    pub(crate) remove_signatures: bool,

    /// Number of blobs to send in parallel
    #[arg(long, value_name = "N", default_value_t = imgctl_transfer::transfer::engine::JOBS)]
    pub(crate) jobs: usize,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// OCI manifests and indexes
    Oci,
    /// Docker schema 2 manifests and lists
    #[value(alias = "docker")]
    V2s2,
}

impl PushFlags {
    /// Returns the flags as options, with all platforms.
    pub(crate) fn options(&self) -> Result<PushOptions> {
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

/// Writes `--digestfile`: only the digest, as podman does.
pub(crate) fn write_digest(path: Option<&Path>, digest: &Digest) -> Result<()> {
    match path {
        Some(path) => std::fs::write(path, digest.to_string()).path("write", path),
        None => Ok(()),
    }
}
