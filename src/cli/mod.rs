//! The command line: arguments to values, one call, presentation, exit code.
//!
//! With `ui/`, the only layer that prints, prompts, exits and reads the environment. Must not
//! contain logic: a verb's file parses its arguments, calls a lower layer and shows the result.

mod accepted;
mod adopt_view;
mod archive_output;
mod arguments;
mod cache_spec;
mod choice;
mod cluster_options;
mod commands;
mod completion;
mod context;
mod drain_options;
mod duration;
mod environment;
mod failure;
mod file_changes;
mod format;
mod front_end;
mod habits;
mod home_paths;
mod image_options;
mod kubeconfig_options;
mod mirror_options;
mod names;
mod overview;
mod registry_options;
mod rehearsal_view;
mod release_note;
mod report_output;
mod requested_report;
mod settings;
mod signed_images;
mod signing_options;
mod source_options;
mod ssh_options;
mod status_view;
mod upgrade_choices;
mod upgrade_view;

use std::ffi::OsString;
use std::process::ExitCode;

use context::Context;
use environment::Environment;
use settings::Settings;

use imgctl_base::error::{Error, Kind, Result};

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
