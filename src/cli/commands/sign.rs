//! `imgctl sign`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::signing_keys::{self, PasswordArg, remote_image};
use imgctl_base::error::{Error, Result};
use imgctl_transfer::trust::payload::expanded;
use imgctl_transfer::trust::sign::{self, SignOptions};

/// Sign an image in a registry
#[derive(Args, Debug)]
#[command(
    after_help = "The signature is stored next to the image, at the tag sha256-<digest>.sig as cosign does, or as a
referrer with --referrers. Signing again with the same key and annotations changes nothing.

Examples:
  imgctl sign --key cosign.key registry.example.com/team/etcd:v1
  imgctl sign --key cosign.key -a commit=3f1c --recursive registry.example.com/team/etcd:v1"
)]
pub(crate) struct SignArgs {
    /// Image in a registry; a leading `docker://` is allowed
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    /// Private key (imgctl key generate, cosign, or PEM)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    #[command(flatten)]
    password: PasswordArg,

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
    registry: RegistryArgs,
}

/// Signs the images and prints what was signed.
pub(crate) fn run(args: &SignArgs, context: &Context) -> Result<()> {
    let references =
        args.images.iter().map(|image| remote_image(image)).collect::<Result<Vec<_>>>()?;
    let options = SignOptions {
        identity: args.sign_container_identity.clone(),
        annotations: pairs(&args.annotations)?,
        recursive: args.recursive,
        referrers: args.referrers,
    };
    let key = signing_keys::private(&args.key, &args.password, context)?;
    let client = args.registry.client(context)?;
    let mut list: Vec<Value> = Vec::new();
    for reference in &references {
        let repository = client.repository(reference)?;
        for signed in sign::sign(&repository, reference, &key, &options)? {
            let name = format!("{}@{}", expanded(reference).name(), signed.digest);
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

/// Parses `NAME=VALUE` pairs.
pub(crate) fn pairs(specs: &[String]) -> Result<BTreeMap<String, String>> {
    specs
        .iter()
        .map(|spec| match spec.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => {
                Err(Error::usage(format!("the annotation `{spec}` is not of the form NAME=VALUE")))
            }
        })
        .collect()
}
