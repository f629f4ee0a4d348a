//! `imgctl logout`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Error, Result};
use imgctl_registry::credentials::Key;

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

/// Removes logins.
pub(crate) fn run(args: &LogoutArgs, context: &Context) -> Result<()> {
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
