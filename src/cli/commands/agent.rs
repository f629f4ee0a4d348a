//! The parts of imgctl that run on hosts: `imgctl agent`, and `imgctl host-action` for single actions.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_frontend::context::Context;
use imgctl_host::agent::protocol::{Checkout, InventoryQuestion, Run, SwitchTree};
use imgctl_host::agent::{balancer, execution, peers, server, tree};
use imgctl_ops::renewal;
use imgctl_registry::server::signalled;
use imgctl_ui::edge;

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
    Renew(RenewArgs),
    Peers(PeersArgs),
    /// Collect the garbage of a cluster's registry on this host (started by imgctl itself)
    #[command(hide = true)]
    RegistryGc,
}

/// Renew the certificates of this host that are due
#[derive(Args, Debug)]
#[command(
    after_help = "The timer imgctl-certificates-CLUSTER runs this. Less than a third of a certificate's life is left
when it is due. The record of what was done is beside the settings, and `imgctl status` shows it.

Examples:
  imgctl agent renew /var/lib/sealos/data/default/certificates/settings.json"
)]
struct RenewArgs {
    /// Settings that imgctl has written on this host
    #[arg(value_name = "FILE")]
    settings: PathBuf,
}

/// Get images from other hosts of the cluster, and give them this host's
#[derive(Args, Debug)]
#[command(
    after_help = "The unit imgctl-peers-CLUSTER runs this on every host of a cluster with --peers. containerd of this
host asks it over the loopback interface before it asks a registry host.

Examples:
  imgctl agent peers /var/lib/sealos/data/default/peers/settings.json"
)]
struct PeersArgs {
    /// Settings that imgctl has written on this host
    #[arg(value_name = "FILE")]
    settings: PathBuf,
}

/// Forward connections to the control planes that are up
#[derive(Args, Debug)]
#[command(
    after_help = "Probes /readyz of each server. While another server is ready, an unready one gets no new
connections and its open ones are closed. The list is reloaded when it changes. A line
`#out ADDRESS:PORT SECONDS` in it takes a server out of service for that time after the file was
written.

Examples:
  imgctl agent lb --listen 127.0.0.1:6443 --servers /etc/api-servers --ca /etc/kubernetes/pki/ca.crt --name apiserver.cluster.local"
)]
struct BalancerArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "socket")]
    listen: Option<SocketAddr>,

    /// Listen on the socket passed as standard input, as with systemd's StandardInput=socket
    #[arg(long, conflicts_with = "listen")]
    socket: bool,

    /// File of control planes: one ADDRESS:PORT per line
    #[arg(long, value_name = "FILE")]
    servers: PathBuf,

    /// CA that must have signed the servers' certificates; until this file exists, any certificate
    /// is accepted
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Name that the servers' certificates must be valid for (default: each server's address)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Client certificate for servers that refuse anonymous requests to /readyz
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,

    /// Key of the client certificate; the same file may contain both
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,

    /// File that receives the state of the servers: ADDRESS:PORT, state, open connections, reason
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Seconds between two probes of each server
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    interval: u64,

    /// Timeout for connecting to a server, and for its answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    timeout: u64,
}

/// Serves until stdin ends, or balances until a signal arrives.
pub(crate) fn agent(args: &AgentArgs, context: &Context) -> Result<()> {
    match &args.command {
        Some(AgentCommand::Lb(args)) => balance(args),
        Some(AgentCommand::Renew(args)) => {
            renewal::renew_here(&args.settings, &|text| context.ui.note(text)).map(|_| ())
        }
        Some(AgentCommand::Peers(args)) => {
            peers::run(peers::Settings::read(&args.settings)?, signalled())
        }
        Some(AgentCommand::RegistryGc) => registry_gc(context),
        None if args.stdio => server::serve_stdio(context.store()?),
        None => Err(Error::usage("the agent is started by imgctl itself")
            .hint("imgctl agent --stdio talks to a controller over stdin and stdout")),
    }
}

/// Reads a request from stdin; prints a line for each removed manifest, and the sums.
fn registry_gc(context: &Context) -> Result<()> {
    let mut text = Vec::new();
    std::io::stdin()
        .take(LONGEST_REQUEST)
        .read_to_end(&mut text)
        .doing(|| "cannot read the request".to_owned())?;
    let request = serde_json::from_slice(&text)
        .map_err(|error| Error::usage("the request cannot be read").caused_by(error))?;
    let mut collected = tree::registry_gc::collect(&request)?;
    for manifest in std::mem::take(&mut collected.manifests) {
        context.ui.line(&manifest)?;
    }
    context.ui.json_line(&collected)
}

/// Maximum size of a request, in bytes.
const LONGEST_REQUEST: u64 = 64 << 20;

fn balance(args: &BalancerArgs) -> Result<()> {
    let options = balancer::Options {
        listen: args.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))),
        servers: args.servers.clone(),
        authority: args.ca.clone(),
        name: args.name.clone(),
        certificate: args.certificate.clone().zip(args.key.clone()),
        state: args.state.clone(),
        interval: Duration::from_secs(args.interval.max(1)),
        timeout: Duration::from_secs(args.timeout.max(1)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .doing(|| "cannot start the balancer".to_owned())?;
    let given = if args.socket {
        let given = std::io::stdin().as_fd().try_clone_to_owned();
        Some(TcpListener::from(given.doing(|| "cannot use the socket on stdin".to_owned())?))
    } else {
        None
    };
    runtime.block_on(balancer::serve(options, given, signalled()))
}

/// Perform an action of the agent on this machine
///
/// Reads a request of the agent's protocol as JSON from stdin and writes the result as JSON, one
/// value per line.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl host-action inventory < question.json")]
pub(crate) struct HostActionArgs {
    /// Action to perform
    #[arg(value_enum)]
    action: Action,
}

/// Parts of the protocol that change files or run commands.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Run a command, or find the outcome of one that was started
    Run,
    /// Terminate a command
    Cancel,
    /// Create a tree from layers in the store
    Checkout,
    /// Make a staged tree the current one
    SwitchTree,
    /// List trees and registry layers
    Inventory,
}

pub(crate) fn host_action(args: &HostActionArgs, context: &Context) -> Result<()> {
    match args.action {
        Action::Run => {
            let caller =
                execution::Caller { program: Path::new("/proc/self/exe"), gone: &|| false };
            let mut failed = None;
            let outcome = execution::run(&request()?, &caller, &mut |line| {
                if let Err(error) = answer(&line) {
                    failed.get_or_insert(error);
                }
            })?;
            match failed {
                Some(error) => Err(error),
                None => answer(&outcome),
            }
        }
        Action::Cancel => {
            let request: Run = request()?;
            execution::cancel(&request.directory, &request.key)
        }
        Action::Checkout => {
            let request: Checkout = request()?;
            answer(&tree::checkout(context.store()?, &request, &|_| {})?)
        }
        Action::SwitchTree => answer(&tree::switch_tree(&request::<SwitchTree>()?)?),
        Action::Inventory => {
            let question: InventoryQuestion = request()?;
            let store = context.store()?;
            answer(&tree::inventory(store, &question.root, &question)?)
        }
    }
}

fn request<T: DeserializeOwned>() -> Result<T> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).doing(|| "cannot read the request".to_owned())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::usage("the request is malformed").caused_by(error))
}

fn answer(value: &impl Serialize) -> Result<()> {
    edge::json_line(value)
}
