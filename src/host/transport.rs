//! A way to run commands on a host.

use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Result;

pub(crate) use crate::host::command::{Source, follow};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who runs the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// The user who logged in.
    User,
    /// root: that user when it is root, else through sudo.
    Root,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(u8),
    /// By a signal of that number.
    Signal(i32),
}

impl Ended {
    /// Whether it ended with exit code 0.
    pub(crate) fn is_success(self) -> bool {
        self == Self::Code(0)
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

/// A running command. Dropping `input` closes its stdin; dropping the whole of it ends the command
/// (SIGTERM to its process group over SSH, SIGKILL on the machine we run on).
///
/// Both outputs must be read to their ends: the channels of one connection share its flow, so one
/// that is not read from holds up the others.
pub(crate) struct Channel {
    pub(crate) input: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) output: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) errors: Box<dyn AsyncRead + Send + Unpin>,
    /// Resolves when the command has ended; an error when the connection was lost before. Output
    /// may still be on its way, and a process it left behind may hold the outputs open.
    pub(crate) ended: BoxFuture<'static, Result<Ended>>,
}

/// One connection to one host, shared by everything that talks to it.
pub(crate) trait Transport: Send + Sync {
    /// The host as messages name it.
    fn label(&self) -> &str;

    /// Whether it is the machine we run on.
    fn is_local(&self) -> bool;

    /// Starts a line of POSIX shell. 8-bit clean, without a terminal; the line must hold no
    /// secrets (it is in the host's process table). A password for sudo is given on stdin before
    /// the command sees it. A connection that was lost is made anew first.
    ///
    /// The future may be polled on any runtime; the channel's own work is done by the reactor.
    fn open<'a>(&'a self, line: &'a str, privilege: Privilege) -> BoxFuture<'a, Result<Channel>>;
}
