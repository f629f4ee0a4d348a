//! Becomes root in a new user namespace, which allows an ordinary user to mount and run. Does not
//! know about the namespaces inside it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nix::sched::CloneFlags;

use super::{idmap, namespaces, process, wire};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::wire::Failure;

/// Enters a new user namespace with the IDs granted to this user.
///
/// The maps are written from outside, by a process that is started before entering: newuidmap works
/// only from there.
pub(super) fn enter() -> Result<Option<String>> {
    let (mut socket, theirs) =
        UnixStream::pair().doing(|| "cannot create a socket pair for the ID maps".to_owned())?;
    let mut mapper = Command::new("/proc/self/exe")
        .arg(super::IDMAP)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .doing(|| "cannot start the process that maps IDs".to_owned())?;
    let answer = namespaces::unshare(CloneFlags::CLONE_NEWUSER, "user")
        .and_then(|()| wire::send(&mut socket, &std::process::id()))
        .and_then(|()| wire::receive::<Result<Option<String>, Failure>>(&mut socket));
    // The mapper's socket ends with this one, even if no request was sent.
    drop(socket);
    mapper.wait().doing(|| "cannot wait for the process that maps IDs".to_owned())?;
    match answer? {
        Some(Ok(note)) => Ok(note),
        Some(Err(failure)) => Err(failure.into()),
        None => Err(Error::failed("the process that maps IDs died")),
    }
}

/// `__sandbox-idmap`: maps IDs for the process whose number arrives on standard input.
pub(super) fn main() -> Result<()> {
    let mut asker = process::start()?;
    let Some(pid) = wire::receive::<u32>(&mut asker)? else {
        return Ok(());
    };
    let answer = idmap::write(pid).map_err(|error| Failure::from(&error));
    wire::send(&mut asker, &answer)
}
