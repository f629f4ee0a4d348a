//! A host as a cluster knows it.

use std::collections::BTreeMap;

use imgctl_host::host::address::Address;
use imgctl_host::host::login::Login;

/// Role of control planes, under the name that sealos uses.
pub const MASTER: &str = "master";
/// Role of workers.
pub const NODE: &str = "node";
/// Role of hosts that serve the embedded registry.
pub const REGISTRY: &str = "registry";

/// One host of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub address: Address,
    /// `master`, `node`, `registry` and arbitrary other roles, in the Clusterfile's order.
    pub roles: Vec<String>,
    /// `hosts[].env`.
    pub environment: BTreeMap<String, String>,
    /// `spec.ssh` of the cluster, overridden by the host's own values.
    pub login: Login,
    /// Whether this is the local machine, reached without SSH.
    pub local: bool,
}

impl Host {
    /// Returns the IP or name without the port, under which other hosts reach this one.
    pub fn ip(&self) -> &str {
        &self.address.name
    }

    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    pub fn is_control_plane(&self) -> bool {
        self.has_role(MASTER)
    }

    /// Returns the address as `Display` writes it, for step identifiers, file names and JSON.
    pub fn id(&self) -> String {
        self.address.to_string()
    }

    /// Returns the OCI name of the architecture, such as `amd64` or `arm64`, if a role gives it, as
    /// in sealos.
    pub fn architecture(&self) -> Option<&str> {
        let known = |role: &&String| ARCHITECTURES.contains(&role.as_str());
        self.roles.iter().find(known).map(String::as_str)
    }
}

/// Roles that are architectures.
const ARCHITECTURES: [&str; 8] =
    ["386", "amd64", "arm", "arm64", "loong64", "ppc64le", "riscv64", "s390x"];
