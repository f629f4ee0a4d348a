//! `imgctl registry passwd`.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;

use crate::cli::commands::registry::cluster;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_frontend::context::Context;
use imgctl_ops::registry::NewPassword;
use imgctl_registry::credentials::Secret;
use imgctl_registry::server::{hash_password, set_password};

/// Maximum length of a password, in bytes.
const MAX_PASSWORD: u64 = 4096;

/// Set the password of a user of a registry, or of a cluster's registry
#[derive(Args, Debug)]
#[command(
    mut_args = cluster::only_with_cluster,
    after_help = "The password is read from stdin and hashed with bcrypt. Without -f, the line is printed.

With --cluster, the registry hosts of the cluster and all its clients get another password: from a
prompt, with --password-stdin from stdin, or with --generate a random one. Both passwords are valid
until every host has the new one. If the command is interrupted, run it again: it finishes the
change with the password that it began with.

Examples:
  imgctl registry passwd admin -f /etc/registry/registry_htpasswd < secret
  imgctl registry passwd admin < secret
  imgctl registry passwd --cluster prod --generate
  imgctl registry passwd --cluster prod --password-stdin < secret"
)]
pub(crate) struct PasswdArgs {
    /// Name of the user
    #[arg(id = "registry_user", required_unless_present = "cluster", value_name = "USER")]
    user: Option<String>,

    /// Users file; created if missing
    #[arg(
        short,
        long,
        value_name = "FILE",
        short_alias = 'p',
        visible_alias = "htpasswd-path",
        overrides_with = "file"
    )]
    file: Option<PathBuf>,

    /// Read the password from stdin (the default without --cluster)
    #[arg(long)]
    password_stdin: bool,

    /// Generate the password
    #[arg(long, requires = "cluster", conflicts_with = "password_stdin")]
    generate: bool,

    #[command(flatten)]
    of: cluster::OfCluster,
}

/// Writes the file, or prints the line; or changes the password of a cluster's registry.
pub(crate) fn passwd(args: &PasswdArgs, context: &Context) -> Result<()> {
    if let Some(name) = &args.of.cluster {
        // clap drops the requirements of flags that conflict with what they require.
        cluster::refuse("USER", args.user.is_some())?;
        cluster::refuse("--file", args.file.is_some())?;
        let ask = || if args.password_stdin { read_password() } else { ask_twice(context) };
        let new = if args.generate { NewPassword::Generated } else { NewPassword::Given(&ask) };
        return cluster::change_password(name, &args.of, new, context);
    }
    let user = args.user.as_deref().unwrap_or_default();
    if std::io::stdin().is_terminal() && !args.password_stdin {
        context.ui.note("type the password and end it with Enter and Ctrl-D");
    }
    let hash = hash_password(&read_password()?)?;
    match &args.file {
        Some(path) => set_password(path, user, &hash),
        None => context.ui.line(&format!("{user}:{hash}")),
    }
}

/// Reads a password of one line from stdin.
fn read_password() -> Result<Secret> {
    let mut text = String::new();
    std::io::stdin()
        .take(MAX_PASSWORD)
        .read_to_string(&mut text)
        .doing(|| "cannot read the password".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.contains('\n') {
        return Err(Error::usage("the password has several lines"));
    }
    Ok(Secret::new(text))
}

fn ask_twice(context: &Context) -> Result<Secret> {
    let none = || {
        Error::usage("no password given, and no terminal to prompt for one")
            .hint("pass --generate, or pipe the password in with --password-stdin")
    };
    let first = context.ui.ask_secret("New password of the registry: ")?.ok_or_else(none)?;
    let again = context.ui.ask_secret("The same again: ")?.ok_or_else(none)?;
    if first != again {
        return Err(Error::usage("the passwords differ; nothing was changed"));
    }
    if first.len() as u64 > MAX_PASSWORD {
        return Err(Error::usage("the password is too long"));
    }
    Ok(Secret::new(first))
}
