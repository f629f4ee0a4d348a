//! imgctl: build, ship, mount and run whole Kubernetes clusters as one OCI image.
//!
//! One package: this library, whose only export is [`run`], and a thin binary. The modules lie
//! on floors; a module uses what is on a lower floor, never a higher one
//! (`tests/architecture.rs` holds us to it, `docs/architecture.md` draws it):
//!
//! | floor | modules |
//! |---|---|
//! | 6 | `cli/` (a file per verb), `ui/` (progress, tables, JSON): all that prints, exits or reads the environment |
//! | 5 | `pipeline/`: what is done to clusters, planned, journalled, executed; `upgrade/`, `inplace/` |
//! | 4 | `cluster/` (what a cluster is to be), `runtime/` (kubeadm, k3s, scripts), `kube/` (the API), `sync/` (files to hosts) |
//! | 5 | `pipeline/`: what is done to clusters, planned, journalled, executed |
//! | 4 | `cluster/` (what a cluster is to be), `runtime/` (kubeadm, k3s, scripts), `kube/` (the API, what kubelets do), `sync/` (files to hosts) |
//! | 3 | `host/` (SSH, this machine), `agent/` (what runs on hosts for us) |
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

/// Runs one command line in the given environment and says how the process is to exit.
pub fn run(arguments: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> ExitCode {
    // Before anything starts a thread or opens a file.
    if let Some(code) = build::run::entry(arguments.get(1).map(OsString::as_os_str)) {
        return code;
    }
    if let Some(code) = agent::execution::entry(arguments.get(1..).unwrap_or_default()) {
        return code;
    }
    cli::run(arguments, environment)
}
