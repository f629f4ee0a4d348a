//! Documents about images: `imgctl attach` and `imgctl sbom`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::Reference;
use imgctl_frontend::signed_images::remote_image;
use imgctl_frontend::{
    context::Context, image_options::PlatformArg, registry_options::RegistryArgs,
};
use imgctl_registry::Target;
use imgctl_trust::{payload::expanded, provenance};
use imgctl_trust::{
    referrer,
    referrer::{Attachment, Content},
};
use imgctl_trust::{
    sbom,
    sbom::{Sbom, SbomOptions},
};

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
pub(crate) fn attach(args: &AttachArgs, context: &Context) -> Result<()> {
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
    let attachment = Attachment {
        artifact_type: media_type,
        media_type,
        content: Content::Bytes(&content),
        annotations: &[],
    };
    let digest = referrer::attach(&repository, &subject, &attachment)?;
    let place = format!("{}@{digest}", expanded(&reference).name());
    let view = json!({
        "attached": place,
        "digest": digest,
        "subject": subject.digest,
        "artifactType": media_type,
    });
    context.ui.result(&view, &place)
}

fn type_of(content: &[u8]) -> Option<&'static str> {
    let value: Value = serde_json::from_slice(content).ok()?;
    if value.get("spdxVersion").is_some() {
        return Some(sbom::MEDIA_TYPE);
    }
    let statement = value.get("_type")?.as_str()?;
    statement.starts_with("https://in-toto.io/Statement/").then_some(provenance::MEDIA_TYPE)
}

/// Create an SPDX SBOM of an image
#[derive(Args, Debug)]
#[command(
    after_help = "The document (SPDX 2.3, JSON) lists the image's layers, the container images in its embedded
registry with their digests, the packages that dpkg or apk installed, and all files. The same
image gives the same document.

Examples:
  imgctl sbom kubernetes:v1.29.9 -o kubernetes.spdx.json
  imgctl sbom --files=false registry.example.com/team/etcd:v1 --attach"
)]
pub(crate) struct SbomArgs {
    /// Name, ID or digest of an image in the store
    image: String,

    /// File to write instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// List every file with its digests
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    files: bool,

    /// Attach the document to the image in its registry, as a referrer
    #[arg(long)]
    attach: bool,

    #[command(flatten)]
    platform: PlatformArg,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Writes the document, or attaches it.
pub(crate) fn sbom(args: &SbomArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let options = SbomOptions {
        files: args.files,
        timestamp: match context.environment.text("SOURCE_DATE_EPOCH")? {
            Some(text) => Some(text.parse().map_err(|_| {
                Error::usage(format!("the variable SOURCE_DATE_EPOCH is `{text}`"))
                    .hint("set it to a number of seconds since 1970")
            })?),
            None => None,
        },
    };
    let store = context.store()?;
    // The document of an image with a million files is larger than memory should be.
    let document = Sbom::of(store, &image, &options, context.ui.reporter(), |sbom| {
        match args.output.as_deref() {
            Some(path) if path != Path::new("-") => {
                output::write_with(path, 0o644, Durability::Atomic, |file| sbom.write(file))?;
            }
            None if args.attach => {}
            _ => {
                let mut out = context.ui.json_stream();
                let written = sbom.write(&mut out);
                out.check(written)?;
                out.end()?;
            }
        }
        args.attach.then(|| sbom.document(store)).transpose()
    })?;
    let Some(document) = document else {
        return Ok(());
    };
    let name = registry_name(&args.image, image.reference.as_ref())?;
    let repository = args.registry.client(context)?.repository(&name)?;
    let attachment = Attachment {
        artifact_type: sbom::MEDIA_TYPE,
        media_type: sbom::MEDIA_TYPE,
        content: Content::File(&document),
        annotations: &[],
    };
    let digest = referrer::attach(&repository, &image.descriptor, &attachment)?;
    let place = format!("{}@{digest}", name.name());
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "attached": place,
            "digest": digest,
            "subject": image.descriptor.digest,
        }));
    }
    match args.output {
        None => context.ui.line(&place),
        Some(_) => {
            context.ui.say(&format!("attached as {place}"));
            Ok(())
        }
    }
}

/// Returns the image's name in its registry, which only a name of its own can tell.
fn registry_name(typed: &str, found: Option<&Reference>) -> Result<Reference> {
    found.cloned().ok_or_else(|| {
        Error::usage(format!("`{typed}` does not name a registry"))
            .hint("pass its full name, for example registry.example.com/team/etcd:v1")
    })
}
