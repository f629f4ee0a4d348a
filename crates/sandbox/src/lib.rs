//! The sandbox in which a `RUN` step's command is executed: a small container runtime that needs no
//! other one (no runc, no crun) and no `unsafe`, because it never forks: each stage is a new
//! execution of this binary.
//!
//! ```text
//! caller ── launch::run      streams output; any number of threads
//!   └─ __sandbox             supervisor: host's namespaces; network helper, clean-up
//!       └─ __sandbox-outer   makes the namespaces, waits for the command
//!           └─ __sandbox-init  pid 1: mounts, pivot_root, drops privileges, becomes the command
//! ```
//!
//! They communicate over one socket pair ([`wire`]). Each dies with its parent, and everything
//! inside dies with pid 1. All mounts are made in a private mount namespace, so nothing can be left
//! behind on the host.
//!
//! `no_new_privs` is set (with [`Security::Sandbox`]): a seccomp filter installed by safe code
//! needs it, and a build has no reason to gain privileges through setuid programs. Docker leaves it
//! off; the difference is visible only with `sudo` and similar programs after `USER`.
//!
//! Must not depend on Kubefiles, images, layers or stores: the root is a directory, or an overlay
//! that the caller describes and that is attached in the sandbox's own mount namespace.

pub mod passwd;
pub mod spec;

mod below;
mod emulator;
pub mod idmap;
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

pub use launch::run;

/// First argument of the process that supervises one sandbox.
const SUPERVISOR: &str = "__sandbox";
/// First argument of the process that makes the namespaces.
const OUTER: &str = "__sandbox-outer";
/// First argument of the process that becomes the command.
const INIT: &str = "__sandbox-init";
/// First argument of the process that maps IDs for a process in a new user namespace.
const IDMAP: &str = "__sandbox-idmap";

/// Runs an internal process if `argument`, the first one of the command line, names one.
///
/// The binary calls this before anything else: these processes must have a single thread, and no
/// open descriptors except for the standard three. They exit with 0 whenever they could report the
/// outcome to their parent.
pub fn entry(argument: Option<&OsStr>) -> Option<ExitCode> {
    let outcome = match argument?.to_str()? {
        SUPERVISOR => supervisor::main(),
        OUTER => namespaces::main(),
        INIT => init::main(),
        IDMAP => namespaces::map_ids(),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The parent is gone, or this process was not started by imgctl.
        Err(_) => ExitCode::from(125),
    })
}
