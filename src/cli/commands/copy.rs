//! `imgctl copy`.

use std::ffi::OsString;

use clap::Args;
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::pull_options::PlatformsArg;
use crate::cli::registry_options::RegistryArgs;
use crate::error::Result;
use crate::transfer::copy::Copier;
use crate::transfer::engine::{CopyOptions, JOBS};
use crate::transfer::location::Location;
use crate::transfer::plan::Selection;

/// Copy an image from one place to another
#[derive(Args, Debug)]
#[command(after_help = "Places:
  docker://NAME                    a registry
  oci:DIR[:NAME]                   an OCI image layout; what is in it stays
  oci-archive:FILE[:NAME]          a tar of one
  docker-archive:FILE[:NAME]       as docker save writes it
  dir:DIR                          as skopeo writes it
  NAME                             the store; to read from, else a registry

From one registry to another nothing is kept on this machine, and within one registry nothing
is sent.

Examples:
  imgctl copy docker://quay.io/coreos/etcd:v3.5.9 docker://registry.example.com/etcd:v3.5.9
  imgctl copy --all-platforms docker://docker.io/library/alpine:3 oci:alpine:3
  imgctl copy etcd:v1 docker-archive:etcd.tar:etcd:v1")]
pub(crate) struct CopyArgs {
    /// Where the image is
    #[arg(value_name = "FROM")]
    from: OsString,

    /// Where it is to go
    #[arg(value_name = "TO")]
    to: OsString,

    #[command(flatten)]
    platforms: PlatformsArg,

    /// Fail rather than change the image's digest
    #[arg(long)]
    preserve_digests: bool,

    /// Blobs copied at the same time
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Copies the image and prints its digest.
pub(crate) fn run(args: &CopyArgs, context: &Context) -> Result<()> {
    let (from, to) = (Location::parse(&args.from)?, Location::parse(&args.to)?);
    let client = args.registry.client(context)?;
    let copier = Copier {
        store: context.store()?,
        client: &client,
        options: CopyOptions {
            selection: Selection {
                platforms: args.platforms.platforms()?,
                keep_index: false,
            },
            jobs: args.jobs,
        },
        preserve_digests: args.preserve_digests,
        reporter: context.ui.reporter(),
    };
    let copied = copier.copy(&from, &to)?;
    if context.ui.is_json() {
        let moved = copied.moved;
        return context.ui.json(&json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "digest": copied.root.digest,
            "mediaType": copied.root.media_type,
            "blobs": { "copied": moved.copied, "mounted": moved.mounted, "existed": moved.existed },
            "bytesCopied": moved.bytes,
            "bytesTotal": moved.total,
        }));
    }
    context.ui.line(&copied.root.digest.to_string())
}
