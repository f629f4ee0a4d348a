//! `imgctl attach`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::signing_keys::remote_image;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_registry::Target;
use imgctl_transfer::trust::payload::expanded;
use imgctl_transfer::trust::referrer::{self, Attachment};
use imgctl_transfer::trust::{provenance, sbom};

/// Maximum size of a document, in bytes.
const MAX_DOCUMENT: u64 = 1 << 30;

/// Attach a document to an image in a registry
#[derive(Args, Debug)]
#[command(
    after_help = "The document becomes an artifact that refers to the image (OCI 1.1). The type of SPDX
documents and in-toto statements is detected; other documents need --type.

Examples:
  imgctl build --provenance provenance.json -t registry.example.com/team/etcd:v1 .
  imgctl push registry.example.com/team/etcd:v1
  imgctl attach provenance.json registry.example.com/team/etcd:v1"
)]
pub(crate) struct AttachArgs {
    /// Document to attach
    file: PathBuf,

    /// Image in a registry; a leading `docker://` is allowed
    image: String,

    /// Media type of the document
    #[arg(long = "type", value_name = "TYPE")]
    media_type: Option<String>,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Attaches the document and prints its location.
pub(crate) fn run(args: &AttachArgs, context: &Context) -> Result<()> {
    let reference = remote_image(&args.image)?;
    let size = std::fs::metadata(&args.file).path("read", &args.file)?.len();
    if size > MAX_DOCUMENT {
        return Err(Error::usage(format!("{} is too large to attach", args.file.display())));
    }
    let content = std::fs::read(&args.file).path("read", &args.file)?;
    let media_type = match &args.media_type {
        Some(given) => given.as_str(),
        None => type_of(&content).ok_or_else(|| {
            Error::usage(format!(
                "{} is neither an SPDX document nor an in-toto statement",
                args.file.display()
            ))
            .hint("pass its media type with --type")
        })?,
    };
    let repository = args.registry.client(context)?.repository(&reference)?;
    let subject = repository.document(&Target::of(&reference))?.descriptor;
    let attachment =
        Attachment { artifact_type: media_type, media_type, content: &content, annotations: &[] };
    let digest = referrer::attach(&repository, &subject, &attachment)?;
    let place = format!("{}@{digest}", expanded(&reference).name());
    if context.ui.is_json() {
        context.ui.json(&json!({
            "attached": place,
            "digest": digest,
            "subject": subject.digest,
            "artifactType": media_type,
        }))
    } else {
        context.ui.line(&place)
    }
}

fn type_of(content: &[u8]) -> Option<&'static str> {
    let value: Value = serde_json::from_slice(content).ok()?;
    if value.get("spdxVersion").is_some() {
        return Some(sbom::MEDIA_TYPE);
    }
    let statement = value.get("_type")?.as_str()?;
    statement.starts_with("https://in-toto.io/Statement/").then_some(provenance::MEDIA_TYPE)
}
