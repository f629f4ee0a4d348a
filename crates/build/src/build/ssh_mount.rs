//! `RUN --mount=type=ssh`: a socket of the step's own in front of the SSH agent, because the agent's
//! socket belongs to the user who builds, and the command may run as another one. A command may list keys
//! and have data signed, as with BuildKit; every other request is refused.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use imgctl_base::error::{IoContext as _, Result};

/// Messages that a command may send (draft-ietf-sshm-ssh-agent, 6.1).
const REQUEST_IDENTITIES: u8 = 11;
const SIGN_REQUEST: u8 = 13;
/// Reply to all other messages.
const FAILURE: u8 = 5;
/// Maximum length of a message, in bytes, as in OpenSSH.
const LONGEST: u32 = 256 << 10;
/// Maximum number of connections at the same time.
const CONNECTIONS: usize = 64;

/// A socket whose connections reach an agent until this value is dropped.
#[derive(Debug)]
pub(super) struct ForwardedAgent {
    socket: PathBuf,
    stopped: Arc<AtomicBool>,
}

impl ForwardedAgent {
    /// Creates `socket`, which only the sandbox can reach, in front of `agent`. Without root, its
    /// owner cannot be changed: then the mode lets every user of the sandbox in.
    pub(super) fn start(
        agent: &Path,
        socket: &Path,
        (uid, gid): (u32, u32),
        mode: u32,
    ) -> Result<Self> {
        let listener = UnixListener::bind(socket).path("create the SSH agent's socket", socket)?;
        let is_root = rustix::process::geteuid().is_root();
        let mode = if is_root || (uid, gid) == (0, 0) { mode } else { mode | 0o666 };
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))
            .path("set the mode of", socket)?;
        if is_root {
            std::os::unix::fs::chown(socket, Some(uid), Some(gid))
                .path("set the owner of", socket)?;
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let (agent, stop) = (agent.to_owned(), Arc::clone(&stopped));
        let open = Arc::new(AtomicUsize::new(0));
        thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                if open.load(Ordering::Acquire) >= CONNECTIONS {
                    continue;
                }
                // A failed connection is the command's to notice.
                if let (Ok(client), Ok(agent)) = (connection, UnixStream::connect(&agent)) {
                    open.fetch_add(1, Ordering::AcqRel);
                    let open = Arc::clone(&open);
                    thread::spawn(move || {
                        let _ = forward(client, agent);
                        open.fetch_sub(1, Ordering::AcqRel);
                    });
                }
            }
        });
        Ok(Self { socket: socket.to_owned(), stopped })
    }
}

impl Drop for ForwardedAgent {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = UnixStream::connect(&self.socket);
    }
}

/// Passes requests on, one after the other, until either side ends.
fn forward(mut client: UnixStream, mut agent: UnixStream) -> io::Result<()> {
    loop {
        let request = message(&mut client)?;
        match request.first() {
            Some(&(REQUEST_IDENTITIES | SIGN_REQUEST)) => {
                send(&mut agent, &request)?;
                let answer = message(&mut agent)?;
                send(&mut client, &answer)?;
            }
            _ => send(&mut client, &[FAILURE])?,
        }
    }
}

/// Reads a message, which its length precedes.
fn message(from: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = Vec::new();
    from.take(length.into()).read_to_end(&mut message)?;
    if message.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

fn send(to: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    to.write_all(&[&length.to_be_bytes(), message].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent is one that answers each request with its type.
    #[test]
    fn a_command_lists_and_signs_and_does_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (agent, socket) = (directory.path().join("agent"), directory.path().join("socket"));
        let listener = UnixListener::bind(&agent).unwrap();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                thread::spawn(move || {
                    while let Ok(request) = message(&mut connection) {
                        send(&mut connection, &[100, request[0]]).unwrap();
                    }
                });
            }
        });
        let forwarded = ForwardedAgent::start(&agent, &socket, (0, 0), 0o600).unwrap();
        let mut client = UnixStream::connect(&socket).unwrap();
        let mut ask = |request: &[u8]| {
            send(&mut client, request).unwrap();
            message(&mut client).unwrap()
        };
        // Add, remove, lock, load a library, extend: refused, and the connection goes on.
        for kind in (0..=255).filter(|kind| ![REQUEST_IDENTITIES, SIGN_REQUEST].contains(kind)) {
            assert_eq!(ask(&[kind, 1, 2]), [FAILURE], "{kind}");
        }
        assert_eq!(ask(&[]), [FAILURE]);
        assert_eq!(ask(&[REQUEST_IDENTITIES]), [100, REQUEST_IDENTITIES]);
        assert_eq!(ask(&[SIGN_REQUEST, 7]), [100, SIGN_REQUEST]);
        // A message that is too long ends the connection.
        client.write_all(&(LONGEST + 1).to_be_bytes()).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        drop(forwarded);
    }
}
