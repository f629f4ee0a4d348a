//! Converts the command line to changes of the Clusterfile: added and removed hosts, images,
//! variables, documents.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::Value;

use crate::clusterfile::{
    ClusterDocument, Clusterfile, HostGroup, SecretSource, Ssh, Surroundings,
};
use crate::context::{Host, MASTER, NODE, REGISTRY};
use crate::name;
use imgctl_base::error::{Error, Result};
use imgctl_host::host::address::{self, Address, SSH_PORT};
use imgctl_host::host::login::Login;

/// Hosts as given on the command line.
#[derive(Clone, Debug, Default)]
pub struct HostFlags {
    /// `--masters`, as typed.
    pub masters: Option<String>,
    /// `--nodes`.
    pub nodes: Option<String>,
    /// `--registry-hosts`: hosts of the cluster that also get the role `registry`.
    pub registry: Option<String>,
    pub ssh: Ssh,
    /// `--local`, or `--masters localhost`: a new cluster consists of this machine.
    pub local: bool,
}

impl HostFlags {
    /// Returns the flags with or without the consent to make this machine a cluster.
    #[must_use]
    pub fn on_this_machine(mut self, local: bool) -> Self {
        self.local = local;
        self
    }

    pub fn is_empty(&self) -> bool {
        self.masters.is_none() && self.nodes.is_none()
    }

    /// Returns the control planes and the workers.
    pub fn parse(&self) -> Result<(Vec<Address>, Vec<Address>)> {
        let port = self.ssh.port.unwrap_or(SSH_PORT);
        let list = |flag: &Option<String>, name: &str| match flag {
            Some(text) if text.trim().is_empty() => {
                Err(Error::usage(format!("{name} names no host")))
            }
            Some(text) => address::parse_list(text, port),
            None => Ok(Vec::new()),
        };
        let masters = list(&self.masters, "--masters")?;
        let nodes = list(&self.nodes, "--nodes")?;
        if let Some(both) = masters.iter().find(|address| nodes.contains(address)) {
            return Err(Error::usage(format!("{both} is listed under both masters and nodes"))
                .hint("list a control plane that also runs workloads under masters only"));
        }
        Ok((masters, nodes))
    }
}

impl Ssh {
    /// Returns the SSH settings of the flags, including `port`.
    pub fn of_login(login: &Login, port: Option<u16>) -> Self {
        let inline =
            |secret: &Option<imgctl_base::secret::Secret>| secret.clone().map(SecretSource::Inline);
        Self {
            user: login.user.clone(),
            password: inline(&login.password),
            key_name: None,
            key_data: login.key_data.first().cloned().map(SecretSource::Inline),
            keys: login.keys.iter().map(|key| key.to_string_lossy().into_owned()).collect(),
            key_passphrase: inline(&login.key_passphrase),
            sudo_password: inline(&login.sudo_password),
            jump: login.jump.clone(),
            port,
        }
    }

    /// Returns these settings, with those of `recorded` for what they leave open. A key or a password
    /// replaces the recorded way to log in as a whole.
    #[must_use]
    pub fn or(&self, recorded: &Self) -> Self {
        let mut whole = self.clone();
        let logs_in = self.password.is_some() || self.key_data.is_some() || !self.keys.is_empty();
        if !logs_in {
            whole.password.clone_from(&recorded.password);
            whole.key_name.clone_from(&recorded.key_name);
            whole.key_data.clone_from(&recorded.key_data);
            whole.keys.clone_from(&recorded.keys);
            whole.key_passphrase = whole.key_passphrase.or(recorded.key_passphrase.clone());
        }
        whole.user = whole.user.or_else(|| recorded.user.clone());
        whole.sudo_password = whole.sudo_password.or_else(|| recorded.sudo_password.clone());
        whole.jump = whole.jump.or_else(|| recorded.jump.clone());
        whole.port = whole.port.or(recorded.port);
        whole
    }

    /// Returns the members of `flags` that differ from this: the new hosts' own settings.
    fn differences(&self, flags: &Self) -> Option<Self> {
        fn clear<T: PartialEq>(own: &mut Option<T>, ours: &Option<T>) {
            if own == ours {
                *own = None;
            }
        }
        let mut own = flags.clone();
        clear(&mut own.password, &self.password);
        clear(&mut own.key_data, &self.key_data);
        clear(&mut own.key_passphrase, &self.key_passphrase);
        clear(&mut own.sudo_password, &self.sudo_password);
        clear(&mut own.user, &self.user);
        clear(&mut own.key_name, &self.key_name);
        clear(&mut own.jump, &self.jump);
        if own.keys == self.keys {
            own.keys.clear();
        }
        // Each address has its own port.
        own.port = None;
        (!own.is_empty()).then_some(own)
    }
}

impl Clusterfile {
    /// Returns a new cluster. Without hosts, it is the local machine, under `own_address`.
    pub fn new(
        name: &str,
        images: &[String],
        flags: &HostFlags,
        own_address: IpAddr,
    ) -> Result<Self> {
        name::check(name)?;
        let mut made = Self {
            cluster: ClusterDocument {
                name: name.to_owned(),
                ssh: flags.ssh.clone(),
                ..ClusterDocument::default()
            },
            ..Self::default()
        };
        made.cluster.add_images(images);
        let mut flags = flags.clone();
        if flags.masters.is_none() {
            if flags.nodes.is_some() {
                return Err(Error::usage("nodes are listed, but no master")
                    .hint("name at least one control plane with --masters"));
            }
            // The local machine needs no SSH port.
            flags.ssh.port = None;
            flags.masters = Some(match own_address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]:{SSH_PORT}"),
            });
        }
        made.cluster.add_hosts(&flags)?;
        Ok(made)
    }

    /// Adds the documents of a `--config-file`. Replaces a Config of the same name and a document
    /// of the same kind.
    pub fn add_documents(&mut self, additions: Self) {
        for config in additions.configs {
            match self.configs.iter_mut().find(|own| own.name == config.name) {
                Some(own) => *own = config,
                None => self.configs.push(config),
            }
        }
        let kind = |document: &Value| document.get("kind").cloned();
        for document in additions.documents {
            let same = |own: &&mut Value| kind(own) == kind(&document);
            match self.documents.iter_mut().find(same) {
                Some(own) => *own = document,
                None => self.documents.push(document),
            }
        }
        self.others.extend(additions.others);
    }
}

impl ClusterDocument {
    /// Appends the images that are not listed yet.
    pub fn add_images(&mut self, images: &[String]) {
        for image in images {
            if !self.images.contains(image) {
                self.images.push(image.clone());
            }
        }
    }

    /// Sets the variables of `--env`, which stay in `status.env` until they are changed.
    pub fn set_flag_environment(&mut self, environment: &BTreeMap<String, String>) {
        let set = environment.iter();
        self.status.environment.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    }

    /// Adds hosts, one group per role, with the login of `flags` where it differs from the
    /// cluster's. Returns the new addresses.
    pub fn add_hosts(&mut self, flags: &HostFlags) -> Result<Vec<Address>> {
        let (masters, nodes) = flags.parse()?;
        let present = self.addresses()?;
        let known =
            |new: &&Address| present.iter().any(|old| old.name == new.name && old.port == new.port);
        if let Some(double) = masters.iter().chain(&nodes).find(known) {
            return Err(Error::usage(format!(
                "host {double} already belongs to cluster `{}`",
                self.name
            )));
        }
        let ssh = self.ssh.differences(&flags.ssh);
        for (addresses, role) in [(&masters, MASTER), (&nodes, NODE)] {
            if !addresses.is_empty() {
                self.hosts.push(HostGroup {
                    ips: addresses.iter().map(written).collect(),
                    roles: vec![role.to_owned()],
                    environment: BTreeMap::new(),
                    ssh: ssh.clone(),
                });
            }
        }
        if let Some(registry) = &flags.registry {
            self.give_role(registry, REGISTRY)?;
        }
        Ok(masters.into_iter().chain(nodes).collect())
    }

    /// Removes hosts. The port may be omitted if the host is unambiguous.
    pub fn remove_hosts(&mut self, hosts: &[Address]) -> Result<Vec<Address>> {
        let first = self.first_control_plane()?;
        let mut gone = Vec::new();
        for wanted in hosts {
            let address = self.find(wanted)?;
            if first.as_ref() == Some(&address) {
                return Err(Error::usage(format!(
                    "{address} is the first control plane and cannot be removed"
                ))
                .hint("`imgctl reset` removes the whole cluster"));
            }
            self.take(&address)?;
            gone.push(address);
        }
        Ok(gone)
    }

    pub fn addresses(&self) -> Result<Vec<Address>> {
        let mut all = Vec::new();
        for group in &self.hosts {
            all.extend(self.addresses_of(group)?);
        }
        Ok(all)
    }

    /// Returns each host in a group of its own with its complete login.
    pub fn one_by_one(&self) -> Result<Vec<(Address, HostGroup)>> {
        let mut all = Vec::new();
        for group in &self.hosts {
            for address in self.addresses_of(group)? {
                let alone = HostGroup {
                    ips: vec![written(&address)],
                    ssh: group.ssh.clone().or_else(|| Some(self.ssh.clone())),
                    ..group.clone()
                };
                all.push((address, alone));
            }
        }
        Ok(all)
    }

    /// Returns whether a host of the cluster, which may be given without its port, is a control plane.
    pub fn is_control_plane(&self, wanted: &Address) -> Result<bool> {
        let address = self.find(wanted)?;
        for group in &self.hosts {
            if self.addresses_of(group)?.contains(&address) {
                return Ok(group.roles.iter().any(|role| role == MASTER));
            }
        }
        Ok(false)
    }

    fn first_control_plane(&self) -> Result<Option<Address>> {
        let is_master = |group: &&HostGroup| group.roles.iter().any(|role| role == MASTER);
        let first = self.hosts.iter().find(is_master).map(|group| self.addresses_of(group));
        Ok(first.transpose()?.and_then(|addresses| addresses.into_iter().next()))
    }

    /// Returns the host that an address refers to: the same address, or the only one with that
    /// name.
    fn find(&self, wanted: &Address) -> Result<Address> {
        let all = self.addresses()?;
        if all.contains(wanted) {
            return Ok(wanted.clone());
        }
        let named: Vec<&Address> = all.iter().filter(|own| own.name == wanted.name).collect();
        match &named[..] {
            [one] if wanted.port == SSH_PORT => Ok((*one).clone()),
            [] => Err(Error::not_found(format!(
                "host {wanted} does not belong to cluster `{}`",
                self.name
            ))),
            several => {
                let list: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(Error::usage(format!("{wanted} is not in the cluster"))
                    .hint(format!("did you mean {}?", list.join(" or "))))
            }
        }
    }

    /// Removes one address from its group, and an empty group with it. Expands ranges.
    fn take(&mut self, address: &Address) -> Result<HostGroup> {
        for at in 0..self.hosts.len() {
            let mut addresses = self.addresses_of(&self.hosts[at])?;
            if !addresses.contains(address) {
                continue;
            }
            addresses.retain(|own| own != address);
            let taken = HostGroup { ips: vec![written(address)], ..self.hosts[at].clone() };
            self.hosts[at].ips = addresses.iter().map(written).collect();
            if addresses.is_empty() {
                self.hosts.remove(at);
            }
            return Ok(taken);
        }
        Err(Error::not_found(format!("host {address} does not belong to cluster `{}`", self.name)))
    }

    /// Adds a role to hosts of the cluster; their order stays.
    fn give_role(&mut self, list: &str, role: &str) -> Result<()> {
        let wanted = address::parse_list(list, SSH_PORT)?
            .iter()
            .map(|address| self.find(address))
            .collect::<Result<Vec<_>>>()?;
        let mut groups: Vec<HostGroup> = Vec::new();
        for group in &self.hosts {
            let addresses = self.addresses_of(group)?;
            if !addresses.iter().any(|address| wanted.contains(address)) {
                groups.push(group.clone());
                continue;
            }
            // Consecutive hosts with the same roles stay in one group.
            let mut last = None;
            for address in &addresses {
                let has_role = wanted.contains(address);
                if last != Some(has_role) {
                    let mut roles = group.roles.clone();
                    if has_role && !roles.iter().any(|own| own == role) {
                        roles.push(role.to_owned());
                    }
                    groups.push(HostGroup { ips: Vec::new(), roles, ..group.clone() });
                    last = Some(has_role);
                }
                if let Some(run) = groups.last_mut() {
                    run.ips.push(written(address));
                }
            }
        }
        self.hosts = groups;
        Ok(())
    }
}

/// Returns hosts given as a list by the user, for verbs that choose among a cluster's hosts.
pub fn choose(
    clusterfile: &Clusterfile,
    list: &str,
    surroundings: &Surroundings<'_>,
) -> Result<Vec<Host>> {
    let hosts = clusterfile.cluster.hosts(surroundings)?;
    address::parse_list(list, SSH_PORT)?
        .iter()
        .map(|wanted| {
            let address = clusterfile.cluster.find(wanted)?;
            let found = hosts.iter().find(|host| host.address == address);
            found.cloned().ok_or_else(|| Error::not_found(format!("there is no host {address}")))
        })
        .collect()
}

/// Returns the address as sealos writes it: always with the port.
fn written(address: &Address) -> String {
    imgctl_base::address::join_port(&address.name, address.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::secret::Secret;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    fn flags(masters: &str, nodes: &str) -> HostFlags {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        HostFlags { masters: some(masters), nodes: some(nodes), ..HostFlags::default() }
    }

    fn cluster(masters: &str, nodes: &str) -> Clusterfile {
        Clusterfile::new("c", &["a:v1".into()], &flags(masters, nodes), OWN).unwrap()
    }

    fn groups(made: &Clusterfile) -> Vec<String> {
        let line = |group: &HostGroup| format!("{}={}", group.roles.join("+"), group.ips.join(","));
        made.cluster.hosts.iter().map(line).collect()
    }

    fn addresses(list: &str) -> Vec<Address> {
        address::parse_list(list, SSH_PORT).unwrap()
    }

    #[test]
    fn flags_become_hosts() {
        for (masters, nodes, expected) in [
            ("", "", &["master=192.0.2.7:22"][..]),
            ("10.0.0.1", "", &["master=10.0.0.1:22"]),
            (
                "10.0.0.1-10.0.0.2,10.0.0.9:2222",
                "10.0.1.0/30",
                &["master=10.0.0.1:22,10.0.0.2:22,10.0.0.9:2222", "node=10.0.1.1:22,10.0.1.2:22"],
            ),
            ("[fd00::1]:22", "", &["master=[fd00::1]:22"]),
        ] {
            assert_eq!(groups(&cluster(masters, nodes)), expected, "{masters} {nodes}");
        }
        for (masters, nodes, expected) in
            [("", "10.0.0.1", "no master"), ("10.0.0.1", "10.0.0.1", "both masters and nodes")]
        {
            let error = Clusterfile::new("c", &[], &flags(masters, nodes), OWN).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(Clusterfile::new("../c", &[], &flags("", ""), OWN).is_err());
    }

    #[test]
    fn hosts_are_added_with_a_login_of_their_own() {
        let mut made = cluster("10.0.0.1", "");
        let mut more = flags("", "10.0.0.2");
        more.ssh.user = Some("ops".into());
        more.ssh.password = Some(SecretSource::Inline(Secret::new("pw")));
        more.ssh.port = Some(2200);
        let added = made.cluster.add_hosts(&more).unwrap();
        assert_eq!(added, addresses("10.0.0.2:2200"));
        assert_eq!(groups(&made), ["master=10.0.0.1:22", "node=10.0.0.2:2200"]);
        let own = made.cluster.hosts[1].ssh.as_ref().unwrap();
        assert_eq!((own.user.as_deref(), own.port), (Some("ops"), None));
        let error = made.cluster.add_hosts(&more).unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
    }

    #[test]
    fn hosts_are_taken_out_but_never_the_first() {
        let mut made = cluster("10.0.0.1-10.0.0.3", "10.0.0.4,10.0.0.5:2222");
        let gone = made.cluster.remove_hosts(&addresses("10.0.0.2,10.0.0.4,10.0.0.5")).unwrap();
        assert_eq!(gone, addresses("10.0.0.2,10.0.0.4,10.0.0.5:2222"));
        assert_eq!(groups(&made), ["master=10.0.0.1:22,10.0.0.3:22"]);
        for (list, expected) in [
            ("10.0.0.1", "first control plane"),
            ("10.0.0.9", "does not belong"),
            ("10.0.0.3:99", "not in the cluster"),
        ] {
            let error = made.cluster.remove_hosts(&addresses(list)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn registry_hosts_keep_the_order() {
        let mut more = flags("10.0.0.1-10.0.0.3", "10.0.0.4");
        more.registry = Some("10.0.0.2,10.0.0.4".into());
        let made = Clusterfile::new("c", &[], &more, OWN).unwrap();
        assert_eq!(
            groups(&made),
            [
                "master=10.0.0.1:22",
                "master+registry=10.0.0.2:22",
                "master=10.0.0.3:22",
                "node+registry=10.0.0.4:22"
            ]
        );
        more.registry = Some("10.0.0.77".into());
        assert!(Clusterfile::new("c", &[], &more, OWN).is_err());
    }
}
