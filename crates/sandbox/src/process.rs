//! The first steps of each sandbox process. Does not know about namespaces.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::Mode;
use rustix::process::Signal;

use imgctl_base::error::{IoContext, Result};

/// Takes over standard input as the socket to the parent, closes all other inherited descriptors,
/// and makes this process die with its parent.
///
/// Nothing has been opened yet, so every descriptor above 2 was inherited from a caller of imgctl
/// that forgot to close it. A command in the sandbox could use it to leave the root
/// (CVE-2024-21626).
pub(super) fn start() -> Result<UnixStream> {
    die_with_parent()?;
    close_inherited()?;
    let stdin = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .doing(|| "cannot take over standard input".to_owned())?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(UnixStream::from(stdin))
}

/// Makes the kernel kill this process when its parent dies. A change of user or user namespace
/// resets this.
pub(super) fn die_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing(|| "cannot tie the lifetime of the sandbox to its parent".to_owned())
}

/// Replaces standard input with `/dev/null`.
pub(super) fn release_stdin() -> Result<()> {
    let null = File::open("/dev/null").path("open", "/dev/null")?;
    put_stdin(&null.into())
}

/// Makes `file` standard input.
pub(super) fn put_stdin(file: &OwnedFd) -> Result<()> {
    rustix::stdio::dup2_stdin(file).doing(|| "cannot set standard input".to_owned())
}

fn close_inherited() -> Result<()> {
    let entries = std::fs::read_dir("/proc/self/fd").path("read", "/proc/self/fd")?;
    let numbers: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&number| number > 2)
        .collect();
    for number in numbers {
        // One of them belongs to the directory just read, which is already closed.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}
