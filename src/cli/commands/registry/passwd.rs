//! `imgctl registry passwd`.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;

use crate::cli::context::Context;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_registry::credentials::Secret;
use imgctl_registry::server::{hash_password, set_password};

/// Maximum length of a password, in bytes.
const MAX_PASSWORD: u64 = 4096;

/// Set the password of a user of a registry
#[derive(Args, Debug)]
#[command(
    after_help = "The password is read from stdin and hashed with bcrypt. Without -f, the line is printed.

Examples:
  imgctl registry passwd admin -f /etc/registry/registry_htpasswd < secret
  imgctl registry passwd admin < secret"
)]
pub(crate) struct PasswdArgs {
    /// Name of the user
    user: String,

    /// Users file; created if missing
    #[arg(short, long, value_name = "FILE", short_alias = 'p', visible_alias = "htpasswd-path")]
    file: Option<PathBuf>,

    /// Read the password from stdin (always done; for scripts)
    #[arg(long)]
    password_stdin: bool,
}

/// Writes the file, or prints the line.
pub(crate) fn run(args: &PasswdArgs, context: &Context) -> Result<()> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() && !args.password_stdin {
        context.ui.note("type the password and end it with Enter and Ctrl-D");
    }
    let mut text = String::new();
    stdin
        .take(MAX_PASSWORD)
        .read_to_string(&mut text)
        .doing(|| "cannot read the password".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.contains('\n') {
        return Err(Error::usage("the password has several lines"));
    }
    let hash = hash_password(&Secret::new(text))?;
    match &args.file {
        Some(path) => set_password(path, &args.user, &hash),
        None => context.ui.line(&format!("{}:{hash}", args.user)),
    }
}
