//! A way to run commands on a host.

use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

use imgctl_base::error::Result;

pub use crate::host::command::{Source, follow};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The user that runs the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The user who logged in.
    User,
    /// root: directly if the login user is root, otherwise through sudo.
    Root,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(u8),
    /// Terminated by the signal with this number.
    Signal(i32),
}

impl Ended {
    /// Returns whether the command ended with exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Describes how the command ended: `with code 1`, `by signal 9`.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Code(code) => format!("with code {code}"),
            Self::Signal(signal) => format!("by signal {signal}"),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A running command. Dropping `input` closes its stdin; dropping the whole channel terminates the
/// command (SIGTERM to its process group over SSH, SIGKILL on the controller).
///
/// Both outputs must be read to the end: the channels of one connection share its flow, so that an
/// unread output blocks the others.
pub struct Channel {
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    pub output: Box<dyn AsyncRead + Send + Unpin>,
    pub errors: Box<dyn AsyncRead + Send + Unpin>,
    /// Resolves when the command has ended; an error if the connection was lost before. Output may
    /// still be pending, and a process that the command left behind may keep the outputs open.
    pub ended: BoxFuture<'static, Result<Ended>>,
}

/// One connection to one host, shared by all callers.
pub trait Transport: Send + Sync {
    /// Returns the name of the host in messages.
    fn label(&self) -> &str;

    /// Returns whether this is the controller itself.
    fn is_local(&self) -> bool;

    /// Starts a line of POSIX shell, 8-bit clean and without a terminal. The line must not contain
    /// secrets, because it is visible in the host's process table. A sudo password is sent on stdin
    /// before the command reads it. A lost connection is re-established first.
    ///
    /// The future may be polled on any runtime; the reactor does the work of the channel.
    fn open<'a>(&'a self, line: &'a str, privilege: Privilege) -> BoxFuture<'a, Result<Channel>>;
}
