//! One connection and its channels. Must not depend on how it was established.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use russh::Channel;
use russh::client::{Handle, Msg};

use crate::host::ssh::Ssh;
use crate::host::ssh::client::{Client, Lost};
use crate::host::ssh::dial::Dialled;

/// A connection that is logged in. It closes when this value and its last channel are dropped.
pub(super) struct Session {
    handle: Handle<Client>,
    lost: Lost,
    open: AtomicUsize,
    /// Maximum number of channels that the host allows (`MaxSessions`), as far as known.
    limit: AtomicUsize,
    given_up: AtomicBool,
    /// Keeps the jump host's connection open.
    _via: Option<Arc<Ssh>>,
}

/// Reason why a channel was not opened.
pub(super) enum NoChannel {
    /// The host's limit is reached.
    Full,
    Lost(String),
}

/// Counts an open channel.
pub(super) struct Counted(Arc<Session>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Counted {
    pub(super) fn session(&self) -> &Session {
        &self.0
    }
}

impl Session {
    pub(super) fn new(dialled: Dialled, via: Option<Arc<Ssh>>) -> Arc<Self> {
        Arc::new(Self {
            handle: dialled.handle,
            lost: dialled.lost,
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
            given_up: AtomicBool::new(false),
            _via: via,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.handle.is_closed() && !self.given_up.load(Ordering::Relaxed)
    }

    /// Stops opening new channels on this connection; open channels may finish.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns why the connection was lost.
    pub(super) fn why(&self) -> String {
        self.lost.why().unwrap_or_else(|| "the connection was closed".to_owned())
    }

    /// Opens a channel for a command.
    pub(super) async fn channel(self: &Arc<Self>) -> Result<(Channel<Msg>, Counted), NoChannel> {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(self));
        if before >= self.limit.load(Ordering::Relaxed) {
            return Err(NoChannel::Full);
        }
        match self.handle.channel_open_session().await {
            Ok(channel) => Ok((channel, counted)),
            Err(russh::Error::ChannelOpenFailure(_)) => {
                // Never 0: the host counts a closed channel for a moment longer.
                self.limit.fetch_min(before.max(1), Ordering::Relaxed);
                Err(NoChannel::Full)
            }
            Err(error) => Err(NoChannel::Lost(match self.lost.why() {
                Some(why) => why,
                None => error.to_string(),
            })),
        }
    }

    /// Opens a channel to another host.
    pub(super) async fn forward(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Channel<Msg>, russh::Error> {
        self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await
    }
}
