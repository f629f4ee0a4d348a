//! Hosts over SSH: shared connections, established on demand and re-established when lost. Must not
//! depend on which hosts exist.

mod algorithms;
mod auth;
mod channel;
mod client;
mod dial;
mod keys;
mod login_shell;
mod target;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;

use crate::host::address::Address;
use crate::host::reactor;
use crate::host::sudo::Sudo;
use crate::host::transport::{BoxFuture, Channel, Privilege, Transport};
use channel::{Counted, NoChannel, Session, connection_lost};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::for_login_shell;
use login_shell::Answer;

pub use dial::resolved;
pub(super) use keys::KeyCache;
pub(super) use target::{Hop, Target, configured, parse_jump};

/// Maximum number of connections to one host. By default, OpenSSH allows 10 sessions per
/// connection; more commands need more connections.
const MOST_SESSIONS: usize = 16;

/// Timeout for opening a channel. A live connection opens one immediately; a dead one may not be
/// detected yet.
const CHANNEL_PATIENCE: Duration = Duration::from_secs(30);

/// Timeout for the login shell with its start-up files.
const SHELL_PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Ssh {
    target: Target,
    via: Option<Arc<Self>>,
    keys: Arc<KeyCache>,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Held while a connection is established, so that concurrent callers establish only one.
    dialling: tokio::sync::Mutex<()>,
    sudo: Sudo,
    is_root: OnceCell<bool>,
}

impl Ssh {
    pub(super) fn new(target: Target, via: Option<Arc<Self>>, keys: Arc<KeyCache>) -> Arc<Self> {
        Arc::new(Self {
            sudo: Sudo::new(target.label.clone(), target.user.clone(), &target.login),
            target,
            via,
            keys,
            sessions: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
            is_root: OnceCell::new(),
        })
    }

    pub(super) fn label_of(&self) -> &str {
        &self.target.label
    }

    /// Connects and logs in, unless already connected.
    pub(super) async fn ensure(self: &Arc<Self>) -> Result<()> {
        let ssh = Arc::clone(self);
        on_reactor(async move { ssh.session_beside(&[]).await.map(drop) }).await
    }

    /// Returns the live connections and drops the others.
    fn alive(&self) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.is_alive());
        sessions.clone()
    }

    /// Returns a connection that is not in `tried`: one that another caller established, or a new
    /// one.
    async fn session_beside(&self, tried: &[Arc<Session>]) -> Result<Arc<Session>> {
        let _dialling = self.dialling.lock().await;
        let alive = self.alive();
        let is_tried = |session: &Arc<Session>| tried.iter().any(|old| Arc::ptr_eq(old, session));
        if let Some(session) = alive.iter().find(|session| !is_tried(session)) {
            return Ok(Arc::clone(session));
        }
        if alive.len() >= MOST_SESSIONS {
            return Err(Error::busy(format!(
                "{} accepts no more commands at once: {} connections are full",
                self.target.label,
                alive.len()
            ))
            .hint("raise MaxSessions in /etc/ssh/sshd_config on the host"));
        }
        let dialled = dial::dial(&self.target, self.via.as_ref(), &self.keys).await?;
        let session = Session::new(dialled, self.via.clone());
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&session));
        Ok(session)
    }

    /// Opens a channel for a command on any connection with free capacity.
    async fn channel(&self) -> Result<(russh::Channel<russh::client::Msg>, Counted)> {
        let mut tried = Vec::new();
        let mut lost_before = false;
        loop {
            let untried =
                |session: &Arc<Session>| !tried.iter().any(|old| Arc::ptr_eq(old, session));
            let session = match self.alive().into_iter().find(untried) {
                Some(session) => session,
                None => self.session_beside(&tried).await?,
            };
            let opened = tokio::time::timeout(CHANNEL_PATIENCE, session.channel()).await;
            match opened {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(NoChannel::Full)) => {}
                Ok(Err(NoChannel::Lost(why))) => {
                    session.give_up();
                    // A second loss in a row is not a coincidence.
                    if std::mem::replace(&mut lost_before, true) {
                        return Err(connection_lost(&self.target.label, &why));
                    }
                }
                Err(_) => {
                    session.give_up();
                    let why = format!("no answer within {} s", CHANNEL_PATIENCE.as_secs());
                    return Err(connection_lost(&self.target.label, &why));
                }
            }
            tried.push(session);
        }
    }

    /// Opens a tunnel from this host to another one.
    fn tunnel<'a>(
        self: &'a Arc<Self>,
        to: &'a Address,
    ) -> BoxFuture<'a, Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>>> {
        Box::pin(async move {
            let mut lost = None;
            // Two attempts: a dead connection is detected only when it is used.
            for _ in 0..2 {
                let session = match self.alive().into_iter().next() {
                    Some(session) => session,
                    None => self.session_beside(&[]).await?,
                };
                let opened = session.forward(&to.name, to.port);
                let why = match tokio::time::timeout(CHANNEL_PATIENCE, opened).await {
                    Ok(Ok(channel)) => return Ok(channel.into_stream()),
                    Ok(Err(russh::Error::ChannelOpenFailure(reason))) => {
                        return Err(self.no_tunnel(to, &reason));
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "it does not respond".to_owned(),
                };
                session.give_up();
                lost = Some(why);
            }
            let why = lost.unwrap_or_default();
            Err(connection_lost(&self.target.label, &why))
        })
    }

    fn no_tunnel(&self, to: &Address, reason: &russh::ChannelOpenFailure) -> Error {
        Error::network(format!("{} does not forward a connection to {to}", self.target.label),
        )
        .caused_by(format!("{reason:?}"))
        .hint("check that the host is up, and that AllowTcpForwarding is not `no` on the jump host")
    }

    async fn exec(&self, line: &str) -> Result<Channel> {
        let (channel, counted) = self.channel().await?;
        // Independent of the user's login shell.
        channel::start(&self.target.label, channel, counted, for_login_shell(line)).await
    }

    async fn open(&self, line: &str, privilege: Privilege) -> Result<Channel> {
        if self.is_root().await? || privilege == Privilege::User {
            return self.exec(line).await;
        }
        self.sudo.check()?;
        let channel = self.exec(&self.sudo.wrap(line)).await?;
        self.sudo.pass(channel).await
    }

    /// Returns whether the login user is root, under any name. Fails if the login shell does not run
    /// commands: what it says must not be taken for a command's output.
    async fn is_root(&self) -> Result<bool> {
        self.is_root.get_or_try_init(|| self.ask_shell()).await.copied()
    }

    async fn ask_shell(&self) -> Result<bool> {
        let channel = self.exec(login_shell::QUESTION).await?;
        let Target { label, user, .. } = &self.target;
        let answer = tokio::time::timeout(SHELL_PATIENCE, login_shell::read(channel)).await;
        match answer {
            Ok(Ok(Answer::Root(is_root))) => Ok(is_root),
            Ok(Ok(Answer::Nothing(output, errors, ended))) => {
                Err(login_shell::refusal(label, user, &output, &errors, ended))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(login_shell::silent(label, user, SHELL_PATIENCE.as_secs())),
        }
    }
}

/// Runs the work on the reactor, regardless of the runtime that waits for it.
async fn on_reactor<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let task = reactor::reactor()?.spawn(work);
    task.await.map_err(|error| Error::failed("a connection ended unexpectedly").caused_by(error))?
}

pub(super) struct SshTransport(pub(super) Arc<Ssh>);

impl Transport for SshTransport {
    fn label(&self) -> &str {
        self.0.label_of()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn open<'a>(&'a self, line: &'a str, privilege: Privilege) -> BoxFuture<'a, Result<Channel>> {
        let (ssh, line) = (Arc::clone(&self.0), line.to_owned());
        Box::pin(on_reactor(async move { ssh.open(&line, privilege).await }))
    }
}
