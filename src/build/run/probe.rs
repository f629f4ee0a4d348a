//! What this machine allows a sandbox to do, found out by trying, so that errors and
//! `imgctl` can say what to enable. Knows nothing of steps.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{self, MountFlags};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::spec::Network;
use super::{caps, idmap, namespaces, network, process, userns, wire};
use crate::error::{Error, IoContext, Result};

/// What works here. A `String` says why something does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capabilities {
    /// We have `CAP_SYS_ADMIN` here and need no user namespace.
    pub(crate) root: bool,
    /// Whether an ordinary user's sandbox would know more ids than its own (subuid, subgid).
    pub(crate) id_ranges: bool,
    /// All namespaces of a sandbox, with a user namespace unless `root`.
    pub(crate) namespaces: Result<(), String>,
    /// Mounting an overlay inside them.
    pub(crate) overlay: Result<(), String>,
    /// The kernel has seccomp.
    pub(crate) seccomp: bool,
    /// The path of the program that would connect a sandbox's network.
    pub(crate) network_helper: Option<String>,
}

/// Tries what works. `exe` is the imgctl binary, which is started to do the trying.
pub(crate) fn capabilities(exe: &Path) -> Result<Capabilities> {
    let (mut ours, theirs) = UnixStream::pair().doing(|| "cannot make a socket pair".to_owned())?;
    let mut child = Command::new(exe)
        .arg(super::PROBE)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .path("start", exe)?;
    let answer = wire::receive(&mut ours);
    let status = child
        .wait()
        .doing(|| "cannot wait for the probe".to_owned())?;
    answer?.ok_or_else(|| Error::failed(format!("the probe of this machine died ({status})")))
}

/// `__sandbox-probe`: tries, answers on standard input, and ends, and with it all it made.
pub(super) fn main() -> Result<()> {
    let mut caller = process::start()?;
    let root = caps::has(CapabilitySet::SYS_ADMIN);
    let id_ranges = idmap::ranges_available();
    let namespaces = enter(root).map_err(|error| error.to_string());
    let overlay = match &namespaces {
        Ok(()) => overlay(root).map_err(|error| error.to_string()),
        Err(_) => Err("there is no namespace to mount it in".to_owned()),
    };
    let found = Capabilities {
        root,
        id_ranges,
        namespaces,
        overlay,
        seccomp: rustix::thread::secure_computing_mode().is_ok(),
        network_helper: network::installed(),
    };
    wire::send(&mut caller, &found)
}

fn enter(root: bool) -> Result<()> {
    if !root {
        userns::enter()?;
    }
    namespaces::unshare_all(Network::None)
}

/// Mounts an overlay with all its directories in a file system in memory. Nobody else sees it.
fn overlay(root: bool) -> Result<()> {
    let base = Path::new("/proc");
    let doing = || "cannot mount an overlay".to_owned();
    mount::mount("tmpfs", base, "tmpfs", MountFlags::empty(), None).doing(doing)?;
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(base.join(name)).doing(doing)?;
    }
    let mut options = "lowerdir=/proc/lower,upperdir=/proc/upper,workdir=/proc/work".to_owned();
    if !root {
        options.push_str(",userxattr");
    }
    let options = std::ffi::CString::new(options)
        .map_err(std::io::Error::from)
        .doing(doing)?;
    mount::mount(
        "overlay",
        base.join("merged"),
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .doing(doing)
}
