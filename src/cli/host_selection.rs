//! Selection of the hosts that a verb works on: lists on the command line, and the hosts of a
//! cluster, filtered by role and address.

use clap::Args;

use crate::cli::cluster_options::{state, with_surroundings};
use crate::cli::context::Context;
use crate::cli::ssh_options::SshArgs;
use imgctl_base::error::{Error, Result};
use imgctl_cluster::cluster::host::Host;
use imgctl_cluster::cluster::name;
use imgctl_host::host::address::{Address, parse_list};
use imgctl_host::host::connect::Connections;
use imgctl_host::host::login::Login;

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
        let (login, settings) = self.ssh.resolve(context)?;
        let ips = parse_list(self.ips.as_deref().unwrap_or_default(), self.ssh.port())?;
        if self.cluster.is_some() || !self.roles.is_empty() || ips.is_empty() {
            let hosts = self.of_cluster(&ips, &login, context)?;
            return Ok((hosts, Connections::new(settings)?));
        }
        let host = |address| Host {
            address,
            roles: Vec::new(),
            environment: std::collections::BTreeMap::new(),
            login: login.clone(),
            local: false,
        };
        let hosts = ips.into_iter().map(host).collect();
        Ok((hosts, Connections::new(settings)?))
    }

    /// Returns the hosts of a cluster; login flags override the stored logins.
    fn of_cluster(&self, ips: &[Address], login: &Login, context: &Context) -> Result<Vec<Host>> {
        let cluster = self.cluster.as_deref().unwrap_or(name::DEFAULT);
        let stored = state(cluster, context)?.require().map_err(|error| {
            if self.cluster.is_none() && self.roles.is_empty() {
                error.hint("or pass hosts: --ips 10.0.0.11,10.0.0.12 (or a range, a CIDR, names)")
            } else {
                error
            }
        });
        let (clusterfile, _) = stored?;
        let hosts = with_surroundings(context, |around| clusterfile.cluster.hosts(around))?;
        let mut chosen = select(hosts, &self.roles, ips)?;
        for host in &mut chosen {
            host.login = preferred(login, &host.login);
        }
        Ok(chosen)
    }

    /// Returns the number of hosts to process in parallel.
    pub(crate) fn parallel(&self) -> usize {
        self.parallel.map_or(PARALLEL, usize::from)
    }
}

/// Returns the values of `flags` where they are set, otherwise those of `stored`.
fn preferred(flags: &Login, stored: &Login) -> Login {
    let (own_keys, keys) = if flags.keys.is_empty() {
        (stored.key_data.clone(), stored.keys.clone())
    } else {
        (flags.key_data.clone(), flags.keys.clone())
    };
    Login {
        user: flags.user.clone().or_else(|| stored.user.clone()),
        password: flags.password.clone().or_else(|| stored.password.clone()),
        keys,
        key_data: own_keys,
        key_passphrase: flags.key_passphrase.clone().or_else(|| stored.key_passphrase.clone()),
        sudo_password: flags.sudo_password.clone().or_else(|| stored.sudo_password.clone()),
        jump: flags.jump.clone().or_else(|| stored.jump.clone()),
    }
}

/// Selects the hosts of a cluster that have one of the roles and one of the addresses; an empty
/// list selects all. An address that is not a host of the cluster is an error; its port counts only
/// if it is not 22.
pub(crate) fn select(hosts: Vec<Host>, roles: &[String], ips: &[Address]) -> Result<Vec<Host>> {
    let is = |host: &Host, address: &Address| {
        host.address == *address
            || (address.port == imgctl_host::host::address::SSH_PORT
                && host.address.name == address.name)
    };
    let stranger = ips.iter().find(|address| !hosts.iter().any(|host| is(host, address)));
    if let Some(stranger) = stranger {
        return Err(Error::not_found(format!("{stranger} is not a host of the cluster")));
    }
    let wanted = |host: &Host| {
        (roles.is_empty() || roles.iter().any(|role| host.has_role(role)))
            && (ips.is_empty() || ips.iter().any(|address| is(host, address)))
    };
    let selected: Vec<Host> = hosts.into_iter().filter(wanted).collect();
    if selected.is_empty() {
        return Err(Error::not_found("the cluster has no such host")
            .hint("run `imgctl status` to see the hosts and their roles"));
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str, roles: &[&str]) -> Host {
        Host {
            address: parse_list(address, 22).unwrap().remove(0),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            environment: std::collections::BTreeMap::new(),
            login: Login::default(),
            local: false,
        }
    }

    #[test]
    fn roles_and_addresses_narrow_down_together() {
        let hosts = || {
            vec![
                host("10.0.0.1", &["master"]),
                host("10.0.0.2:2222", &["node"]),
                host("10.0.0.3", &["node"]),
            ]
        };
        let names = |roles: &[&str], ips: &str| {
            let roles: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
            select(hosts(), &roles, &parse_list(ips, 22).unwrap())
                .map(|hosts| hosts.iter().map(Host::id).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], "").unwrap().len(), 3);
        assert_eq!(names(&["node"], "").unwrap(), ["10.0.0.2:2222", "10.0.0.3"]);
        assert_eq!(names(&["node"], "10.0.0.2").unwrap(), ["10.0.0.2:2222"]);
        assert!(names(&["master"], "10.0.0.2").is_err());
        assert!(names(&[], "10.0.0.9").is_err());
    }
}
