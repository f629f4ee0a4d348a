//! The command line: arguments to values, one call, presentation, exit code.
//!
//! With the crates `frontend` and `ui`, the only layer that prints, prompts, exits and reads the environment. Must
//! not contain logic: a verb's file parses its arguments, calls a lower layer and shows the result.

mod accepted;
mod arguments;
mod commands;
mod completion;
mod failure;
mod file_changes;
mod habits;
mod home_paths;
mod overview;

use std::ffi::OsString;
use std::process::ExitCode;

use imgctl_base::error::{Error, Kind, Result};
use imgctl_frontend::context::Context;
use imgctl_frontend::environment::Environment;
use imgctl_frontend::settings::{self, Settings};

/// Parses and runs one command line (docs/cli.md has the exit codes).
pub(crate) fn run(arguments: &[OsString], environment: Vec<(OsString, OsString)>) -> ExitCode {
    let mut environment = Environment::new(environment);
    // Needed before parsing: errors of the command line itself are already shown this way.
    let early = settings::Early::scan(arguments, &environment);
    let home = environment.path("HOME");
    let parsed = arguments::parse(arguments, early.clap_colour(), home.as_deref());
    let (globals, verb, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return failure::of_parser(&error, early),
    };
    for (name, value) in accepted::variables(&matches) {
        environment.set(name, value);
    }
    let outcome = Settings::resolve(&globals, &environment).and_then(|settings| {
        let context = Context::new(settings, environment);
        if let Some(refusal) = accepted::refusal(&matches) {
            return Err(refusal);
        }
        for note in accepted::notes(&matches) {
            context.ui.note(&note);
        }
        // In the log only: images of CI systems set some of these for every command.
        for note in accepted::unread(&context.environment) {
            tracing::info!("{note}");
        }
        let outcome = guarded(|| verb.run(&context));
        context.finish_report(outcome)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&commands::recipe::hinted(error), early),
    }
}

/// A panic is a bug in imgctl; users still get an error with a hint and an exit code. (The release
/// binary prints the location and aborts instead.)
fn guarded(run: impl FnOnce() -> Result<()>) -> Result<()> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|_| {
        Err(Error::new(
            Kind::Failed,
            "imgctl stopped because of a defect, at the point shown above",
        )
        .hint("please report it, with the command line and that message"))
    })
}
