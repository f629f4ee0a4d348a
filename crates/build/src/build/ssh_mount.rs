//! `RUN --mount=type=ssh`: a socket of the step's own in front of the SSH agent, because the agent's
//! socket belongs to the user who builds, and the command may run as another one.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use imgctl_base::error::{IoContext as _, Result};

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
        thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                // A failed connection is the command's to notice.
                if let (Ok(client), Ok(agent)) = (connection, UnixStream::connect(&agent)) {
                    forward(&client, &agent);
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

/// Copies in both directions, each until its end.
fn forward(client: &UnixStream, agent: &UnixStream) {
    for (from, to) in [(client, agent), (agent, client)] {
        if let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) {
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
        }
    }
}
