//! From `spec.hosts` and `spec.ssh` to [`Host`]s that can be logged in to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::cluster::clusterfile::login::{SecretSource, Ssh};
use crate::cluster::clusterfile::model::{ClusterDocument, HostGroup};
use crate::cluster::host::{Host, MASTER, NODE};
use crate::error::{Context, Error, IoContext, Result};
use crate::host::address::{self, Address, SSH_PORT};
use crate::host::login::Login;
use crate::secret::Secret;

/// Longest file that holds a secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// What a Clusterfile's references refer to; filled in by cli/.
pub(crate) struct Surroundings<'a> {
    /// Looks a variable of the environment up.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// `~` in paths.
    pub(crate) home: Option<PathBuf>,
    /// This machine's addresses: its hosts are reached without SSH.
    pub(crate) local: Vec<IpAddr>,
}

impl ClusterDocument {
    /// All hosts in order. Errors: an address that means nothing or stands twice, a secret that
    /// is not where the file says, no control plane.
    pub(crate) fn hosts(&self, surroundings: &Surroundings<'_>) -> Result<Vec<Host>> {
        let cluster_port = self.ssh.port.unwrap_or(SSH_PORT);
        let mut logins: BTreeMap<usize, Login> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut hosts = Vec::new();
        for (at, group) in self.hosts.iter().enumerate() {
            let ssh = self.ssh_of(group);
            let login = match logins.get(&at) {
                Some(login) => login.clone(),
                None => {
                    let login = login(&ssh, surroundings)
                        .context(|| format!("cannot log in to {}", group.ips.join(", ")))?;
                    logins.insert(at, login.clone());
                    login
                }
            };
            for address in self.addresses_of(group)? {
                if !seen.insert(address.clone()) {
                    return Err(Error::usage(format!("host {address} is listed twice")));
                }
                hosts.push(Host {
                    local: is_local(&address, cluster_port, &surroundings.local),
                    address,
                    roles: group.roles.clone(),
                    environment: group.environment.clone(),
                    login: login.clone(),
                });
            }
        }
        if !hosts.is_empty() && !hosts.iter().any(Host::is_control_plane) {
            return Err(
                Error::usage(format!("no host has the role `{MASTER}`")).hint(format!(
                    "the first host may be both: roles [{MASTER}, {NODE}]"
                )),
            );
        }
        Ok(hosts)
    }

    /// The addresses of one entry.
    pub(crate) fn addresses_of(&self, group: &HostGroup) -> Result<Vec<Address>> {
        let port = self.ssh_of(group).port.unwrap_or(SSH_PORT);
        let mut addresses = Vec::new();
        for ip in &group.ips {
            addresses.extend(address::parse_list(ip, port)?);
        }
        Ok(addresses)
    }

    /// `spec.ssh` with the entry's own on top.
    fn ssh_of(&self, group: &HostGroup) -> Ssh {
        match &group.ssh {
            Some(own) => self.ssh.overlaid(own),
            None => self.ssh.clone(),
        }
    }
}

/// A host of ours is the machine we run on when it has one of its addresses under the port that
/// all hosts have; another port may lead to something else that listens here.
fn is_local(address: &Address, cluster_port: u16, local: &[IpAddr]) -> bool {
    let Ok(ip) = address.name.parse::<IpAddr>() else {
        return address.name == "localhost" && address.port == SSH_PORT;
    };
    match ip.is_loopback() {
        true => address.port == SSH_PORT,
        false => local.contains(&ip) && [SSH_PORT, cluster_port].contains(&address.port),
    }
}

/// What SSH needs, with secrets fetched.
pub(crate) fn login(ssh: &Ssh, surroundings: &Surroundings<'_>) -> Result<Login> {
    let fetch = |source: &Option<SecretSource>, what: &str, whole: bool| {
        source
            .as_ref()
            .map(|source| fetch(source, whole, surroundings))
            .transpose()
            .context(|| format!("cannot read the {what}"))
    };
    Ok(Login {
        user: ssh.user.clone(),
        password: fetch(&ssh.password, "password", false)?,
        keys: ssh
            .keys
            .iter()
            .map(|key| expand(Path::new(key), surroundings))
            .collect(),
        key_data: fetch(&ssh.key_data, "private key", true)?
            .into_iter()
            .collect(),
        key_passphrase: fetch(&ssh.key_passphrase, "passphrase", false)?,
        sudo_password: fetch(&ssh.sudo_password, "password for sudo", false)?,
        jump: ssh.jump.clone(),
    })
}

fn fetch(source: &SecretSource, whole: bool, surroundings: &Surroundings<'_>) -> Result<Secret> {
    let text = match source {
        SecretSource::Inline(secret) => return Ok(secret.clone()),
        SecretSource::Variable(name) => (surroundings.variable)(name).ok_or_else(|| {
            Error::not_found(format!("the variable {name} is not set"))
                .hint(format!("the Clusterfile refers to it: export {name}=…"))
        })?,
        SecretSource::File(path) => {
            let path = expand(path, surroundings);
            let mut text = String::new();
            std::fs::File::open(&path)
                .and_then(|file| file.take(MAX_SECRET).read_to_string(&mut text))
                .path("read", &path)?;
            text
        }
    };
    Ok(match whole {
        true => Secret::new(text),
        false => Secret::new(text.lines().next().unwrap_or_default()),
    })
}

/// `~/` is the user's home.
fn expand(path: &Path, surroundings: &Surroundings<'_>) -> PathBuf {
    match (path.strip_prefix("~"), &surroundings.home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}
