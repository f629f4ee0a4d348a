//! Flags of every verb that talks to registries, and the client they come to: flags first, then
//! variables, then the configuration files of containers and docker.

use std::path::PathBuf;

use clap::Args;

use crate::cli::context::Context;
use crate::error::Result;
use crate::registry::Client;

/// How registries are reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registry options")]
pub(crate) struct RegistryArgs {
    /// File of credentials [env: REGISTRY_AUTH_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) authfile: Option<PathBuf>,

    /// User and password for the registry, as USER[:PASSWORD]
    #[arg(long, value_name = "USER[:PASSWORD]")]
    pub(crate) creds: Option<String>,

    /// Directory with certificates (*.crt, *.cert, *.key) for the registry
    #[arg(long, value_name = "DIR")]
    pub(crate) cert_dir: Option<PathBuf>,

    /// Verify the registry's certificate, and refuse plain HTTP
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) tls_verify: Option<bool>,
}

impl RegistryArgs {
    /// The client that these flags, the environment and the configuration files make.
    pub(crate) fn client(&self, context: &Context) -> Result<Client> {
        todo!()
    }
}
