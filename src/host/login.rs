//! What is needed to log in to a host, and how careful to be about it.

use std::path::PathBuf;
use std::time::Duration;

use crate::secret::Secret;

/// How to log in to one host. `None` and empty: what `~/.ssh/config` or the default says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Login {
    /// Default: ssh_config's `User`, then `root`.
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    /// Private key files, tried in order after the agent's keys.
    pub(crate) keys: Vec<PathBuf>,
    /// Private keys given as text.
    pub(crate) key_data: Vec<Secret>,
    pub(crate) key_passphrase: Option<Secret>,
    /// For sudo when the user is not root; the login password is tried when this is `None`.
    pub(crate) sudo_password: Option<Secret>,
    /// `user@host:port,…` as ssh's -J; `None`: ssh_config's `ProxyJump`.
    pub(crate) jump: Option<String>,
}

/// What to do about a host whose key is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKeys {
    /// Learn a new one, refuse a changed one.
    TrustOnFirstUse,
    /// Refuse what is not in known_hosts.
    Strict,
}

/// The same for all connections of one command; filled in by cli/.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) host_keys: HostKeys,
    /// The file that is read and learned into, then those that are only read.
    pub(crate) known_hosts: Vec<PathBuf>,
    /// Files of ssh_config(5), in order.
    pub(crate) config_files: Vec<PathBuf>,
    /// `SSH_AUTH_SOCK`.
    pub(crate) agent_socket: Option<PathBuf>,
    /// `~`, for ssh_config.
    pub(crate) home: Option<PathBuf>,
    /// The name of the local user, for ssh_config's `%u`.
    pub(crate) local_user: Option<String>,
    pub(crate) connect_timeout: Duration,
    /// How often a connection is tried anew after a reset or an end of file.
    pub(crate) retries: u32,
}
