//! imgctl: build, ship, mount and run whole Kubernetes clusters as one OCI image.
//!
//! The command line: `cli/`, the verbs. With the crates `frontend` (what verbs share) and `ui` (progress, tables,
//! JSON), it is all that prints, exits or reads the environment. `testbed/` is the program behind `imgctl testbed`.
//! What the other verbs do lies in the other crates below `crates/`.

mod cli;
mod testbed;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one command line in the given environment and says how the process is to exit.
pub fn run(arguments: &[OsString], environment: Vec<(OsString, OsString)>) -> ExitCode {
    // Before anything starts a thread or opens a file.
    if let Some(code) = imgctl_sandbox::entry(arguments.get(1).map(OsString::as_os_str)) {
        return code;
    }
    if let Some(code) = imgctl_host::agent::execution::entry(arguments.get(1..).unwrap_or_default())
    {
        return code;
    }
    if let Some(code) = imgctl_host::render::entry(arguments.get(1..).unwrap_or_default()) {
        return code;
    }
    cli::run(arguments, environment)
}
