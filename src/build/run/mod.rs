//! The sandbox in which a `RUN` step's command is executed: a small container runtime that needs
//! no other (no runc, no crun) and no `unsafe`, because it never forks: each stage is this binary
//! executed again.
//!
//! ```text
//! caller ── launch::run      streams output; any number of threads
//!   └─ __sandbox             supervisor: host's namespaces; network helper, clean-up
//!       └─ __sandbox-outer   makes the namespaces, waits for the command
//!           └─ __sandbox-init  pid 1: mounts, pivot_root, drops privileges, becomes the command
//! ```
//!
//! They talk over one socket pair ([`wire`]); each dies with its parent, and all that is inside
//! dies with pid 1. Whatever is mounted is mounted in a private mount namespace, so nothing can be
//! left behind on the host.
//!
//! `no_new_privs` is set (with [`Security::Sandbox`]): a seccomp filter installed by safe code
//! needs it, and a build has no business gaining privileges through setuid programs. Docker
//! leaves it off; the difference shows only in `sudo` and the like after `USER`.
//!
//! Must not know about Kubefiles, images, layers or stores: the root is a directory, or an overlay
//! that the caller has described and that is attached in the sandbox's own mount namespace.

pub(crate) mod passwd;
pub(crate) mod spec;
mod userns;

mod caps;
mod devices;
pub(crate) mod idmap;
mod init;
mod launch;
mod namespaces;
mod network;
mod process;
mod root;
mod seccomp;
mod supervisor;
mod syscalls;
mod target;
mod wire;

use std::ffi::OsStr;
use std::process::ExitCode;

pub(crate) use launch::run;

/// First argument of the process that makes one sandbox.
const SUPERVISOR: &str = "__sandbox";
/// First argument of the process that makes the namespaces.
const OUTER: &str = "__sandbox-outer";
/// First argument of the process that becomes the command.
const INIT: &str = "__sandbox-init";
/// First argument of the process that maps ids for one that has entered a user namespace.
const IDMAP: &str = "__sandbox-idmap";

/// Runs one of our own inner processes if `argument`, the command line's first, names one.
///
/// The binary asks this before anything else: these processes must have one thread only, and no
/// descriptor open but the standard three. They exit with 0 whenever they could tell their parent
/// what happened.
pub(crate) fn entry(argument: Option<&OsStr>) -> Option<ExitCode> {
    let outcome = match argument?.to_str()? {
        SUPERVISOR => supervisor::main(),
        OUTER => namespaces::main(),
        INIT => init::main(),
        IDMAP => userns::main(),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody listens any more, or this is no child of ours.
        Err(_) => ExitCode::from(125),
    })
}
