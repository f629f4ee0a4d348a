//! One connection to one agent: HTTP/2 over the input and output of a command. Opens tunnels: the
//! request body carries data to the host, the answer body carries data back.
//!
//! Before the connection starts, a host prints shell noise, then the agent's greeting or the
//! message that there is no agent.

use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::watch;

use crate::agent::protocol::OutputLine;
use crate::agent::tunnel::{Failure, Tunnel, WAITING, poll_block};
use crate::agent::wire::{self, Call, Event, Patience, Said};
use crate::host::transport::{BoxFuture, Ended};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::wire::Decoder;
use imgctl_registry::client::sending::BlobBody;

/// Bytes that may be in flight for one answer, and for all answers: some wait for a slow reader.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const FRAME: u32 = 1 << 20;
/// Maximum number of request bytes that wait to be written.
const SEND_BUFFER: usize = 2 << 20;
/// Interval of keep-alive pings to the agent, and the timeout for its reply, which may be queued
/// behind much other data on a slow connection.
const PING: Duration = Duration::from_secs(15);
const PONG: Duration = Duration::from_secs(60);
/// Time that a broken connection has to report its cause.
const REASON: Duration = Duration::from_secs(2);
/// Bytes per second below which a transfer or an unpacking counts as stuck.
const SLOWEST: u64 = 8 << 10;
/// Maximum size of the output of one command, in bytes.
const MOST_OUTPUT: u64 = 4 << 30;
/// Time for a host to open a connection, or to answer about a blob.
const ANSWER: Duration = Duration::from_secs(5 * 60);
/// Number of bytes to remember of the agent's stderr.
const ERRORS: usize = 4 << 10;
/// Maximum length of a refusal text, in bytes.
const REFUSAL: usize = 64 << 10;

pub(super) struct Connection {
    sender: http2::SendRequest<Body>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Reason why the connection ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

/// Why a request got no answer.
pub(super) enum Trouble {
    /// The connection or the agent is gone. `has_begun` says whether the work was under way.
    Lost {
        error: Error,
        has_begun: bool,
    },
    Refused(Error),
}

/// Until when a host has to answer.
pub(super) struct Deadline {
    /// What it was asked for.
    what: &'static str,
    patience: Patience,
    begun: Instant,
    /// When it last reported bytes, and how many in all.
    reported: Instant,
    moved: u64,
}

impl Deadline {
    pub(super) fn new(what: &'static str, patience: Patience) -> Self {
        let now = Instant::now();
        Self { what, patience, begun: now, reported: now, moved: 0 }
    }

    /// For a request that sends `bytes` bytes.
    pub(super) fn answer(what: &'static str, bytes: u64) -> Self {
        let time = ANSWER.saturating_add(Duration::from_secs(bytes / SLOWEST));
        Self::new(what, Patience { time: Some(time), bytes: 0 })
    }

    /// The host reports bytes. Those that it cannot have moved do not count.
    pub(super) fn moved(&mut self, bytes: u64) {
        let before = self.moved;
        self.moved = before.saturating_add(bytes).min(self.patience.bytes);
        if self.moved > before {
            self.reported = Instant::now();
        }
    }

    /// Returns when the wait ends: if no bytes are reported for long, or bytes come too slowly for too
    /// long.
    pub(super) fn end(&self) -> Option<Instant> {
        let time = self.patience.time?;
        let earned = Duration::from_secs(self.moved / SLOWEST);
        let slow = self.begun.checked_add(time)?.checked_add(earned)?;
        Some(slow.min(self.reported.checked_add(time)?))
    }

    /// Waits for what the host does, and no longer than its time.
    pub(super) async fn within<T>(&self, does: impl Future<Output = T>) -> Result<T, Trouble> {
        let Some(end) = self.end() else { return Ok(does.await) };
        tokio::time::timeout_at(end.into(), does).await.map_err(|_| {
            Trouble::Refused(
                Error::network(format!(
                    "the host has not answered `{}` in {} s",
                    self.what,
                    self.begun.elapsed().as_secs()
                ))
                .hint("see what the host is doing: imgctl exec, or its console"),
            )
        })
    }
}

/// Messages during a call.
pub(super) enum Told {
    Progress(u64),
    Line(OutputLine),
}

impl Connection {
    /// Opens the connection after the agent's greeting has been read.
    pub(super) async fn open(
        output: Box<dyn AsyncRead + Send + Unpin>,
        input: Box<dyn AsyncWrite + Send + Unpin>,
        stderr: Box<dyn AsyncRead + Send + Unpin>,
        ended: BoxFuture<'static, Result<Ended>>,
    ) -> Result<Self> {
        let errors = Arc::new(Mutex::new(Vec::new()));
        let listening = tokio::spawn(listen(stderr, Arc::clone(&errors)));
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(tokio::io::join(output, input)))
            .await
            .map_err(|error| lost(&error.to_string()))?;
        let (say, told) = watch::channel(None);
        tokio::spawn(async move {
            // Ending the connection also closes the command's input and output.
            let broken = connection.await.err();
            let reason = tokio::time::timeout(REASON, async {
                let ended = ended.await;
                let _ = listening.await;
                ended
            });
            let reason = match (reason.await, broken) {
                (Ok(Ok(ended)), _) => format!("it ended {}", ended.describe()),
                (Ok(Err(error)), _) => error.to_string(),
                (Err(_), Some(error)) => error.to_string(),
                (Err(_), None) => "it was closed".to_owned(),
            };
            let _ = say.send(Some(reason));
        });
        Ok(Self { sender, errors, ended: told })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn request(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut sender = self.sender.clone();
        let answer = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match answer.await {
            Ok(response) => Ok(response),
            Err(error) => Err(self.broken(&error, false).await),
        }
    }

    /// Describes why a request was interrupted.
    async fn broken(&self, error: &hyper::Error, has_begun: bool) -> Trouble {
        let mut ended = self.ended.clone();
        let reason = tokio::time::timeout(REASON * 2, ended.wait_for(Option::is_some)).await;
        let reason = match reason {
            Ok(Ok(reason)) => reason.clone().unwrap_or_default(),
            _ => error.to_string(),
        };
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let errors = tail(&errors);
        let reason = if errors.is_empty() { reason } else { format!("{reason}: {errors}") };
        Trouble::Lost { error: lost(&reason), has_begun }
    }

    /// The same within a time.
    pub(super) async fn request_within(
        &self,
        request: Request<Body>,
        deadline: &Deadline,
    ) -> Result<Response<Incoming>, Trouble> {
        deadline.within(self.request(request)).await?
    }

    pub(super) async fn call<C: Call>(
        &self,
        call: &C,
        told: &mut dyn FnMut(Told),
    ) -> Result<C::Answer, Trouble> {
        let refused = |error: Error| Trouble::Refused(error);
        let mut bytes = serde_json::to_vec(call)
            .map_err(|error| refused(Error::failed("cannot write the call").caused_by(error)))?;
        bytes.extend_from_slice(call.bytes());
        let request = Request::post(format!("http://agent{}{}", wire::PREFIX, C::NAME))
            .body(Body::whole(bytes))
            .map_err(|error| refused(Error::failed("cannot write the call").caused_by(error)))?;
        let deadline = Deadline::new(C::NAME, call.patience());
        let response = self.request_within(request, &deadline).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let text = text(response.into_body()).await;
            let message = format!("the agent refuses the call {} ({status}): {text}", C::NAME);
            return Err(refused(Error::failed(message)));
        }
        self.events::<C>(response.into_body(), (deadline, call.longest()), told).await
    }

    async fn events<C: Call>(
        &self,
        mut body: Incoming,
        (mut deadline, longest): (Deadline, usize),
        told: &mut dyn FnMut(Told),
    ) -> Result<C::Answer, Trouble> {
        let mut has_begun = false;
        let mut decoder = Decoder::new(longest);
        let mut printed = 0_u64;
        loop {
            while let Some(event) = decoder.message().map_err(Trouble::Refused)? {
                match event {
                    Event::Begun => has_begun = true,
                    Event::Progress(bytes) => {
                        deadline.moved(bytes);
                        told(Told::Progress(bytes));
                    }
                    Event::Line(line) => {
                        // Lines are logged on this machine.
                        printed = printed.saturating_add(line.text.len() as u64 + 1);
                        if printed > MOST_OUTPUT {
                            return Err(Trouble::Refused(Error::failed(format!(
                                "a command prints more than {} GiB",
                                MOST_OUTPUT >> 30
                            ))));
                        }
                        told(Told::Line(line));
                    }
                    Event::Done(mut answer) => {
                        if let Some(content) = C::answered(&mut answer) {
                            let rest = self.rest(decoder.into_rest(), body);
                            *content = deadline.within(rest).await??;
                        }
                        return Ok(answer);
                    }
                    Event::Failed(failure) => {
                        return Err(Trouble::Refused(failure.of_another_machine()));
                    }
                }
            }
            match deadline.within(body.frame()).await? {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        decoder.push(&data);
                    }
                }
                Some(Err(error)) => return Err(self.broken(&error, has_begun).await),
                None => {
                    return Err(Trouble::Lost {
                        error: lost("the response ended early"),
                        has_begun,
                    });
                }
            }
        }
    }

    /// Reads the rest of an answer's body and appends it to `begun`.
    async fn rest(&self, mut begun: Vec<u8>, mut body: Incoming) -> Result<Vec<u8>, Trouble> {
        while let Some(frame) = body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) if begun.len() + data.len() <= wire::MAX_CALL => {
                    begun.extend_from_slice(&data);
                }
                Ok(Ok(_)) => {
                    return Err(Trouble::Refused(Error::bad_content("the answer is too long")));
                }
                Ok(Err(_)) => {}
                Err(error) => return Err(self.broken(&error, true).await),
            }
        }
        Ok(begun)
    }
}

fn lost(why: &str) -> Error {
    Error::network(format!("the connection to the agent was lost: {why}"))
}

/// Reads the text of a refusal, if it comes in time.
pub(super) async fn text(body: Incoming) -> String {
    let bytes = tokio::time::timeout(ANSWER, Limited::new(body, REFUSAL).collect()).await;
    let bytes = bytes.ok().and_then(std::result::Result::ok);
    let bytes = bytes.map_or_else(Bytes::new, http_body_util::Collected::to_bytes);
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Remembers the end of the agent's stderr.
async fn listen(mut stderr: Box<dyn AsyncRead + Send + Unpin>, errors: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let part = buffer.get(..count).unwrap_or_default();
        tracing::debug!("agent: {}", String::from_utf8_lossy(part).trim_end());
        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.extend_from_slice(part);
        let surplus = errors.len().saturating_sub(ERRORS);
        errors.drain(..surplus);
    }
}

pub(super) enum Body {
    Whole(Option<Bytes>),
    Stream(BlobBody),
    /// Continues until the other end signals the end of the data.
    Pipe(ReadHalf<DuplexStream>),
}

impl Body {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pipe(source) => poll_block(source, context),
            Self::Stream(blob) => Pin::new(blob).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(blob) => blob.is_end_stream(),
            Self::Pipe(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(blob) => blob.size_hint(),
            Self::Pipe(_) => SizeHint::default(),
        }
    }
}

/// Opens a tunnel on a live connection.
pub(super) async fn open_tunnel(
    connection: &Connection,
    address: &str,
    port: u16,
) -> Result<Tunnel, Trouble> {
    let (ours, theirs) = tokio::io::duplex(WAITING);
    let (up, down) = tokio::io::split(theirs);
    let request = Request::post(format!("http://agent{}{}", wire::PREFIX, wire::TUNNEL))
        .header(wire::TUNNEL_TO, format!("{address} {port}"))
        .body(Body::Pipe(up))
        .map_err(|error| {
            let error = Error::usage(format!("`{address}` is not an address")).caused_by(error);
            Trouble::Refused(error)
        })?;
    let deadline = Deadline::answer("tunnel", 0);
    let response = connection.request_within(request, &deadline).await?;
    match response.status() {
        StatusCode::OK => {
            let failure = Failure::default();
            tokio::spawn(receive(response.into_body(), down, failure.clone()));
            Ok(Tunnel::new(ours, failure))
        }
        status => {
            let kind = match status {
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Kind::Network,
                StatusCode::FORBIDDEN => Kind::Denied,
                _ => Kind::Failed,
            };
            let why = text(response.into_body()).await;
            Err(Trouble::Refused(Error::new(kind, why)))
        }
    }
}

/// Forwards received data until either end closes.
async fn receive(mut body: Incoming, mut down: WriteHalf<DuplexStream>, failure: Failure) {
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                if down.write_all(&data).await.is_err() {
                    return;
                }
            }
            Ok(Err(_)) => {}
            Err(error) => {
                failure.tell(format!("the tunnel failed: {error}"));
                break;
            }
        }
    }
    let _ = down.shutdown().await;
}

/// Maximum amount of noise, in bytes.
const NOISE: usize = 256 << 10;
/// Timeout for the agent's greeting: logins and sudo can be slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of bytes of noise to show if nothing else arrives.
const SHOWN: usize = 200;

pub(super) type Output = Box<dyn AsyncRead + Send + Unpin>;

pub(super) enum Answered {
    /// The agent has greeted; the rest of the output is the connection.
    Agent(Output),
    /// The host has no agent for its `uname -s` and `uname -m`.
    Needs(String, String),
    /// The output ended without a greeting; holds the end of the output.
    Nothing(String),
}

/// Reads the output until the answer is known.
pub(super) async fn greeted(mut output: Output) -> Result<Answered> {
    let reading = async {
        let mut seen = Vec::new();
        let mut line = 0;
        loop {
            while let Some(length) =
                seen.get(line..).and_then(|rest: &[u8]| rest.iter().position(|byte| *byte == b'\n'))
            {
                let end = line + length;
                let text = String::from_utf8_lossy(seen.get(line..end).unwrap_or_default());
                match wire::said(&text) {
                    Said::Ready => {
                        let rest = seen.split_off(end + 1);
                        let output: Output = if rest.is_empty() {
                            output
                        } else {
                            Box::new(Cursor::new(rest).chain(output))
                        };
                        return Ok(Answered::Agent(output));
                    }
                    Said::Needed(system, machine) => return Ok(Answered::Needs(system, machine)),
                    Said::Other(version) => {
                        return Err(Error::failed(format!(
                            "the agent on the host is version {version}, this program is {}",
                            wire::ours()
                        ))
                        .hint("install the same version of imgctl and imgctl-agents, or drop IMGCTL_AGENT"));
                    }
                    Said::Noise => line = end + 1,
                }
            }
            if seen.len() > NOISE {
                return Err(Error::failed("it writes much output, but no greeting of an agent")
                    .hint(
                        "check whether a start-up file of the shell there starts another \
                           program",
                    ));
            }
            let read = output.read_buf(&mut seen).await;
            match read {
                Ok(0) | Err(_) => return Ok(Answered::Nothing(tail(&seen))),
                Ok(_) => {}
            }
        }
    };
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(answered) => answered,
        Err(_) => Err(Error::network(format!("no agent answered within {} s", PATIENCE.as_secs()))
            .hint(
                "check the start-up files of the user's shell there (~/.bashrc): they must neither \
                 read standard input nor wait",
            )),
    }
}

/// Returns the end of the output, on one line.
pub(super) fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(SHOWN);
    let text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
    let words: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = words.join("; ");
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_to(bytes: &[u8]) -> Result<Answered> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(greeted(Box::new(Cursor::new(bytes.to_vec()))))
    }

    #[test]
    fn noise_is_skipped_and_what_follows_is_kept() {
        let text = format!("Welcome!\r\n\u{ff}\x1b[0mlast login{}PRI", wire::greeting());
        let Answered::Agent(mut rest) = listen_to(text.as_bytes()).unwrap() else {
            panic!("no agent");
        };
        let mut bytes = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(rest.read_to_end(&mut bytes)).unwrap();
        assert_eq!(bytes, b"PRI");
    }

    #[test]
    fn other_answers_are_understood() {
        assert!(matches!(
            listen_to(b"motd\n\nimgctl-agent-needed Linux riscv64\n").unwrap(),
            Answered::Needs(system, machine) if system == "Linux" && machine == "riscv64"
        ));
        assert!(matches!(
            listen_to(b"a\nThis account is not available.\n").unwrap(),
            Answered::Nothing(text) if text == "a; This account is not available."
        ));
        let error = listen_to(b"\nimgctl-agent 99 8.0\n").err().unwrap();
        assert!(error.to_string().contains("8.0 (protocol 99)"), "{error}");
        assert!(listen_to(&vec![b'x'; NOISE * 2]).is_err());
    }
}
