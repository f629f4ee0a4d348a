//! All connections of one command: each host is connected to once, including jump hosts. Must not
//! depend on the purpose of the connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::host::address::Address;
use crate::host::known_hosts::{KnownHosts, name_of};
use crate::host::local::Local;
use crate::host::login::{Login, Settings};
use crate::host::reactor;
use crate::host::ssh::{Hop, KeyCache, Ssh, SshTransport, Target, configured, parse_jump};
use crate::host::ssh_config::Config;
use crate::host::transport::Transport;
use imgctl_base::error::{Error, Result};

/// Maximum number of chained jump hosts; a longer chain is a loop in ssh_config.
const MOST_HOPS: usize = 8;

/// Identifies a connection: the host, the user and the route to the host.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    address: Address,
    user: String,
    way: Vec<Address>,
}

/// Connections, shared by all threads. They close when this value and the transports it returned
/// are dropped.
pub struct Connections {
    settings: Settings,
    config: Config,
    keys: Arc<KeyCache>,
    known: Mutex<HashMap<Key, (Login, Arc<Ssh>)>>,
}

impl Connections {
    /// Reads ssh_config; does not connect yet.
    pub fn new(settings: Settings) -> Result<Self> {
        let config = Config::read(&settings.config_files, settings.home.as_deref())?;
        Ok(Self { settings, config, keys: Arc::default(), known: Mutex::default() })
    }

    /// Connects to a host and logs in; an existing connection is reused. The returned transport
    /// reconnects by itself after the connection is lost.
    pub fn connect(
        &self,
        address: &Address,
        login: &Login,
        local: bool,
    ) -> Result<Arc<dyn Transport>> {
        if local {
            return Ok(self.local(Some(address.to_string()), login));
        }
        let ssh = self.ssh(address, login)?;
        reactor::block_on(ssh.ensure())?;
        Ok(Arc::new(SshTransport(ssh)))
    }

    /// Returns whether the recorded SSH host keys of two hosts are the same; `None` if one of them
    /// has no record. Does not connect.
    pub fn share_a_key(
        &self,
        one: (&Address, &Login),
        other: (&Address, &Login),
    ) -> Result<Option<bool>> {
        let target = |(address, login): (&Address, &Login)| {
            let found = configured(address, login, &self.settings, &self.config);
            Target::new(address, login, &self.settings, &found)
        };
        let (one, other) = (target(one), target(other));
        let known = KnownHosts::read(&one.known_hosts)?;
        Ok(known.share_a_key(&name_of(&one.known_as), &name_of(&other.known_as)))
    }

    /// Returns a transport for the controller itself, called `label` in messages.
    pub fn local(&self, label: Option<String>, login: &Login) -> Arc<dyn Transport> {
        Arc::new(Local::new(label, login))
    }

    fn ssh(&self, address: &Address, login: &Login) -> Result<Arc<Ssh>> {
        let found = configured(address, login, &self.settings, &self.config);
        let jump = login.jump.as_deref().or(found.proxy_jump.as_deref());
        let hops = parse_jump(jump.unwrap_or_default())?;
        let (via, way) = self.via(&hops, login, 0)?;
        self.through(address, login, via, way)
    }

    /// Returns the last of a list of hops, reached through the previous ones, and the route to it.
    fn via(
        &self,
        hops: &[Hop],
        login: &Login,
        depth: usize,
    ) -> Result<(Option<Arc<Ssh>>, Vec<Address>)> {
        let (mut via, mut way) = (None, Vec::new());
        for (index, hop) in hops.iter().enumerate() {
            if depth + index >= MOST_HOPS {
                return Err(Error::usage(format!(
                    "the connection to {} needs more than {MOST_HOPS} jump hosts",
                    hop.address
                ))
                .hint("check ~/.ssh/config for a loop of ProxyJump"));
            }
            let mut own = login.clone();
            own.jump = None;
            // ssh_config may set a different user for the jump host. The given user applies to the
            // target host and is only the fallback here.
            own.user.clone_from(&hop.user);
            let found = configured(&hop.address, &own, &self.settings, &self.config);
            if own.user.is_none() && found.user.is_none() {
                own.user.clone_from(&login.user);
            }
            if index == 0 {
                let first = parse_jump(found.proxy_jump.as_deref().unwrap_or_default())?;
                (via, way) = self.via(&first, login, depth + 1)?;
            }
            let ssh = self.through(&hop.address, &own, via.take(), way.clone())?;
            way.push(hop.address.clone());
            via = Some(ssh);
        }
        Ok((via, way))
    }

    fn through(
        &self,
        address: &Address,
        login: &Login,
        via: Option<Arc<Ssh>>,
        way: Vec<Address>,
    ) -> Result<Arc<Ssh>> {
        let found = configured(address, login, &self.settings, &self.config);
        let target = Target::new(address, login, &self.settings, &found);
        let key = Key { address: address.clone(), user: target.user.clone(), way };
        // User and route are in the key; the rest are the credentials.
        let with = Login { user: None, jump: None, ..login.clone() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, ssh)) = known.get(&key)
            && *before == with
        {
            return Ok(Arc::clone(ssh));
        }
        let ssh = Ssh::new(target, via, Arc::clone(&self.keys));
        known.insert(key, (with, Arc::clone(&ssh)));
        Ok(ssh)
    }
}
