//! `imgctl agent`: what runs on hosts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::agent::{balancer, server};
use crate::cli::context::Context;
use crate::error::{Error, IoContext, Result};
use crate::registry::server::signalled;

/// Serve a controller on this host, or balance connections to the API (started by imgctl itself)
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AgentArgs {
    /// Speak with the controller over stdin and stdout until stdin ends
    #[arg(long)]
    stdio: bool,

    #[command(subcommand)]
    command: Option<AgentCommand>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    Lb(BalancerArgs),
}

/// Pass connections on to the control planes that are up
#[derive(Args, Debug)]
#[command(
    after_help = "The list is read again when it changes; a server that does not answer is left out until it does.

Examples:
  imgctl agent lb --listen 127.0.0.1:6443 --servers /etc/api-servers"
)]
struct BalancerArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,

    /// File of control planes: one ADDRESS:PORT per line
    #[arg(long, value_name = "FILE")]
    servers: PathBuf,

    /// Seconds between two looks at each server
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    interval: u64,

    /// Seconds for connecting to a server
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    timeout: u64,
}

/// Serves until stdin ends, or balances until a signal comes.
pub(crate) fn run(args: &AgentArgs, context: &Context) -> Result<()> {
    match &args.command {
        Some(AgentCommand::Lb(args)) => balance(args),
        None if args.stdio => server::serve_stdio(context.store()?),
        None => Err(Error::usage("the agent is started by imgctl itself")
            .hint("imgctl agent --stdio speaks with a controller over stdin and stdout")),
    }
}

fn balance(args: &BalancerArgs) -> Result<()> {
    let options = balancer::Options {
        listen: args.listen,
        servers: args.servers.clone(),
        interval: Duration::from_secs(args.interval.max(1)),
        timeout: Duration::from_secs(args.timeout.max(1)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .doing(|| "cannot start the balancer".to_owned())?;
    runtime.block_on(balancer::serve(options, signalled()))
}
