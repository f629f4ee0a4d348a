//! Converts `spec.hosts` and `spec.ssh` to [`Host`]s that can be logged in to.

use std::path::{Path, PathBuf};
use std::{collections::BTreeSet, io::Read, net::IpAddr};

use crate::clusterfile::login::{SecretSource, Ssh};
use crate::clusterfile::model::{ClusterDocument, HostGroup};
use crate::context::{Host, MASTER, NODE};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::secret::Secret;
use imgctl_host::host::address::{self, Address, SSH_PORT};
use imgctl_host::host::login::Login;

/// Maximum size of a file that holds a secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// Environment that a Clusterfile's references resolve against; provided by cli/.
pub struct Surroundings<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Replacement for `~` in paths.
    pub home: Option<PathBuf>,
    /// Addresses of this machine: hosts with these addresses are reached without SSH.
    pub local: Vec<IpAddr>,
}

impl ClusterDocument {
    /// Returns all hosts in order. Fails for an address that is invalid or repeated, a secret that
    /// is missing from the named place, or a cluster without a control plane.
    pub fn hosts(&self, surroundings: &Surroundings<'_>) -> Result<Vec<Host>> {
        let cluster_port = self.ssh.port.unwrap_or(SSH_PORT);
        let mut seen = BTreeSet::new();
        let mut hosts = Vec::new();
        for group in &self.hosts {
            let ssh = self.ssh_of(group);
            let login = login(&ssh, surroundings)
                .context(|| format!("cannot log in to {}", group.ips.join(", ")))?;
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
            return Err(Error::usage(format!("no host has the role `{MASTER}`"))
                .hint(format!("the first host can be both: roles [{MASTER}, {NODE}]")));
        }
        Ok(hosts)
    }

    /// Returns whether an entry with an address has the role of control planes.
    pub(crate) fn lists_control_plane(&self) -> bool {
        let is_one = |group: &HostGroup| group.roles.iter().any(|role| role == MASTER);
        self.hosts.iter().any(|group| is_one(group) && !group.ips.is_empty())
    }

    /// Makes relative paths of keys and secrets begin at `directory`, so that they count from anywhere.
    pub fn root_paths(&mut self, directory: &Path) {
        let own = self.hosts.iter_mut().filter_map(|group| group.ssh.as_mut());
        own.chain([&mut self.ssh]).for_each(|ssh| ssh.root_paths(directory));
    }

    /// Returns the addresses of a group. Fails for one that is invalid.
    pub fn addresses_of(&self, group: &HostGroup) -> Result<Vec<Address>> {
        let port = self.ssh_of(group).port.unwrap_or(SSH_PORT);
        let mut addresses = Vec::new();
        for ip in &group.ips {
            addresses.extend(address::parse_list(ip, port)?);
        }
        Ok(addresses)
    }

    /// Returns `spec.ssh`, overridden by the entry's own values.
    fn ssh_of(&self, group: &HostGroup) -> Ssh {
        match &group.ssh {
            Some(own) => self.ssh.overlaid(own),
            None => self.ssh.clone(),
        }
    }
}

/// Whether a host is the local machine: it has one of this machine's addresses and the port that
/// all hosts have. Another port may lead to something else that listens here.
fn is_local(address: &Address, cluster_port: u16, local: &[IpAddr]) -> bool {
    let Ok(ip) = address.name.parse::<IpAddr>() else {
        return address.name == "localhost" && address.port == SSH_PORT;
    };
    if ip.is_loopback() {
        address.port == SSH_PORT
    } else {
        local.contains(&ip) && [SSH_PORT, cluster_port].contains(&address.port)
    }
}

/// Returns the SSH login, with its secrets read.
pub(super) fn login(ssh: &Ssh, surroundings: &Surroundings<'_>) -> Result<Login> {
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
        keys: ssh.keys.iter().map(|key| expand(Path::new(key), surroundings)).collect(),
        key_data: fetch(&ssh.key_data, "private key", true)?.into_iter().collect(),
        key_passphrase: fetch(&ssh.key_passphrase, "passphrase", false)?,
        sudo_password: fetch(&ssh.sudo_password, "password for sudo", false)?,
        jump: ssh.jump.clone(),
        is_recorded: false,
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
    Ok(if whole { Secret::new(text) } else { Secret::new(text.lines().next().unwrap_or_default()) })
}

/// Expands `~/` to the user's home directory.
fn expand(path: &Path, surroundings: &Surroundings<'_>) -> PathBuf {
    match (path.strip_prefix("~"), &surroundings.home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusterfile::read;

    fn hosts(spec: &str, surroundings: &Surroundings<'_>) -> Result<Vec<Host>> {
        let text = format!(
            "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata: {{name: a}}\nspec:\n{spec}"
        );
        read(&text, "f")?.0.cluster.hosts(surroundings)
    }

    fn here(local: &[&str]) -> Surroundings<'static> {
        Surroundings {
            variable: &|name| (name == "PW").then(|| "from-variable".to_owned()),
            home: Some("/home/x".into()),
            local: local.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_host_has_the_clusters_login_and_its_own_on_top() {
        let spec = "  ssh: {user: root, passwdFrom: {env: PW}, pk: ~/.ssh/a, pkPasswd: pp, jump: bastion}\n  hosts:\n  - {ips: [10.0.0.1], roles: [master]}\n  - {ips: ['10.0.0.2', '10.0.0.3:99'], roles: [node], ssh: {user: ops, pkData: KEY, port: 2222}}\n";
        let found = hosts(spec, &here(&[])).unwrap();
        let [first, second, third] = &found[..] else { panic!("{found:?}") };
        assert_eq!(first.login.user.as_deref(), Some("root"));
        assert_eq!(first.login.keys, [PathBuf::from("/home/x/.ssh/a")]);
        assert_eq!(first.login.password, Some(Secret::new("from-variable")));
        assert_eq!(first.address.port, 22);
        assert_eq!(second.login.user.as_deref(), Some("ops"));
        assert!(second.login.keys.is_empty());
        assert_eq!(second.login.key_data, [Secret::new("KEY")]);
        assert_eq!(second.login.jump.as_deref(), Some("bastion"));
        assert_eq!((second.address.port, third.address.port), (2222, 99));
    }

    #[test]
    fn relative_paths_begin_at_a_directory_and_no_others() {
        let text = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata: {name: a}\nspec:\n  ssh: {pk: [key, ~/key, /key], passwdFrom: {file: d/pw}}\n  hosts: [{ips: [10.0.0.1], roles: [master], ssh: {pk: ../own, sudoPasswdFrom: {env: PW}}}]\n";
        let mut cluster = read(text, "f").unwrap().0.cluster;
        cluster.root_paths(Path::new("/work"));
        assert_eq!(cluster.ssh.keys, ["/work/key", "~/key", "/key"]);
        assert_eq!(cluster.ssh.password, Some(SecretSource::File("/work/d/pw".into())));
        let own = cluster.hosts[0].ssh.as_ref().unwrap();
        assert_eq!(own.keys, ["/work/../own"]);
        assert_eq!(own.sudo_password, Some(SecretSource::Variable("PW".into())));
    }

    #[test]
    fn secrets_in_files_and_what_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pw");
        std::fs::write(&file, "in-file\nsecond line\n").unwrap();
        let spec = |reference: &str| {
            format!(
                "  ssh: {{passwdFrom: {reference}}}\n  hosts: [{{ips: [10.0.0.1], roles: [master]}}]\n"
            )
        };
        let reference = format!("{{file: {}}}", file.display());
        let found = hosts(&spec(&reference), &here(&[])).unwrap();
        assert_eq!(found[0].login.password, Some(Secret::new("in-file")));
        for (reference, expected) in
            [("{env: NOT_SET}", "NOT_SET is not set"), ("{file: /no/such/file}", "/no/such/file")]
        {
            let error = hosts(&spec(reference), &here(&[])).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn this_machine_is_reached_without_ssh_unless_a_port_leads_elsewhere() {
        for (ip, local, expected) in [
            ("10.0.0.5", &["10.0.0.5"][..], true),
            ("10.0.0.6", &["10.0.0.5"], false),
            ("10.0.0.5:2201", &["10.0.0.5"], false),
            ("127.0.0.1", &[], true),
            ("127.0.0.1:2201", &[], false),
            ("localhost", &[], true),
            ("elsewhere", &["10.0.0.5"], false),
        ] {
            let spec = format!("  hosts: [{{ips: ['{ip}'], roles: [master]}}]\n");
            let found = hosts(&spec, &here(local)).unwrap();
            assert_eq!(found[0].local, expected, "{ip} {local:?}");
        }
    }

    #[test]
    fn twice_the_same_host_and_no_control_plane_are_refused() {
        for (spec, expected) in [
            (
                "  hosts:\n  - {ips: [10.0.0.1], roles: [master]}\n  - {ips: ['10.0.0.1:22'], roles: [node]}\n",
                "listed twice",
            ),
            ("  hosts: [{ips: [10.0.0.1], roles: [node]}]\n", "no host has the role `master`"),
        ] {
            let error = hosts(spec, &here(&[])).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(hosts("  image: []\n", &here(&[])).unwrap().is_empty());
    }
}
