//! `imgctl key generate`, `imgctl key public`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::signing_keys::{self, PasswordArg};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_transfer::trust::PrivateKey;

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

/// Generates or prints keys.
pub(crate) fn run(args: &KeyArgs, context: &Context) -> Result<()> {
    match &args.command {
        KeyVerb::Generate(args) => generate(args, context),
        KeyVerb::Public(args) => {
            let key = signing_keys::private(&args.key, &args.password, context)?.public()?;
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
