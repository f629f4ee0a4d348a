//! One connection and the channels on it. Must not know how it was made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use russh::Channel;
use russh::client::{Handle, Msg};

use crate::host::ssh::Ssh;
use crate::host::ssh::client::{Client, Lost};
use crate::host::ssh::dial::Dialled;

/// A connection on which we are logged in. It ends when this and its last channel are gone.
pub(super) struct Session {
    handle: Handle<Client>,
    lost: Lost,
    open: AtomicUsize,
    /// The host takes no more than this (`MaxSessions`), as far as is known.
    limit: AtomicUsize,
    given_up: AtomicBool,
    /// What carries it must live as long.
    _via: Option<Arc<Ssh>>,
}

/// Why a channel was not opened.
pub(super) enum NoChannel {
    /// There are as many as the host takes.
    Full,
    Lost(String),
}

/// Counts a channel for as long as it is open.
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

    /// No new channels are opened on it; those that are open may end.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Why it was lost.
    pub(super) fn why(&self) -> String {
        self.lost
            .why()
            .unwrap_or_else(|| "the connection was closed".to_owned())
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
                // Never 0: what has ended is counted by the host for a moment longer.
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
        self.handle
            .channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0)
            .await
    }
}
