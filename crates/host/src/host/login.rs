//! Login settings of a host, and how strictly to check its key.

use std::path::PathBuf;
use std::time::Duration;

use imgctl_base::secret::Secret;

/// How to log in to one host. `None` and empty values fall back to `~/.ssh/config` or the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// Default: ssh_config's `User`, then `root`.
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Private key files, tried in order after the agent's keys.
    pub keys: Vec<PathBuf>,
    /// Private keys as text.
    pub key_data: Vec<Secret>,
    pub key_passphrase: Option<Secret>,
    /// For sudo if the user is not root; `None`: the login password is tried.
    pub sudo_password: Option<Secret>,
    /// `user@host:port,…` as in ssh's -J; `None`: ssh_config's `ProxyJump`.
    pub jump: Option<String>,
    /// The flags of the command do not change this login, so that errors must not advise them.
    pub is_recorded: bool,
}

/// The hint where a login fails that flags do not change.
pub(super) const RECORDED: &str = "this command logs in to hosts of the cluster as recorded, whatever its flags say: correct `ssh` in the Clusterfile (`imgctl state cat Clusterfile`), then run `imgctl apply -f Clusterfile`";

/// How to handle a host whose key is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeys {
    /// Accept and store a new key, refuse a changed one.
    TrustOnFirstUse,
    /// Refuse a key that is not in known_hosts.
    Strict,
}

/// What [`Settings::alive_interval`] is for a command that waits for hosts.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Settings shared by all connections of one command; set by cli/.
#[derive(Clone, Debug)]
pub struct Settings {
    pub host_keys: HostKeys,
    /// The file that is read and written, followed by read-only files.
    pub known_hosts: Vec<PathBuf>,
    /// ssh_config(5) files, in order.
    pub config_files: Vec<PathBuf>,
    /// `SSH_AUTH_SOCK`.
    pub agent_socket: Option<PathBuf>,
    /// `~`, for ssh_config.
    pub home: Option<PathBuf>,
    /// The name of the local user, for ssh_config's `%u`.
    pub local_user: Option<String>,
    pub connect_timeout: Duration,
    /// How long a silent connection waits for the next keepalive message, unless ssh_config says
    /// otherwise.
    pub alive_interval: Duration,
    /// Number of retries after a reset or an end of file.
    pub retries: u32,
}
