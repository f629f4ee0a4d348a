//! `imgctl verify`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::commands::sign::pairs;
use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::signing_keys::{self, remote_image};
use imgctl_base::error::Result;
use imgctl_base::image::Reference;
use imgctl_transfer::trust::verify::{self, Identity, VerifyOptions};

/// Verify the signatures of an image in a registry
#[derive(Args, Debug)]
#[command(
    after_help = "An image is verified if one signature is valid: made by one of the keys, for this image, under this
name, with these annotations. The contents of valid signatures are printed as JSON. Without a valid
one, the exit code is 5, and the error says what is wrong with each.

Examples:
  imgctl verify --key cosign.pub registry.example.com/team/etcd:v1
  imgctl verify --key cosign.pub -a commit=3f1c --identity quay.io/team/etcd mirror.example.com/etcd:v1"
)]
pub(crate) struct VerifyArgs {
    /// Image in a registry; a leading `docker://` is allowed
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Public key (may be repeated; one of them must have signed)
    #[arg(long = "key", required = true, value_name = "FILE")]
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
    registry: RegistryArgs,
}

/// Verifies the images and prints the claims of their signatures.
pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Result<()> {
    let references =
        args.images.iter().map(|image| remote_image(image)).collect::<Result<Vec<_>>>()?;
    let options = VerifyOptions {
        identity: match &args.identity {
            Some(name) => Identity::Given(Reference::parse(name)?),
            None if args.any_identity => Identity::Any,
            None => Identity::Own,
        },
        annotations: pairs(&args.annotations)?,
    };
    let keys =
        args.keys.iter().map(|path| signing_keys::public(path)).collect::<Result<Vec<_>>>()?;
    let client = args.registry.client(context)?;
    let mut list: Vec<Value> = Vec::new();
    for reference in &references {
        let repository = client.repository(reference)?;
        let verified = verify::verify(&repository, reference, &keys, &options)?;
        for why in &verified.rejected {
            tracing::info!("ignoring a signature of {reference}: {why}");
        }
        let (count, digest) = (verified.claims.len(), &verified.digest);
        context.ui.say(&format!(
            "{reference} ({digest}) has {count} valid signature{}",
            if count == 1 { "" } else { "s" }
        ));
        list.push(json!({
            "image": reference.to_string(),
            "digest": digest,
            "claims": verified.claims,
        }));
    }
    if context.ui.is_json() {
        return context.ui.json(&list);
    }
    // Uses cosign's form: one line for each image, with an array of payloads.
    for image in &list {
        context.ui.line(&image["claims"].to_string())?;
    }
    Ok(())
}
