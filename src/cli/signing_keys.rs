//! Code shared by the signing verbs: the images that they name, and keys: files, and the password
//! of a private key from stdin, the environment or the terminal.

use std::io::Read as _;
use std::path::Path;

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::image::Reference;
use imgctl_registry::credentials::Secret;
use imgctl_transfer::trust::payload::expanded;
use imgctl_transfer::trust::{PrivateKey, PublicKey, policy};

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
    /// Returns the password of an existing key.
    fn password(self, context: &Context) -> Result<Secret> {
        match self.given(context)? {
            Some(password) => Ok(password),
            None => ask(context, "Password of the private key: "),
        }
    }

    /// Returns the password for a new key; it is typed twice.
    pub(crate) fn new_password(self, context: &Context) -> Result<Secret> {
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
pub(crate) fn private(
    path: &Path,
    password: &PasswordArg,
    context: &Context,
) -> Result<PrivateKey> {
    let text = policy::read_key(path)?;
    PrivateKey::from_pem(&text, &mut || password.password(context))
        .context(|| format!("cannot use the key {}", path.display()))
}

/// Reads the public key in `path`.
pub(crate) fn public(path: &Path) -> Result<PublicKey> {
    PublicKey::from_pem(&policy::read_key(path)?)
        .context(|| format!("cannot use the key {}", path.display()))
}
