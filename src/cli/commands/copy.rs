//! `imgctl copy`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::registry_options::{Concealed, RegistryArgs};
use crate::cli::{context::Context, image_options::PlatformsArg};
use imgctl_base::error::Result;
use imgctl_transfer::transfer::engine::{CopyOptions, JOBS};
use imgctl_transfer::transfer::{copy::Copier, location::Location, plan::Selection};

/// Copy an image from one location to another
#[derive(Args, Debug)]
#[command(after_help = "Places:
  docker://NAME                    a registry
  oci:DIR[:NAME]                   an OCI image layout; existing images are kept
  oci-archive:FILE[:NAME]          a tar of an OCI image layout
  docker-archive:FILE[:NAME]       an archive as docker save writes it
  dir:DIR                          a directory as skopeo writes it
  NAME                             the store; as a source, otherwise a registry

Copying between registries stores nothing on this machine; copying within one registry sends
nothing.

Examples:
  imgctl copy docker://quay.io/coreos/etcd:v3.5.9 docker://registry.example.com/etcd:v3.5.9
  imgctl copy --dest-creds robot docker://quay.io/a/b:v1 docker://registry.example.com/a/b:v1
  imgctl copy --all-platforms docker://docker.io/library/alpine:3 oci:alpine:3
  imgctl copy etcd:v1 docker-archive:etcd.tar:etcd:v1")]
pub(crate) struct CopyArgs {
    /// Location of the image
    #[arg(value_name = "FROM")]
    from: OsString,

    /// Location to copy the image to
    #[arg(value_name = "TO")]
    to: OsString,

    #[command(flatten)]
    platforms: PlatformsArg,

    /// Fail instead of changing the image's digest
    #[arg(long)]
    preserve_digests: bool,

    /// Number of blobs to copy in parallel
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,

    #[command(flatten)]
    registry: RegistryArgs,

    #[command(flatten)]
    ends: EndArgs,
}

/// Options for one of the two registries (the flags of `skopeo copy`).
#[derive(Args, Debug)]
struct EndArgs {
    /// Same as --creds, for FROM only
    #[arg(long, value_name = "USER[:PASSWORD]")]
    src_creds: Option<Concealed>,

    /// Same as --creds, for TO only
    #[arg(long, value_name = "USER[:PASSWORD]")]
    dest_creds: Option<Concealed>,

    /// Same as --authfile, for FROM only
    #[arg(long, value_name = "FILE")]
    src_authfile: Option<PathBuf>,

    /// Same as --authfile, for TO only
    #[arg(long, value_name = "FILE")]
    dest_authfile: Option<PathBuf>,

    /// Same as --cert-dir, for FROM only
    #[arg(long, value_name = "DIR")]
    src_cert_dir: Option<PathBuf>,

    /// Same as --cert-dir, for TO only
    #[arg(long, value_name = "DIR")]
    dest_cert_dir: Option<PathBuf>,

    /// Same as --tls-verify, for FROM only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    src_tls_verify: Option<bool>,

    /// Same as --tls-verify, for TO only
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    dest_tls_verify: Option<bool>,
}

impl CopyArgs {
    /// Returns the options for the registry of FROM.
    fn source(&self) -> RegistryArgs {
        let (ends, both) = (&self.ends, self.registry.clone());
        RegistryArgs {
            creds: ends.src_creds.clone().or(both.creds),
            authfile: ends.src_authfile.clone().or(both.authfile),
            cert_dir: ends.src_cert_dir.clone().or(both.cert_dir),
            tls_verify: ends.src_tls_verify.or(both.tls_verify),
            ..both
        }
    }

    /// Returns the options for the registry of TO; `None` if they are the same.
    fn destination(&self) -> Option<RegistryArgs> {
        let (ends, both) = (&self.ends, self.registry.clone());
        let passwords = [&ends.src_creds, &ends.dest_creds];
        let paths =
            [&ends.src_authfile, &ends.dest_authfile, &ends.src_cert_dir, &ends.dest_cert_dir];
        let switches = [ends.src_tls_verify, ends.dest_tls_verify];
        let differs = passwords.iter().any(|given| given.is_some())
            || paths.iter().any(|given| given.is_some())
            || switches.iter().any(Option::is_some);
        differs.then(|| RegistryArgs {
            creds: ends.dest_creds.clone().or(both.creds),
            authfile: ends.dest_authfile.clone().or(both.authfile),
            cert_dir: ends.dest_cert_dir.clone().or(both.cert_dir),
            tls_verify: ends.dest_tls_verify.or(both.tls_verify),
            ..both
        })
    }
}

/// Copies the image and prints its digest.
pub(crate) fn run(args: &CopyArgs, context: &Context) -> Result<()> {
    let (from, to) = (Location::parse(&args.from)?, Location::parse(&args.to)?);
    let client = args.source().client(context)?;
    let other = args.destination().map(|one| one.client(context));
    let other = other.transpose()?;
    let store = context.store()?;
    let reader = Copier::reading(store, &client, context.ui.reporter());
    let writer = Copier {
        store,
        client: other.as_ref().unwrap_or(&client),
        options: CopyOptions {
            selection: Selection { platforms: args.platforms.platforms()?, keep_index: false },
            jobs: args.jobs,
        },
        preserve_digests: args.preserve_digests,
        reporter: context.ui.reporter(),
    };
    // Archives are unpacked into a separate scratch directory.
    let scratch = store.scratch_directory()?;
    let source = reader.source(&from, &scratch)?;
    let copied = writer.write(&*source, &to, &scratch)?;
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
