//! A host as a cluster knows it.

use std::collections::BTreeMap;

use crate::host::address::Address;
use crate::host::login::Login;

/// Control planes, as sealos users write it.
pub(crate) const MASTER: &str = "master";
/// Workers.
pub(crate) const NODE: &str = "node";
/// Hosts that serve the embedded registry.
pub(crate) const REGISTRY: &str = "registry";

/// One host of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) address: Address,
    /// `master`, `node`, `registry` and free words, in the Clusterfile's order.
    pub(crate) roles: Vec<String>,
    /// `hosts[].env`.
    pub(crate) environment: BTreeMap<String, String>,
    /// The cluster's `spec.ssh` with the host's own on top.
    pub(crate) login: Login,
    /// The machine we run on, reached without SSH.
    pub(crate) local: bool,
}

impl Host {
    /// Its IP or name, without the port: what other hosts call it by.
    pub(crate) fn ip(&self) -> &str {
        &self.address.name
    }

    pub(crate) fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        self.has_role(MASTER)
    }

    /// As in step identifiers, file names and JSON: the address as `Display` writes it.
    pub(crate) fn id(&self) -> String {
        self.address.to_string()
    }

    /// OCI's word for its architecture where a role says it, as sealos writes: `amd64`, `arm64`.
    pub(crate) fn architecture(&self) -> Option<&str> {
        let known = |role: &&String| ARCHITECTURES.contains(&role.as_str());
        self.roles.iter().find(known).map(String::as_str)
    }
}

/// Roles that are architectures.
const ARCHITECTURES: [&str; 8] = [
    "386", "amd64", "arm", "arm64", "loong64", "ppc64le", "riscv64", "s390x",
];
