//! Flags that select the hosts that a verb works on.

use clap::Args;

use crate::cli::context::Context;
use crate::cli::registry_options::RegistryArgs;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::Result;
use imgctl_cluster::cluster::host::Host;
use imgctl_host::host::connect::Connections;
use imgctl_ops::hosts::HostSelection;

/// Default number of parallel hosts. More connections do not make two cores faster.
const PARALLEL: usize = 32;

/// Hosts, and the flags to reach them.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostArgs {
    /// Hosts: IP, IP:PORT, [IPv6]:PORT, name, range (10.0.0.1-10.0.0.9) or CIDR, separated by
    /// commas
    #[arg(long, visible_alias = "hosts", value_name = "LIST")]
    pub(crate) ips: Option<String>,

    /// Hosts of this cluster, with its logins; --ips and --roles filter them
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,

    /// Select only hosts of the cluster with one of these roles: master, node, registry
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    roles: Vec<String>,

    /// Number of hosts to process in parallel [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) parallel: Option<u16>,

    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}

impl HostArgs {
    /// Returns the hosts and the connections to them.
    pub(crate) fn resolve(&self, context: &Context) -> Result<(Vec<Host>, Connections)> {
        let selection = HostSelection {
            list: self.ips.clone(),
            cluster: self.cluster.clone(),
            roles: self.roles.clone(),
        };
        selection.resolve(&context.session(&self.ssh, &RegistryArgs::default())?)
    }

    /// Returns the number of hosts to process in parallel.
    pub(crate) fn parallel(&self) -> usize {
        self.parallel.map_or(PARALLEL, usize::from)
    }
}
