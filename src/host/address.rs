//! Addresses of hosts and the lists in which people write them.

use crate::error::Result;

/// The SSH port when nothing else is said.
pub(crate) const SSH_PORT: u16 = 22;

/// One host as it is reached. `Display` writes `name`, `name:port` when the port is not 22, and
/// `[v6]:port` for IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    /// An IPv4 or IPv6 address without brackets, or a DNS name.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.name.contains(':'), self.port) {
            (false, SSH_PORT) => write!(f, "{}", self.name),
            (false, port) => write!(f, "{}:{port}", self.name),
            (true, SSH_PORT) => write!(f, "{}", self.name),
            (true, port) => write!(f, "[{}]:{port}", self.name),
        }
    }
}

/// Reads one list as `--masters` and `--nodes` take it: separated by commas, each `ip`, `ip:port`,
/// `[v6]:port`, `ip-ip` (a range), `cidr` (hosts only, without network and broadcast address), or
/// a name. Duplicates are errors. `port` is for those that name none.
pub(crate) fn parse_list(text: &str, port: u16) -> Result<Vec<Address>> {
    let _ = (text, port);
    todo!("host")
}
