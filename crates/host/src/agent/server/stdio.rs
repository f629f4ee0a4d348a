//! stdin and stdout as asynchronous streams: pipes and sockets directly, other types (files)
//! through threads.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use imgctl_base::error::{Error, IoContext, Result};

/// Pipe capacity to request, in bytes, for fewer context switches.
const PIPE: usize = 1 << 20;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Opens both streams. A terminal is rejected, because the protocol is not for people.
#[expect(clippy::disallowed_methods, reason = "the protocol's own streams, never a terminal")]
pub(super) fn open() -> Result<(Input, Output)> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    if input.is_terminal() || output.is_terminal() {
        return Err(Error::usage(
            "the agent serves a controller and cannot be used from a terminal",
        ));
    }
    let doing = || "cannot use stdin and stdout".to_owned();
    let input: Input = match kind(input.as_fd())? {
        FileType::Fifo => {
            let fd = pipe_of(input.as_fd())?;
            Box::new(pipe::Receiver::from_owned_fd(fd).doing(doing)?)
        }
        FileType::Socket => Box::new(socket(input.as_fd())?),
        _ => Box::new(file(input.as_fd())?),
    };
    let output: Output = match kind(output.as_fd())? {
        FileType::Fifo => {
            let fd = pipe_of(output.as_fd())?;
            Box::new(pipe::Sender::from_owned_fd(fd).doing(doing)?)
        }
        FileType::Socket => Box::new(socket(output.as_fd())?),
        _ => Box::new(file(output.as_fd())?),
    };
    Ok((input, output))
}

fn kind(fd: BorrowedFd<'_>) -> Result<FileType> {
    let stat = rustix::fs::fstat(fd).doing(|| "cannot inspect stdin and stdout".to_owned())?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn own(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().doing(|| "cannot use stdin and stdout".to_owned())
}

fn pipe_of(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let fd = own(fd)?;
    // If the kernel's limit is lower, the capacity stays unchanged.
    let _ = rustix::pipe::fcntl_setpipe_size(&fd, PIPE);
    Ok(fd)
}

fn file(fd: BorrowedFd<'_>) -> Result<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(std::fs::File::from(own(fd)?)))
}

fn socket(fd: BorrowedFd<'_>) -> Result<UnixStream> {
    let doing = || "cannot use stdin and stdout".to_owned();
    let stream = std::os::unix::net::UnixStream::from(own(fd)?);
    stream.set_nonblocking(true).doing(doing)?;
    UnixStream::from_std(stream).doing(doing)
}
