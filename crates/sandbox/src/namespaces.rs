//! `__sandbox-outer`: makes the namespaces, starts pid 1 in them and waits for it. Does not know
//! what pid 1 mounts.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sched::CloneFlags;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::CapabilitySet;

use super::spec::{Exit, Network, RunSpec};
use super::wire::{self, Event, Go};
use super::{idmap, network, process, root, seccomp};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::wire::Failure;

/// Makes the namespaces for the spec on standard input.
pub(super) fn main() -> Result<()> {
    let mut supervisor = process::start()?;
    let Some(spec) = wire::receive::<RunSpec>(&mut supervisor)? else {
        return Ok(());
    };
    let event = match enter_and_wait(&spec, &mut supervisor) {
        Ok(Some(exit)) => Event::Ended(exit),
        Ok(None) => return Ok(()),
        Err(error) => Event::Failed { failure: (&error).into(), stubs: Vec::new() },
    };
    wire::send(&mut supervisor, &event)
}

/// Returns `None` if the supervisor is gone.
fn enter_and_wait(spec: &RunSpec, supervisor: &mut UnixStream) -> Result<Option<Exit>> {
    let mut notes = Vec::new();
    if !seccomp::has(CapabilitySet::SYS_ADMIN) {
        notes.extend(enter_user_namespace()?);
    }
    unshare_all(spec.network)?;
    // Entering a user namespace may have reset this setting.
    process::die_with_parent()?;
    if spec.network != Network::Host {
        network::raise_loopback()?;
    }
    let exe = protect_own_binary()?;
    wire::send(supervisor, &Event::Namespaces { notes })?;
    if wire::receive::<Go>(supervisor)?.is_none() {
        return Ok(None);
    }
    let status = Command::new(exe)
        .arg(super::INIT)
        .env_clear()
        .stdin(Stdio::inherit())
        .status()
        .doing(|| "cannot start the first process of the sandbox".to_owned())?;
    Ok(Some(match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }))
}

/// Enters a new user namespace with the IDs granted to this user.
///
/// The maps are written from outside, by a process that is started before entering: newuidmap works
/// only from there.
fn enter_user_namespace() -> Result<Option<String>> {
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
    let answer = unshare(CloneFlags::CLONE_NEWUSER, "user")
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
pub(super) fn map_ids() -> Result<()> {
    let mut asker = process::start()?;
    let Some(pid) = wire::receive::<u32>(&mut asker)? else {
        return Ok(());
    };
    let answer = idmap::write(pid).map_err(|error| Failure::from(&error));
    wire::send(&mut asker, &answer)
}

/// Enters all namespaces of a command, except for the user namespace.
pub(super) fn unshare_all(network: Network) -> Result<()> {
    unshare_mounts()?;
    unshare(CloneFlags::CLONE_NEWPID, "pid")?;
    unshare(CloneFlags::CLONE_NEWIPC, "ipc")?;
    unshare(CloneFlags::CLONE_NEWUTS, "uts")?;
    if network != Network::Host {
        unshare(CloneFlags::CLONE_NEWNET, "network")?;
    }
    // This only hides the host's cgroup path: kernels without cgroups have nothing to hide.
    let _ = nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP);
    Ok(())
}

/// Enters a mount namespace whose mounts are not visible outside.
pub(super) fn unshare_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS, "mount")?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .doing(|| "cannot make the mounts of the sandbox private".to_owned())
}

/// Enters one new namespace; `name` is its name in errors and sysctls.
pub(super) fn unshare(flags: CloneFlags, name: &str) -> Result<()> {
    nix::sched::unshare(flags).map_err(|errno| refused(name, errno.into()))
}

/// Returns the error for a namespace that could not be created, with advice for the administrator.
fn refused(name: &str, source: io::Error) -> Error {
    let full = source.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error());
    let error = Error::io(format!("cannot create a {name} namespace for RUN"), source);
    if full {
        error.hint(format!("raise /proc/sys/user/max_{name}_namespaces"))
    } else if name == "user" {
        error
            .hint("run imgctl as root, or allow user namespaces: kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0")
            .hint("inside another container, that container's seccomp profile must allow unshare and mount (docker: --privileged, or --security-opt seccomp=unconfined)")
    } else {
        error.hint("imgctl needs CAP_SYS_ADMIN for RUN, or user namespaces; Kubefiles with only COPY and ADD need neither")
    }
}

/// Binds our own binary read-only over itself, in this mount namespace only, and returns its path.
///
/// Until pid 1 has become the command, and again if the command executes `/proc/self/exe`, a
/// process inside shows our binary as its executable. Root inside could open the host's file
/// through it and overwrite it (CVE-2019-5736). A read-only mount prevents this.
fn protect_own_binary() -> Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    let exe = std::fs::read_link(&link).path("read", &link)?;
    let same = std::fs::metadata(&link).and_then(|running| {
        let there = std::fs::metadata(&exe)?;
        Ok((running.dev(), running.ino()) == (there.dev(), there.ino()))
    });
    if !matches!(same, Ok(true)) {
        // An upgrade has replaced the file while this process runs: it will not be executed again.
        return Ok(link);
    }
    rustix::mount::mount_bind(&exe, &exe).path("bind", &exe)?;
    root::restrict(&exe, MountFlags::RDONLY | MountFlags::NODEV).path("protect", &exe)?;
    Ok(exe)
}
