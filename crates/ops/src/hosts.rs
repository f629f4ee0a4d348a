//! Selection of hosts, and work on many of them: done in parallel, reported in the order of the
//! hosts.

use crate::operation::LoginFrom;
use crate::session::Session;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::workers::map;
use imgctl_host::host::address::{Address, SSH_PORT, parse_list};
use imgctl_host::host::{connect::Connections, login::Login};
use imgctl_model::{
    context::{ClusterContext, Host},
    name,
};

/// Hosts to work on: those of the list, or those of a cluster with its logins.
#[derive(Clone, Debug, Default)]
pub struct HostSelection {
    /// A list of addresses, names, ranges and CIDRs. With a cluster or roles, it filters the
    /// cluster's hosts.
    pub list: Option<String>,
    pub cluster: Option<String>,
    /// Only hosts of the cluster with one of these roles.
    pub roles: Vec<String>,
}

impl HostSelection {
    pub fn resolve(&self, session: &Session<'_>) -> Result<(Vec<Host>, Connections)> {
        let (login, port) = (&session.ssh.login, session.ssh.port.unwrap_or(SSH_PORT));
        let ips = parse_list(self.list.as_deref().unwrap_or_default(), port)?;
        let hosts = if self.cluster.is_some() || !self.roles.is_empty() || ips.is_empty() {
            self.of_cluster(&ips, login, session)?
        } else {
            let known = known(session);
            let host = |address: Address| {
                let known = known.iter().find(|host| is_at(host, &address));
                Host {
                    roles: Vec::new(),
                    environment: std::collections::BTreeMap::new(),
                    login: match known {
                        Some(known) => preferred(login, &known.login),
                        None => login.clone(),
                    },
                    local: false,
                    address: known.map_or(address, |known| known.address.clone()),
                }
            };
            ips.into_iter().map(host).collect()
        };
        Ok((hosts, Connections::new(session.ssh.settings.clone())?))
    }

    /// Returns the hosts of a cluster; the session's login overrides the stored logins.
    fn of_cluster(
        &self,
        ips: &[Address],
        login: &Login,
        session: &Session<'_>,
    ) -> Result<Vec<Host>> {
        let cluster = session.controller.cluster_meant(self.cluster.as_deref())?;
        let stored = session.state(&cluster)?.require().map_err(|error| {
            if self.cluster.is_some() || !self.roles.is_empty() {
                return error;
            }
            error.hint("or pass hosts: --ips 10.0.0.11,10.0.0.12 (or a range, a CIDR, names)")
        });
        let (clusterfile, _) = stored?;
        let hosts = session.with_surroundings(|around| clusterfile.cluster.hosts(around))?;
        let mut chosen = select(hosts, &self.roles, ips)?;
        for host in &mut chosen {
            host.login = preferred(login, &host.login);
        }
        Ok(chosen)
    }
}

/// Returns the hosts of the default cluster, if there is one: their logins count for hosts given by address
/// alone, as in sealos.
fn known(session: &Session<'_>) -> Vec<Host> {
    let hosts = || {
        let (clusterfile, _) = session.state(name::DEFAULT)?.require()?;
        session.with_surroundings(|around| clusterfile.cluster.hosts(around))
    };
    // A cluster that cannot be read does not matter to hosts outside it.
    hosts().unwrap_or_else(|error| {
        tracing::debug!("no logins of cluster {}: {error}", name::DEFAULT);
        Vec::new()
    })
}

/// Returns whether the address means the host; its port counts only if it is not 22.
fn is_at(host: &Host, address: &Address) -> bool {
    host.address == *address || (address.port == SSH_PORT && host.address.name == address.name)
}

/// Decides how to log in to the hosts of a cluster. `is_member`: hosts whose login is recorded, and not
/// that of new hosts.
pub(crate) fn log_in(
    context: &mut ClusterContext,
    from: LoginFrom,
    flags: &Login,
    is_member: &dyn Fn(&Host) -> bool,
) {
    for host in context.hosts.iter_mut().chain(&mut context.leaving) {
        match from {
            LoginFrom::Flags => host.login = preferred(flags, &host.login),
            LoginFrom::Record => host.login.is_recorded = is_member(host),
        }
    }
}

/// Returns the values of `flags` where they are set, otherwise those of `stored`.
pub(crate) fn preferred(flags: &Login, stored: &Login) -> Login {
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
        is_recorded: false,
    }
}

/// Selects the hosts of a cluster that have one of the roles and one of the addresses; an empty
/// list selects all. An address that is not a host of the cluster is an error; its port counts only
/// if it is not 22.
fn select(hosts: Vec<Host>, roles: &[String], ips: &[Address]) -> Result<Vec<Host>> {
    let stranger = ips.iter().find(|address| !hosts.iter().any(|host| is_at(host, address)));
    if let Some(stranger) = stranger {
        return Err(Error::not_found(format!("{stranger} is not a host of the cluster")));
    }
    let wanted = |host: &Host| {
        (roles.is_empty() || roles.iter().any(|role| host.has_role(role)))
            && (ips.is_empty() || ips.iter().any(|address| is_at(host, address)))
    };
    let selected: Vec<Host> = hosts.into_iter().filter(wanted).collect();
    if selected.is_empty() {
        return Err(Error::not_found("the cluster has no such host")
            .hint("run `imgctl status` to see the hosts and their roles"));
    }
    Ok(selected)
}

/// Runs `work` for each host, at most `parallel` at once, started in host order; returns the
/// results in host order.
pub fn for_each<T: Send>(
    hosts: &[Host],
    parallel: usize,
    work: impl Fn(usize, &Host) -> T + Sync,
) -> Vec<T> {
    map(hosts.iter().enumerate(), parallel, |(index, host)| work(index, host))
}

/// Returns one error for all failed hosts, or `None` if none failed. A single failed host keeps its
/// own error.
pub fn sum_up(doing: &str, hosts: usize, mut failed: Vec<(String, Error)>) -> Option<Error> {
    if failed.len() <= 1 {
        return failed.pop().map(|(_, error)| error);
    }
    let first = failed.first().map_or(Kind::Failed, |(_, error)| error.kind());
    let same = failed.iter().all(|(_, error)| error.kind() == first);
    let kind = if same { first } else { Kind::CommandFailed };
    let reasons: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
    let mut whole =
        Error::new(kind, format!("cannot {doing} on {} of {hosts} hosts", failed.len()))
            .caused_by(Error::several(kind, reasons));
    let mut hints: Vec<&str> = failed.iter().flat_map(|(_, error)| error.hints()).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        whole = whole.hint(hint);
    }
    Some(whole)
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

    #[test]
    fn flags_log_in_where_they_are_for_no_new_hosts() {
        let stored = Login {
            user: Some("ops".into()),
            key_data: vec![imgctl_base::secret::Secret::new("key")],
            ..Login::default()
        };
        let flags = Login { keys: vec!["/k".into()], ..Login::default() };
        for (from, given, is_flag) in [
            (LoginFrom::Flags, &flags, true),
            (LoginFrom::Record, &flags, false),
            (LoginFrom::Flags, &Login::default(), false),
        ] {
            let hosts = imgctl_workflow::pipeline::testing::hosts(1, 1);
            let mut context = imgctl_workflow::pipeline::testing::sample_context(
                "c",
                hosts,
                std::path::Path::new("/nowhere"),
            );
            context.leaving = context.hosts.split_off(1);
            context.hosts[0].login = stored.clone();
            context.leaving[0].login = stored.clone();
            let new = context.hosts[0].id();
            log_in(&mut context, from, given, &|host| host.id() != new);
            let recorded = context.hosts.iter().chain(&context.leaving);
            let recorded: Vec<bool> = recorded.map(|host| host.login.is_recorded).collect();
            // What errors may advise: flags change the login of a new host alone.
            assert_eq!(recorded, [false, from == LoginFrom::Record], "{from:?}");
            for host in context.hosts.iter().chain(&context.leaving) {
                assert_eq!(host.login.user.as_deref(), Some("ops"), "{from:?}");
                assert_eq!(host.login.keys.len(), usize::from(is_flag), "{from:?}");
                assert_eq!(host.login.key_data.is_empty(), is_flag, "{from:?}");
            }
        }
    }
}
