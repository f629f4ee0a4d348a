//! The command line: arguments to values, one call, presentation, exit code.
//!
//! With `ui/`, the only floor that prints, prompts, exits and reads the environment. Must hold
//! no logic: a verb's file parses its arguments, calls a lower floor and shows the result.

use std::ffi::OsString;
use std::process::ExitCode;

/// Parses and runs one command line.
pub(crate) fn run(_arguments: Vec<OsString>, _environment: Vec<(OsString, OsString)>) -> ExitCode {
    ExitCode::SUCCESS
}
