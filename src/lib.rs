//! imgctl: build, ship, mount and run whole Kubernetes clusters as one OCI image.
//!
//! One package: this library, whose only export is [`run`], and a thin binary. Each module is on a
//! floor and uses only modules on lower floors, except for the pairs that `tests/architecture.rs`
//! lists (that test enforces the rule; `docs/architecture.md` shows a diagram):
//!
//! | floor | modules |
//! |---|---|
//! | 6 | `cli/` (one file per verb), `ui/` (progress, tables, JSON): everything that prints, exits or reads the environment |
//! | 5 | `pipeline/` (operations on clusters: planned, journalled, executed), `upgrade/`, `inplace/` |
//! | 4 | `cluster/` (desired state of a cluster), `runtime/` (kubeadm, k3s, scripts), `kube/` (the API, effects of kubelets), `sync/` (files to hosts) |
//! | 3 | `host/` (SSH, this machine), `agent/` (the part of imgctl that runs on hosts) |
//! | 2 | `build/`, `embed/`, `edit/`, `trust/`, `transfer/`, `mount/`, `render/` |
//! | 1 | `store/`, `layer/`, `registry/` |
//! | 0 | `image/`, `kubefile/`, `template/`, `fs/`, `error.rs`, `progress.rs`, `secret.rs` |

mod agent;
mod build;
mod cli;
mod cluster;
mod edit;
mod embed;
mod error;
mod fs;
mod host;
mod image;
mod inplace;
mod kube;
mod kubefile;
mod layer;
mod mount;
mod pipeline;
mod progress;
mod registry;
mod render;
mod runtime;
mod secret;
mod store;
mod sync;
mod template;
mod transfer;
mod trust;
mod ui;
mod upgrade;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one command line in the given environment and returns the exit code of the process.
pub fn run(arguments: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> ExitCode {
    // Must run before anything starts a thread or opens a file.
    if let Some(code) = build::run::entry(arguments.get(1).map(OsString::as_os_str)) {
        return code;
    }
    if let Some(code) = agent::execution::entry(arguments.get(1..).unwrap_or_default()) {
        return code;
    }
    cli::run(arguments, environment)
}
