//! Signatures of images: `imgctl sign` and `verify`, and `imgctl key` for their keys.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::{context::Context, names::strict_pairs, registry_options::RegistryArgs};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::Reference;
use imgctl_registry::credentials::Secret;
use imgctl_transfer::trust::sign::{self, SignOptions};
use imgctl_transfer::trust::verify::{self, Identity, VerifyOptions};
use imgctl_transfer::trust::{PrivateKey, PublicKey, payload::expanded, policy};

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
pub(crate) fn sign(args: &SignArgs, context: &Context) -> Result<()> {
    let references =
        args.images.iter().map(|image| remote_image(image)).collect::<Result<Vec<_>>>()?;
    let options = SignOptions {
        identity: args.sign_container_identity.clone(),
        annotations: strict_pairs(&args.annotations, "--annotations")?,
        recursive: args.recursive,
        referrers: args.referrers,
    };
    let key = private(&args.key, &args.password, context)?;
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
pub(crate) fn verify(args: &VerifyArgs, context: &Context) -> Result<()> {
    let references =
        args.images.iter().map(|image| remote_image(image)).collect::<Result<Vec<_>>>()?;
    let options = VerifyOptions {
        identity: match &args.identity {
            Some(name) => Identity::Given(Reference::parse(name)?),
            None if args.any_identity => Identity::Any,
            None => Identity::Own,
        },
        annotations: strict_pairs(&args.annotations, "--annotations")?,
    };
    let keys = args.keys.iter().map(|path| public(path)).collect::<Result<Vec<_>>>()?;
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

/// Manage keys for signing images
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl key generate --output-key-prefix release
  imgctl key public --key release.key")]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    command: KeyVerb,
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
    Generate(GenerateArgs),
    Public(PublicArgs),
}

/// Generate a key pair in cosign format
#[derive(Args, Debug)]
#[command(
    visible_alias = "generate-key-pair",
    after_help = "The private key is encrypted with a password from a prompt, from the variable COSIGN_PASSWORD
(which may be empty) or from stdin.

Examples:
  imgctl key generate
  COSIGN_PASSWORD=… imgctl key generate --output-key-prefix release"
)]
struct GenerateArgs {
    /// Prefix of the two file names: PREFIX.key and PREFIX.pub
    #[arg(long, value_name = "PREFIX", default_value = "cosign")]
    output_key_prefix: PathBuf,

    /// Replace existing files
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    password: PasswordArg,
}

/// Print the public key of a private key
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl key public --key cosign.key > cosign.pub")]
struct PublicArgs {
    /// Private key, encrypted in cosign format or plain PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    #[command(flatten)]
    password: PasswordArg,
}

pub(crate) fn key(args: &KeyArgs, context: &Context) -> Result<()> {
    match &args.command {
        KeyVerb::Generate(args) => generate(args, context),
        KeyVerb::Public(args) => {
            let key = private(&args.key, &args.password, context)?.public()?;
            if context.ui.is_json() {
                return context.ui.json(&json!({
                    "publicKey": key.to_pem(),
                    "fingerprint": key.fingerprint(),
                }));
            }
            context.ui.print(&key.to_pem())
        }
    }
}

fn generate(args: &GenerateArgs, context: &Context) -> Result<()> {
    let (private, public) = (
        with_suffix(&args.output_key_prefix, ".key"),
        with_suffix(&args.output_key_prefix, ".pub"),
    );
    for path in [&private, &public] {
        if !args.force && path.exists() {
            return Err(Error::new(Kind::Busy, format!("{} exists", path.display()))
                .hint("pass another --output-key-prefix, or --force to replace the keys"));
        }
    }
    let password = args.password.new_password(context)?;
    let key = PrivateKey::generate()?;
    let verifying = key.public()?;
    let sealed = key.to_sealed_pem(&password)?;
    atomic::write(&private, sealed.as_bytes(), 0o600, Durability::Durable)?;
    atomic::write(&public, verifying.to_pem().as_bytes(), 0o644, Durability::Durable)?;
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "privateKey": private,
            "publicKey": public,
            "fingerprint": verifying.fingerprint(),
        }));
    }
    context.ui.line(&format!("Private key written to {}", private.display()))?;
    context.ui.line(&format!("Public key written to {}", public.display()))
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// Variable of cosign; set but empty means the empty password.
const VARIABLE: &str = "COSIGN_PASSWORD";
/// Maximum size of a password, in bytes.
const MAX_PASSWORD: u64 = 64 << 10;

/// Source of a private key's password.
#[derive(Args, Clone, Copy, Debug, Default)]
struct PasswordArg {
    /// Read the private key's password from stdin [env: COSIGN_PASSWORD]
    #[arg(long)]
    password_stdin: bool,
}

impl PasswordArg {
    /// Returns the password of an existing key.
    fn password(self, context: &Context) -> Result<Secret> {
        match self.given(context)? {
            Some(password) => Ok(password),
            None => ask(context, "Password of the private key: "),
        }
    }

    /// Returns the password for a new key; it is typed twice.
    fn new_password(self, context: &Context) -> Result<Secret> {
        if let Some(password) = self.given(context)? {
            return Ok(password);
        }
        let password = ask(context, "Password for the private key: ")?;
        if ask(context, "Repeat the password: ")? == password {
            Ok(password)
        } else {
            Err(Error::usage("the two passwords differ"))
        }
    }

    fn given(self, context: &Context) -> Result<Option<Secret>> {
        if self.password_stdin {
            let mut text = String::new();
            std::io::stdin()
                .take(MAX_PASSWORD)
                .read_to_string(&mut text)
                .doing(|| "cannot read the password from stdin".to_owned())?;
            return Ok(Some(Secret::new(text.trim_end_matches(['\r', '\n']))));
        }
        Ok(context.environment.lossless(VARIABLE)?.map(Secret::new))
    }
}

fn ask(context: &Context, question: &str) -> Result<Secret> {
    match context.ui.ask_secret(question)? {
        Some(password) => Ok(Secret::new(password)),
        None => Err(Error::usage("no password given, and no terminal to prompt for one").hint(
            format!("set the variable {VARIABLE} or pipe the password in with --password-stdin"),
        )),
    }
}

/// Parses an image in a registry, with or without a leading `docker://`; no tag means `:latest`.
/// Short names are refused: one can mean several images, and the wrong one would be signed.
pub(crate) fn remote_image(text: &str) -> Result<Reference> {
    let reference = Reference::parse(text.strip_prefix("docker://").unwrap_or(text))?;
    if reference.registry().is_none() {
        return Err(Error::usage(format!("`{text}` does not name a registry"))
            .hint(format!("write the full name, for example {}", expanded(&reference))));
    }
    Ok(reference.with_default_tag())
}

/// Reads the private key in `path`.
fn private(path: &Path, password: &PasswordArg, context: &Context) -> Result<PrivateKey> {
    let text = policy::read_key(path)?;
    PrivateKey::from_pem(&text, &mut || password.password(context))
        .context(|| format!("cannot use the key {}", path.display()))
}

/// Reads the public key in `path`.
fn public(path: &Path) -> Result<PublicKey> {
    PublicKey::from_pem(&policy::read_key(path)?)
        .context(|| format!("cannot use the key {}", path.display()))
}
