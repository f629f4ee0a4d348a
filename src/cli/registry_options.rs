//! Flags of every verb that uses registries, and the resulting client: flags first, then variables,
//! then the configuration files of containers and docker.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::registry_files;
use imgctl_base::error::{Error, Result};
use imgctl_registry::credentials::{Credentials, Login, Secret};
use imgctl_registry::registries::Registries;
use imgctl_registry::{Client, ClientOptions};

/// Access to registries.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registry options")]
pub(crate) struct RegistryArgs {
    /// Credentials file [env: REGISTRY_AUTH_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) authfile: Option<PathBuf>,

    /// User and password for the registry, as USER[:PASSWORD]; prompts for a missing password
    #[arg(long, value_name = "USER[:PASSWORD]")]
    pub(crate) creds: Option<Concealed>,

    /// Directory with certificates (*.crt, *.cert, *.key) for the registry
    #[arg(long, value_name = "DIR")]
    pub(crate) cert_dir: Option<PathBuf>,

    /// Verify the registry's certificate, and refuse plain HTTP
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) tls_verify: Option<bool>,

    /// Policy for which images may be used [default: ~/.config/containers/policy.json,
    /// /etc/containers/policy.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) signature_policy: Option<PathBuf>,

    /// Maximum number of attempts for a request that fails for a temporary reason [default: 5]
    #[arg(long, visible_alias = "retry-times", value_name = "N")]
    pub(crate) retry: Option<u32>,

    /// Accepted for existing scripts
    #[arg(long, value_name = "DURATION", hide = true)]
    pub(crate) retry_delay: Option<String>,
}

/// Argument that `Debug` does not show.
#[derive(Clone)]
pub(crate) struct Concealed(String);

impl Concealed {
    /// Returns the argument as given.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Concealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl From<&str> for Concealed {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl RegistryArgs {
    /// Creates a client from these flags, the environment and the configuration files.
    pub(crate) fn client(&self, context: &Context) -> Result<Client> {
        Client::new(self.client_options(context)?)
    }

    /// Returns the options of [`Self::client`].
    pub(crate) fn client_options(&self, context: &Context) -> Result<ClientOptions> {
        if let Some(file) = self.authfile.as_deref().filter(|file| !file.exists()) {
            return Err(Error::not_found(format!("the file {} does not exist", file.display()))
                .hint("run `imgctl login --authfile FILE REGISTRY` to create it"));
        }
        if self.retry_delay.is_some() {
            context.ui.note("--retry-delay has no effect: each wait is longer than the one before");
        }
        self.options(context, self.explicit_login(context)?)
    }

    /// Returns the client's options, with `explicit` as the login for every registry.
    pub(crate) fn options(
        &self,
        context: &Context,
        explicit: Option<Login>,
    ) -> Result<ClientOptions> {
        let environment = &context.environment;
        let files = registry_files::configuration_files(self.cert_dir.clone(), environment)?;
        let registries = Registries::read(files)?;
        Ok(ClientOptions {
            credentials: Credentials {
                explicit,
                inline: registry_files::inline_credentials(self.authfile.as_deref(), environment)?,
                files: registry_files::credential_files(self.authfile.as_deref(), environment),
                helpers: registries.credential_helpers().to_vec(),
                search_path: registry_files::search_path(environment),
            },
            registries,
            tls_verify: self.tls_verify,
            proxies: registry_files::proxies(environment)?,
            attempts: self.retry,
            gate: Some(Arc::new(registry_files::guard(
                self.signature_policy.as_deref(),
                environment,
            ))),
        })
    }

    /// Returns the login of `--creds`, and prompts for a missing password.
    fn explicit_login(&self, context: &Context) -> Result<Option<Login>> {
        let Some(creds) = &self.creds else {
            return Ok(None);
        };
        let (user, password) = match creds.expose().split_once(':') {
            Some((user, password)) => (user, Some(Secret::new(password))),
            None => (creds.expose(), None),
        };
        if user.is_empty() {
            return Err(
                Error::usage("--creds has no user name").hint("use the form --creds USER:PASSWORD")
            );
        }
        let password = match password {
            Some(password) => password,
            None => ask_password(context)?,
        };
        Ok(Some(Login::Password { user: user.to_owned(), password }))
    }
}

/// Prompts for a password; requires a terminal.
pub(crate) fn ask_password(context: &Context) -> Result<Secret> {
    match context.ui.ask_secret("Password: ")? {
        Some(password) => Ok(Secret::new(password)),
        None => Err(Error::usage("no password given, and no terminal to prompt for one")
            .hint("pipe it in (imgctl login --password-stdin), or log in first and omit --creds")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Verb {
        #[command(flatten)]
        registry: RegistryArgs,
        rest: Vec<String>,
    }

    fn parse(words: &[&str]) -> Verb {
        let words = std::iter::once("verb").chain(words.iter().copied());
        Verb::try_parse_from(words).unwrap()
    }

    #[test]
    fn flags_are_spelt_as_in_podman_and_skopeo() {
        for (words, verify, retry) in [
            (&["--tls-verify=false", "x"][..], Some(false), None),
            // As in Go, the value of a switch is never a separate argument.
            (&["--tls-verify", "x"], Some(true), None),
            (&["--retry", "3", "x"], None, Some(3)),
            (&["--retry-times", "3", "--retry-delay", "2s", "x"], None, Some(3)),
        ] {
            let verb = parse(words);
            assert_eq!(verb.registry.tls_verify, verify, "{words:?}");
            assert_eq!(verb.registry.retry, retry, "{words:?}");
            assert_eq!(verb.rest, ["x"], "{words:?}");
        }
    }

    #[test]
    fn a_password_in_a_flag_is_not_shown() {
        let verb = parse(&["--creds", "me:sEcret"]);
        let told = format!("{:?}", verb.registry);
        assert!(!told.contains("sEcret"), "{told}");
        assert_eq!(verb.registry.creds.unwrap().expose(), "me:sEcret");
    }
}
