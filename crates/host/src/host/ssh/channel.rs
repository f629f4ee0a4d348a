//! One connection and its channels, and one command on it: its three streams and its end. Must not
//! depend on sudo, or on how the connection was established.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use russh::client::{Handle, Msg};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, oneshot};

use crate::host::reactor;
use crate::host::ssh::Ssh;
use crate::host::ssh::client::{Client, Lost};
use crate::host::ssh::dial::Dialled;
use crate::host::transport::{Channel, Ended, Guarded, Pieces, held};
use imgctl_base::error::{Error, Result};

/// Maximum number of unread pieces of up to 32 KiB, for each output.
const QUEUE: usize = 32;

/// Starts `command` on a newly opened channel.
pub(super) async fn start(
    label: &str,
    channel: russh::Channel<Msg>,
    counted: Counted,
    command: String,
) -> Result<Channel> {
    let (mut read, write) = channel.split();
    let write = Arc::new(write);
    let lost = |counted: &Counted| connection_lost(label, &counted.session().why());
    if write.exec(true, command).await.is_err() {
        return Err(lost(&counted));
    }
    loop {
        match read.wait().await {
            Some(ChannelMsg::Success) => break,
            Some(ChannelMsg::Failure) => {
                return Err(Error::denied(format!("{label} does not allow commands to be run"))
                    .hint(
                        "check for ForceCommand, and for `command=` and `restrict` in \
                       authorized_keys on the host",
                    ));
            }
            Some(ChannelMsg::Close) | None => return Err(lost(&counted)),
            Some(_) => {}
        }
    }
    let (output, output_queue) = mpsc::channel(QUEUE);
    let (errors, errors_queue) = mpsc::channel(QUEUE);
    let (tell, told) = oneshot::channel();
    let (token, released) = held();
    let (closing, closed) = oneshot::channel();
    let pump = Pump {
        takes_input: Some(closing),
        read,
        write: Arc::clone(&write),
        output: Some(output),
        errors: Some(errors),
        tell: Some(tell),
        counted,
        label: label.to_owned(),
    };
    let runtime = reactor::reactor()?;
    runtime.spawn(pump.run(released));
    let (held, name) = (Arc::clone(&token), label.to_owned());
    let ended = async move {
        let _held = held;
        let told = told.await;
        told.unwrap_or_else(|_| Err(connection_lost(&name, "the channel was closed")))
    };
    let input = Input {
        writer: Box::new(write.make_writer()),
        write,
        closed: Some(closed),
        is_shut: false,
    };
    Ok(Channel {
        input: Box::new(Guarded { inner: input, _held: Arc::clone(&token) }),
        output: Box::new(Guarded { inner: Pieces::new(output_queue), _held: Arc::clone(&token) }),
        errors: Box::new(Guarded { inner: Pieces::new(errors_queue), _held: token }),
        ended: Box::pin(ended),
    })
}

pub(super) fn connection_lost(label: &str, why: &str) -> Error {
    Error::network(format!("the connection to {label} was lost"))
        .caused_by(why.to_owned())
        .hint("check that the host is up, then run the same command again")
}

type Pipe = mpsc::Sender<io::Result<Bytes>>;

/// Forwards messages from the host to the readers of the streams.
struct Pump {
    read: ChannelReadHalf,
    write: Arc<ChannelWriteHalf<Msg>>,
    output: Option<Pipe>,
    errors: Option<Pipe>,
    tell: Option<oneshot::Sender<Result<Ended>>>,
    /// Dropped when stdin is no longer read.
    takes_input: Option<oneshot::Sender<()>>,
    counted: Counted,
    label: String,
}

impl Pump {
    async fn run(mut self, mut released: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                message = self.read.wait() => match message {
                    None | Some(ChannelMsg::Close) => break,
                    Some(message) => self.take(message).await,
                },
                _ = &mut released => {
                    if self.tell.is_some() {
                        let _ = self.write.signal(Sig::TERM).await;
                    }
                    let _ = self.write.close().await;
                    return;
                }
            }
        }
        if let Some(tell) = self.tell.take() {
            let why = self.counted.session().why();
            for pipe in [&self.output, &self.errors].into_iter().flatten() {
                // Not an end of file: output is missing.
                let cut = io::Error::from(connection_lost(&self.label, &why));
                let _ = pipe.try_send(Err(cut));
            }
            let _ = tell.send(Err(connection_lost(&self.label, &why)));
        }
    }

    async fn take(&mut self, message: ChannelMsg) {
        match message {
            ChannelMsg::Data { data } => pass(&mut self.output, data).await,
            ChannelMsg::ExtendedData { data, ext: 1 } => pass(&mut self.errors, data).await,
            ChannelMsg::Eof => {
                self.output = None;
                self.errors = None;
            }
            ChannelMsg::ExitStatus { exit_status } => {
                self.end(Ended::Code(u8::try_from(exit_status).unwrap_or(u8::MAX)));
            }
            ChannelMsg::ExitSignal { signal_name, .. } => {
                self.end(Ended::Signal(number(&signal_name)));
            }
            _ => {}
        }
    }

    fn end(&mut self, ended: Ended) {
        self.takes_input = None;
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(Ok(ended));
        }
    }
}

/// Output without a reader is discarded.
async fn pass(pipe: &mut Option<Pipe>, data: Bytes) {
    if let Some(open) = pipe
        && open.send(Ok(data)).await.is_err()
    {
        *pipe = None;
    }
}

fn number(signal: &Sig) -> i32 {
    match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::USR1 => 10,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        // Names that RFC 4254 lacks and OpenSSH sends, with its suffix.
        Sig::Custom(name) => match name.split('@').next().unwrap_or_default() {
            "TRAP" => 5,
            "BUS" => 7,
            "USR2" => 12,
            "XCPU" => 24,
            "XFSZ" => 25,
            "SYS" => 31,
            _ => 0,
        },
    }
}

/// stdin of a command; dropping it signals end of file.
struct Input {
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    write: Arc<ChannelWriteHalf<Msg>>,
    /// Resolves when the command has ended; until then, a full window can open again.
    closed: Option<oneshot::Receiver<()>>,
    is_shut: bool,
}

impl Input {
    fn is_closed(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(closed) = &mut self.closed
            && Pin::new(closed).poll(context).is_ready()
        {
            self.closed = None;
        }
        self.closed.is_none()
    }
}

impl AsyncWrite for Input {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.is_closed(context) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_shut || self.is_closed(context) {
            return Poll::Ready(Ok(()));
        }
        let shut = Pin::new(&mut self.writer).poll_shutdown(context);
        self.is_shut = shut.is_ready();
        shut
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if self.is_shut {
            return;
        }
        if let Ok(runtime) = reactor::reactor() {
            let write = Arc::clone(&self.write);
            runtime.spawn(async move {
                let _ = write.eof().await;
            });
        }
    }
}

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

pub(super) enum NoChannel {
    /// The host's limit is reached.
    Full,
    Lost(String),
}

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

    pub(super) async fn channel(
        self: &Arc<Self>,
    ) -> Result<(russh::Channel<Msg>, Counted), NoChannel> {
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
    ) -> Result<russh::Channel<Msg>, russh::Error> {
        self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await
    }
}
