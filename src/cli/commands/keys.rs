//! Keys for signing images: `imgctl key`, and how other verbs read keys and their passwords.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_frontend::context::Context;
use imgctl_registry::credentials::Secret;
use imgctl_trust::{PrivateKey, PublicKey, policy};

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
            context.ui.content(key.to_pem())
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
    output::write(&private, sealed.as_bytes(), 0o600, Durability::Durable)?;
    output::write(&public, verifying.to_pem().as_bytes(), 0o644, Durability::Durable)?;
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
pub(crate) struct PasswordArg {
    /// Read the private key's password from stdin [env: COSIGN_PASSWORD]
    #[arg(long)]
    password_stdin: bool,
}

impl PasswordArg {
    /// Opens an existing key. One with an empty password needs neither a variable nor a terminal.
    fn open(self, text: &[u8], context: &Context) -> Result<PrivateKey> {
        let mut known = Ok(None);
        let without = PrivateKey::from_pem(text, &mut || {
            known = self.given(context);
            Ok(known.as_ref().ok().cloned().flatten().unwrap_or_default())
        });
        match (known?, without) {
            (None, Err(_)) => {
                PrivateKey::from_pem(text, &mut || ask(context, "Password of the private key: "))
            }
            (_, opened) => opened,
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

/// Reads the private key in `path`, or in the variable NAME of `env://NAME`.
pub(crate) fn private(
    path: &Path,
    password: &PasswordArg,
    context: &Context,
) -> Result<PrivateKey> {
    let text = text_of(path, context)?;
    password.open(&text, context).context(|| format!("cannot use the key {}", path.display()))
}

/// Reads a public key from the same places.
pub(crate) fn public_at(path: &Path, context: &Context) -> Result<PublicKey> {
    PublicKey::from_pem(&text_of(path, context)?)
        .context(|| format!("cannot use the key {}", path.display()))
}

/// Returns whether the key in `path` is a public one.
pub(crate) fn is_public(path: &Path, context: &Context) -> Result<bool> {
    let text = text_of(path, context)?;
    Ok(text.windows(PUBLIC.len()).any(|part| part == PUBLIC.as_bytes()))
}

/// Marks a public key in PEM.
const PUBLIC: &str = "-BEGIN PUBLIC KEY-";

fn text_of(path: &Path, context: &Context) -> Result<Vec<u8>> {
    let Some(name) = path.to_str().and_then(|path| path.strip_prefix("env://")) else {
        return policy::read_key(path);
    };
    match context.environment.lossless(name)? {
        Some(text) => Ok(text.into_bytes()),
        None => Err(Error::usage(format!("the variable {name}, which has the key, is not set"))),
    }
}

/// Reads the public key in `path`.
pub(crate) fn public(path: &Path) -> Result<PublicKey> {
    PublicKey::from_pem(&policy::read_key(path)?)
        .context(|| format!("cannot use the key {}", path.display()))
}
