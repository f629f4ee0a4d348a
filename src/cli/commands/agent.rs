//! `imgctl agent`: what the controller starts on hosts.

use clap::Args;

use crate::agent::server;
use crate::cli::context::Context;
use crate::error::Result;

/// Serve a controller on this host (started by imgctl itself)
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// Speak with the controller over stdin and stdout until stdin ends
    #[arg(long, required = true)]
    stdio: bool,
}

/// Serves until stdin ends.
pub(crate) fn run(_args: &AgentArgs, context: &Context) -> Result<()> {
    server::serve_stdio(context.store()?)
}
