//! The `imgctl` binary: passes the command line and the environment to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    imgctl::run(&std::env::args_os().collect::<Vec<_>>(), std::env::vars_os().collect())
}
