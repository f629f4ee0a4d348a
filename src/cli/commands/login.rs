//! `imgctl login` and `imgctl logout`.

use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_frontend::context::Context;
use imgctl_frontend::registry_options::{Concealed, RegistryArgs, ask_password};
use imgctl_registry::Client;
use imgctl_registry::credentials::{Credentials, Key, Login, Secret};
use imgctl_ui::terminal::Level;

/// Maximum length of a password, in bytes; some tokens come close to it.
const LONGEST_PASSWORD: u64 = 64 << 10;

/// Log in to a registry
#[derive(Args, Debug)]
#[command(
    after_help = "The registry checks the login before it is stored. It is stored in --authfile, otherwise
REGISTRY_AUTH_FILE, otherwise containers' auth.json in XDG_RUNTIME_DIR; or in the credential
helper that this file or registries.conf names. podman, buildah, skopeo and sealos read the
same file. Without -u, an existing login is tried first.

Other users of this machine can see a password given with -p: prefer --password-stdin.

Examples:
  imgctl login quay.io
  imgctl login -u robot --password-stdin registry.example.com:5000 < token
  imgctl login -u me quay.io/team
  imgctl login --get-login quay.io"
)]
pub(crate) struct LoginArgs {
    /// Registry, or a namespace of it
    #[arg(value_name = "REGISTRY[/NAMESPACE]")]
    registry: String,

    /// User name
    #[arg(short, long, value_name = "USER")]
    username: Option<String>,

    /// Password
    #[arg(short, long, value_name = "PASSWORD")]
    password: Option<Concealed>,

    /// Read the password from stdin
    #[arg(long, conflicts_with = "password", requires = "username")]
    password_stdin: bool,

    /// Print the user who is logged in and exit
    #[arg(long, conflicts_with_all = ["username", "password", "password_stdin"])]
    get_login: bool,

    #[command(flatten)]
    options: RegistryArgs,
}

pub(crate) fn login(args: &LoginArgs, context: &Context) -> Result<()> {
    let key = Key::parse(&args.registry)?;
    let kept = args.options.options(context, None)?.credentials;
    if args.get_login {
        return print_user(&key, &kept, context);
    }
    let given = given(args)?;
    if given.user.is_none() && given.password.is_none() && already(args, &key, &kept, context)? {
        return Ok(());
    }
    let user = match given.user {
        Some(user) => user,
        None => ask_user(context)?,
    };
    if user.is_empty() {
        return Err(Error::usage("the user name is empty"));
    }
    let password = match given.password {
        Some(password) => password,
        None if args.password_stdin => read_password()?,
        None => ask_password(context)?,
    };
    let login = Login::Password { user: user.clone(), password: password.clone() };
    check(args, &key, login, context).context(|| format!("cannot log in to {key} as {user}"))?;
    let place = kept
        .store(&key, &user, &password)
        .context(|| format!("{key} accepts the login, but imgctl cannot store it"))?;
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "registry": key.to_string(),
            "username": user,
            "kept": place,
        }));
    }
    if !matches!(context.settings.ui.level, Level::Error | Level::Warn) {
        context.ui.line(&format!("Used: {place}"))?;
    }
    context.ui.line("Login Succeeded!")
}

/// Credentials given by flags.
struct Given {
    user: Option<String>,
    password: Option<Secret>,
}

fn given(args: &LoginArgs) -> Result<Given> {
    let mut given = Given {
        user: args.username.clone(),
        password: args.password.as_ref().map(|password| Secret::new(password.expose())),
    };
    if let Some(creds) = &args.options.creds {
        if given.user.is_some() || given.password.is_some() {
            return Err(Error::usage("--creds cannot be combined with --username"));
        }
        let (user, password) = match creds.expose().split_once(':') {
            Some((user, password)) => (user, Some(Secret::new(password))),
            None => (creds.expose(), None),
        };
        given = Given { user: Some(user.to_owned()), password };
    }
    Ok(given)
}

/// Whether an existing login is valid.
fn already(args: &LoginArgs, key: &Key, kept: &Credentials, context: &Context) -> Result<bool> {
    let Some(found) = kept.find(key.registry(), key.namespace())? else {
        return Ok(false);
    };
    match check(args, key, found.login.clone(), context) {
        Ok(()) => {}
        Err(error) if error.kind() == Kind::Denied => {
            context.ui.note(&format!("{key} does not accept the login in {}", found.source));
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    if context.ui.is_json() {
        context.ui.json(&json!({
            "registry": key.to_string(),
            "username": user_of(&found.login),
            "kept": found.source,
        }))?;
    } else {
        context.ui.line(&format!("Existing credentials are valid. Already logged in to {key}"))?;
    }
    Ok(true)
}

/// Asks the registry whether it accepts `login`.
fn check(args: &LoginArgs, key: &Key, login: Login, context: &Context) -> Result<()> {
    let options = args.options.options(context, Some(login))?;
    Client::new(options)?.check_login(key.registry())
}

fn print_user(key: &Key, kept: &Credentials, context: &Context) -> Result<()> {
    let Some(found) = kept.find(key.registry(), key.namespace())? else {
        return Err(
            Error::not_found(format!("not logged in to {key}")).hint(format!("imgctl login {key}"))
        );
    };
    let user = user_of(&found.login);
    let view = json!({
        "registry": key.to_string(),
        "username": user,
        "kept": found.source,
    });
    context.ui.result(&view, user)
}

/// Returns the user, or a placeholder if the login is a token.
fn user_of(login: &Login) -> &str {
    match login {
        Login::Password { user, .. } => user,
        Login::Identity(_) | Login::Bearer(_) => "<token>",
    }
}

fn ask_user(context: &Context) -> Result<String> {
    context.ui.ask("Username: ")?.ok_or_else(|| {
        Error::usage("no user name given, and no terminal to prompt for one")
            .hint("pass it: imgctl login -u USER --password-stdin REGISTRY")
    })
}

/// Reads all of stdin, without the line ending.
fn read_password() -> Result<Secret> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .take(LONGEST_PASSWORD + 1)
        .read_to_string(&mut text)
        .doing(|| "cannot read the password from stdin".to_owned())?;
    if text.len() as u64 > LONGEST_PASSWORD {
        return Err(Error::usage("the password on stdin is too long"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let password = line.strip_suffix('\r').unwrap_or(line);
    if password.is_empty() {
        return Err(Error::usage("stdin contains no password"));
    }
    Ok(Secret::new(password))
}

/// Log out of a registry
#[derive(Args, Debug)]
#[command(
    after_help = "Removes logins that `imgctl login` (or podman, in the same file) has stored.

Examples:
  imgctl logout quay.io
  imgctl logout --all"
)]
pub(crate) struct LogoutArgs {
    /// Registry, or a namespace of it
    #[arg(value_name = "REGISTRY[/NAMESPACE]", required_unless_present = "all")]
    registry: Option<String>,

    /// Remove every login in the file
    #[arg(short, long, conflicts_with = "registry")]
    all: bool,

    /// Credentials file [env: REGISTRY_AUTH_FILE]
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
}

pub(crate) fn logout(args: &LogoutArgs, context: &Context) -> Result<()> {
    let options = RegistryArgs { authfile: args.authfile.clone(), ..RegistryArgs::default() };
    let kept = options.options(context, None)?.credentials;
    let removed = match &args.registry {
        None => kept.remove_all()?,
        Some(registry) => {
            let key = Key::parse(registry)?;
            if !kept.remove(&key)? {
                let error = Error::not_found(format!("not logged in to {key}"));
                return Err(match kept.find(key.registry(), key.namespace())? {
                    None => error,
                    Some(found) => error.hint(format!(
                        "there is a login in {}: log out with the tool that wrote it, or pass \
                         --authfile",
                        found.source
                    )),
                });
            }
            vec![key.to_string()]
        }
    };
    if context.ui.is_json() {
        return context.ui.json(&json!({ "removed": removed }));
    }
    if args.all {
        return context.ui.line("Removed login credentials for all registries");
    }
    for key in removed {
        context.ui.line(&format!("Removed login credentials for {key}"))?;
    }
    Ok(())
}
