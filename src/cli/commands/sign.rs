//! Signatures of images: `imgctl sign` and `verify`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::commands::keys::{PasswordArg, private, public};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_frontend::signed_images::{Located, located};
use imgctl_frontend::signing_options::{IdentityArgs, ServiceArgs};
use imgctl_frontend::{context::Context, names::strict_pairs, registry_options::RegistryArgs};
use imgctl_trust::{
    sign,
    sign::{SignOptions, Signing},
};
use imgctl_trust::{
    verify,
    verify::{Identity, Trust, VerifyOptions},
};

/// Sign images in registries, in the store, or in OCI layouts
#[derive(Args, Debug)]
#[command(
    after_help = "A name means the image in its registry; with --local, or as an ID or digest, the image in the store.
The signature is stored next to the image: in the format `simple` at the tag sha256-<digest>.sig as
cosign 2 does, or as a referrer with --referrers; in the format `bundle` as a referrer, as cosign 3
does. The store keeps it with the image: `imgctl push` and `imgctl save` transfer it. A layout
lists it in index.json. Signing again with the same key and annotations changes nothing.

Without a key, the authority certifies the identity of a token for a key that is used once, and the
transparency log records the signature, publicly unless you run your own.

Examples:
  imgctl sign --key cosign.key registry.example.com/team/etcd:v1
  imgctl sign --key cosign.key -a commit=3f1c --recursive registry.example.com/team/etcd:v1
  imgctl sign --keyless registry.example.com/team/etcd:v1
  imgctl sign --local --key cosign.key etcd:v1
  imgctl sign --key cosign.key oci-archive:etcd.tar
  imgctl sign --identity-token token.jwt --signing-config services.json registry.example.com/etcd:v1"
)]
pub(crate) struct SignArgs {
    /// [docker://]NAME, ID or digest, oci:PATH[:NAME] or oci-archive:PATH[:NAME]
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Names mean images in the store
    #[arg(long)]
    local: bool,

    /// Private key (imgctl key generate, cosign, or PEM)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    #[command(flatten)]
    password: PasswordArg,

    /// Format of the signature [default: simple with --key, bundle without]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Annotation to include in the signature (may be repeated)
    #[arg(short, long = "annotations", value_name = "NAME=VALUE")]
    annotations: Vec<String>,

    /// Also sign everything that an index lists
    #[arg(short, long)]
    recursive: bool,

    /// Write a referrer (OCI 1.1) instead of the tag
    #[arg(long)]
    referrers: bool,

    /// Name to give the image in the signature [default: its repository]
    #[arg(long, value_name = "NAME")]
    sign_container_identity: Option<String>,

    #[command(flatten)]
    services: ServiceArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Format of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Simple signing, which podman's and skopeo's policies read
    Simple,
    /// Sigstore bundle (v0.3)
    Bundle,
}

/// Signs the images and prints what was signed.
pub(crate) fn sign(args: &SignArgs, context: &Context) -> Result<()> {
    let images = located(&args.images, args.local, context)?;
    let options = SignOptions {
        identity: args.sign_container_identity.clone(),
        annotations: strict_pairs(&args.annotations, "--annotations")?,
        recursive: args.recursive,
        referrers: args.referrers,
    };
    let keyless = args.services.is_keyless(args.key.is_some(), context)?;
    let is_bundle = match args.format {
        Some(Format::Simple) if keyless || args.services.are_given() => {
            return Err(Error::usage(
                "simple signing has no place for certificates and log entries",
            )
            .hint("pass --format bundle"));
        }
        Some(format) => format == Format::Bundle,
        // Only registries have the tags at which simple signatures are looked for.
        None => {
            let is_elsewhere = images.iter().any(|image| !matches!(image, Located::Registry(_)));
            keyless || args.services.are_given() || is_elsewhere
        }
    };
    let key = match &args.key {
        Some(path) => Some(private(path, &args.password, context)?),
        None => None,
    };
    let client = args.registry.client(context)?;
    let services = args.services.services(keyless)?;
    let sealer = args.services.sealer(key.as_ref(), &client, &services, context)?;
    let signing = match &key {
        Some(key) if !is_bundle => Signing::Simple(key),
        _ => Signing::Bundle(&sealer),
    };
    let mut list: Vec<Value> = Vec::new();
    for image in &images {
        let scratch = image.scratch(context)?;
        let place = image.place(&client, scratch.as_ref(), context)?;
        for signed in sign::sign(&place, signing, &options)? {
            let name = format!("{}@{}", place.shown(), signed.digest);
            if context.ui.is_json() {
                list.push(json!({
                    "image": name,
                    "digest": signed.digest,
                    "signature": signed.place,
                    "existed": signed.was_there,
                }));
                continue;
            }
            if signed.was_there {
                context.ui.say(&format!("{name} is already signed"));
            }
            context.ui.line(&name)?;
        }
    }
    if context.ui.is_json() { context.ui.json(&list) } else { Ok(()) }
}

/// Verify the signatures of images in registries, in the store, or in OCI layouts
#[derive(Args, Debug)]
#[command(
    after_help = "A name means the image in its registry; with --local, or as an ID or digest, the image in the store.
An image is verified if one signature is valid: made by one of the keys or by the identity, for this
image, under this name, with these annotations. The contents of valid signatures are printed as
JSON. Without a valid one, the exit code is 5, and the error says what is wrong with each.

Examples:
  imgctl verify --key cosign.pub registry.example.com/team/etcd:v1
  imgctl verify --key cosign.pub -a commit=3f1c --identity quay.io/team/etcd mirror.example.com/etcd:v1
  imgctl verify --local --key cosign.pub etcd:v1
  imgctl verify --trusted-root trusted_root.json \\
    --certificate-oidc-issuer https://token.actions.githubusercontent.com \\
    --certificate-identity https://github.com/team/etcd/.github/workflows/ci.yml@refs/tags/v1 \\
    registry.example.com/team/etcd:v1"
)]
pub(crate) struct VerifyArgs {
    /// [docker://]NAME, ID or digest, oci:PATH[:NAME] or oci-archive:PATH[:NAME]
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Names mean images in the store
    #[arg(long)]
    local: bool,

    /// Public key (may be repeated; one of them must have signed)
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,

    /// Annotation that the signature must contain (may be repeated)
    #[arg(short, long = "annotations", value_name = "NAME=VALUE")]
    annotations: Vec<String>,

    /// Name that the signature must give the image [default: its own name]
    #[arg(long, value_name = "NAME", conflicts_with = "any_identity")]
    identity: Option<String>,

    /// Accept any name that the signature gives the image
    #[arg(long)]
    any_identity: bool,

    #[command(flatten)]
    certificate: IdentityArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Verifies the images and prints the claims of their signatures.
pub(crate) fn verify(args: &VerifyArgs, context: &Context) -> Result<()> {
    let images = located(&args.images, args.local, context)?;
    let options = VerifyOptions {
        identity: match &args.identity {
            Some(name) => Identity::Given(Reference::parse(name)?),
            None if args.any_identity => Identity::Any,
            None => Identity::Own,
        },
        annotations: strict_pairs(&args.annotations, "--annotations")?,
    };
    let trust = if args.keys.is_empty() {
        Trust::Keyless(Box::new(args.certificate.keyless()?))
    } else {
        Trust::Keys(args.keys.iter().map(|path| public(path)).collect::<Result<Vec<_>>>()?)
    };
    let client = args.registry.client(context)?;
    let mut list: Vec<Value> = Vec::new();
    for image in &images {
        let scratch = image.scratch(context)?;
        let place = image.place(&client, scratch.as_ref(), context)?;
        let verified = verify::verify(&place, &trust, &options)?;
        for why in &verified.rejected {
            tracing::info!("ignoring a signature of {image}: {why}");
        }
        let (count, digest) = (verified.claims.len(), &verified.digest);
        context.ui.say(&format!(
            "{image} ({digest}) has {count} valid signature{}",
            if count == 1 { "" } else { "s" }
        ));
        for signer in &verified.signers {
            context.ui.say(&format!("signed by {} ({})", signer.identity, signer.issuer));
        }
        let signers: Vec<Value> = verified
            .signers
            .iter()
            .map(|signer| json!({ "identity": signer.identity, "issuer": signer.issuer }))
            .collect();
        list.push(json!({
            "image": image.to_string(),
            "digest": digest,
            "claims": verified.claims,
            "signers": signers,
        }));
    }
    if context.ui.is_json() {
        return context.ui.json(&list);
    }
    // Uses cosign's form: one line for each image, with an array of payloads.
    for image in &list {
        context.ui.json_line(&image["claims"])?;
    }
    Ok(())
}
