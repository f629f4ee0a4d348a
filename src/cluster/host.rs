//! A host as a cluster knows it.

use std::collections::BTreeMap;

use crate::host::address::Address;
use crate::host::login::Login;

/// Role of control planes, under the name that sealos uses.
pub(crate) const MASTER: &str = "master";
/// Role of workers.
pub(crate) const NODE: &str = "node";
/// Role of hosts that serve the embedded registry.
pub(crate) const REGISTRY: &str = "registry";

/// One host of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) address: Address,
    /// `master`, `node`, `registry` and arbitrary other roles, in the Clusterfile's order.
    pub(crate) roles: Vec<String>,
    /// `hosts[].env`.
    pub(crate) environment: BTreeMap<String, String>,
    /// `spec.ssh` of the cluster, overridden by the host's own values.
    pub(crate) login: Login,
    /// Whether this is the local machine, reached without SSH.
    pub(crate) local: bool,
}

impl Host {
    /// Returns the IP or name without the port, under which other hosts reach this one.
    pub(crate) fn ip(&self) -> &str {
        &self.address.name
    }

    pub(crate) fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        self.has_role(MASTER)
    }

    /// Returns the address as `Display` writes it, for step identifiers, file names and JSON.
    pub(crate) fn id(&self) -> String {
        self.address.to_string()
    }

    /// Returns the OCI name of the architecture, such as `amd64` or `arm64`, if a role gives it, as
    /// in sealos.
    pub(crate) fn architecture(&self) -> Option<&str> {
        let known = |role: &&String| ARCHITECTURES.contains(&role.as_str());
        self.roles.iter().find(known).map(String::as_str)
    }
}

/// Roles that are architectures.
const ARCHITECTURES: [&str; 8] = [
    "386", "amd64", "arm", "arm64", "loong64", "ppc64le", "riscv64", "s390x",
];
