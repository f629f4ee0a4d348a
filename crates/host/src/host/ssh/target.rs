//! Everything known about a host before the connection: from its address, its login, the settings
//! and ssh_config. Must not depend on connections.

use std::path::PathBuf;
use std::time::Duration;

use crate::host::address::{Address, SSH_PORT, parse_one};
use crate::host::login::{HostKeys, Login, Settings};
use crate::host::ssh_config::{Asker, Config, HostConfig};
use imgctl_base::error::{Error, Result};

/// Default key files of OpenSSH, below `~/.ssh`.
const USUAL_KEYS: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// A lost host is noticed within this many keepalive intervals, unless ssh_config says otherwise.
const ALIVE_COUNT: usize = 4;

/// Address, user, credentials and key policy of a host.
#[derive(Clone, Debug)]
pub(in crate::host) struct Target {
    /// Name of the host in messages.
    pub(in crate::host) label: String,
    /// Address to connect to; differs from the label if ssh_config says so.
    pub(in crate::host) address: Address,
    /// Name of the host in known_hosts.
    pub(in crate::host) known_as: Address,
    pub(in crate::host) user: String,
    pub(in crate::host) login: Login,
    /// Explicitly named key files; an unreadable one is reported.
    pub(in crate::host) named_keys: Vec<PathBuf>,
    /// Default key files, tried if they exist.
    pub(in crate::host) usual_keys: Vec<PathBuf>,
    pub(in crate::host) agent: Option<PathBuf>,
    pub(in crate::host) identities_only: bool,
    pub(in crate::host) host_keys: HostKeys,
    pub(in crate::host) known_hosts: Vec<PathBuf>,
    /// `HostKeyAlgorithms` of ssh_config.
    pub(in crate::host) host_key_algorithms: Option<String>,
    /// `PubkeyAcceptedAlgorithms` of ssh_config.
    pub(in crate::host) login_key_algorithms: Option<String>,
    pub(in crate::host) connect_timeout: Duration,
    /// How long a silent connection waits for the next keepalive message; `None` sends none.
    pub(in crate::host) alive_interval: Option<Duration>,
    /// Number of unanswered keepalive messages after which a connection counts as lost.
    pub(in crate::host) alive_count: usize,
    pub(in crate::host) retries: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host) struct Hop {
    pub(in crate::host) user: Option<String>,
    pub(in crate::host) address: Address,
}

/// Looks up the ssh_config settings of a host.
pub(in crate::host) fn configured(
    address: &Address,
    login: &Login,
    settings: &Settings,
    config: &Config,
) -> HostConfig {
    let asker =
        Asker { home: settings.home.as_deref(), local_user: settings.local_user.as_deref() };
    config.lookup(&address.name, login.user.as_deref(), &asker)
}

impl Target {
    pub(in crate::host) fn new(
        address: &Address,
        login: &Login,
        settings: &Settings,
        found: &HostConfig,
    ) -> Self {
        let user = login.user.clone().or_else(|| found.user.clone());
        let called = Address {
            name: found.host_name.clone().unwrap_or(address.name.clone()),
            // Port 22 in the host list counts as not set.
            port: match address.port {
                SSH_PORT => found.port.unwrap_or(SSH_PORT),
                port => port,
            },
        };
        let known_as = match &found.host_key_alias {
            Some(alias) => Address { name: alias.clone(), port: SSH_PORT },
            None => called.clone(),
        };
        let mut named_keys = login.keys.clone();
        named_keys.extend(found.identity_files.iter().cloned());
        let usual = || {
            let home = settings.home.as_ref()?;
            Some(USUAL_KEYS.map(|name| home.join(".ssh").join(name)).to_vec())
        };
        let usual_keys =
            if named_keys.is_empty() { usual().unwrap_or_default() } else { Vec::new() };
        let agent = match found.identity_agent.as_deref() {
            Some("none") => None,
            Some("SSH_AUTH_SOCK") | None => settings.agent_socket.clone(),
            Some(path) => Some(PathBuf::from(path)),
        };
        let mut known_hosts = settings.known_hosts.clone();
        if let Some(files) = &found.known_hosts {
            known_hosts.splice(0..known_hosts.len().min(1), files.iter().cloned());
        }
        Self {
            label: address.to_string(),
            user: user.unwrap_or_else(|| "root".to_owned()),
            login: login.clone(),
            named_keys,
            usual_keys,
            agent,
            identities_only: found.identities_only.unwrap_or(false),
            host_keys: match found.strict {
                Some(true) => HostKeys::Strict,
                _ => settings.host_keys,
            },
            known_hosts,
            host_key_algorithms: found.host_key_algorithms.clone(),
            login_key_algorithms: found.login_key_algorithms.clone(),
            connect_timeout: found.connect_timeout.unwrap_or(settings.connect_timeout),
            alive_interval: Some(found.alive_interval.unwrap_or(settings.alive_interval))
                .filter(|interval| !interval.is_zero()),
            alive_count: found.alive_count.unwrap_or(ALIVE_COUNT),
            retries: settings.retries,
            known_as,
            address: called,
        }
    }
}

/// Parses `user@host:port,…` as in ssh's `-J`; `none` means no hops.
pub(in crate::host) fn parse_jump(text: &str) -> Result<Vec<Hop>> {
    if text.eq_ignore_ascii_case("none") || text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|hop| {
            let hop = hop.trim();
            let rest = hop.strip_prefix("ssh://").unwrap_or(hop);
            let (user, rest) = match rest.rsplit_once('@') {
                Some((user, rest)) => (Some(user.to_owned()), rest),
                None => (None, rest),
            };
            if user.as_deref() == Some("") {
                return Err(Error::usage(format!("the jump host `{hop}` has an empty user name")));
            }
            let address = parse_one(rest, SSH_PORT)
                .map_err(|error| error.context(format!("cannot read the jump hosts `{text}`")))?;
            Ok(Hop { user, address })
        })
        .collect()
}
