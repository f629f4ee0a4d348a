//! Flags that `push` and `manifest push` share.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::registry_options::RegistryArgs;
use crate::error::{IoContext, Result};
use crate::image::Digest;
use crate::layer::Compression;
use crate::transfer::push::PushOptions;
use crate::transfer::recompress_image::{Change, Format};

/// In which form an image goes.
#[derive(Args, Clone, Debug)]
pub(crate) struct PushFlags {
    /// Compress every layer so: zstd, gzip or none [default: as it is]
    #[arg(
        long,
        visible_alias = "compression-format",
        value_name = "METHOD[:LEVEL]"
    )]
    pub(crate) compression: Option<String>,

    /// Level of --compression
    #[arg(long, value_name = "N", requires = "compression")]
    pub(crate) compression_level: Option<i32>,

    /// Compress also layers again that have that compression already
    #[arg(long, requires = "compression")]
    pub(crate) force_compression: bool,

    /// Family of manifests [default: as it is]
    #[arg(short, long, value_enum, value_name = "oci|v2s2")]
    pub(crate) format: Option<FormatArg>,

    /// Write the digest of what was pushed to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) digestfile: Option<PathBuf>,

    /// Push no signatures (none are ever part of what is pushed: for scripts)
    #[arg(long, hide = true)]
    pub(crate) remove_signatures: bool,

    /// Blobs sent at the same time
    #[arg(long, value_name = "N", default_value_t = crate::transfer::engine::JOBS)]
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
    /// The flags as options; all platforms.
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

/// Writes `--digestfile`: the digest and nothing else, as podman does.
pub(crate) fn write_digest(path: Option<&Path>, digest: &Digest) -> Result<()> {
    match path {
        Some(path) => std::fs::write(path, digest.to_string()).path("write", path),
        None => Ok(()),
    }
}
