//! Global flags and `IMGCTL_*` variables, resolved once into one value. Flags take precedence over
//! variables, and variables over defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice, ValueEnum};

use crate::cli::environment::Environment;
use crate::cli::limits::LimitsArgs;
use crate::ui::log::Level;
use crate::ui::{Colour, ProgressMode};
use imgctl_base::error::{Error, Result};
use imgctl_store::layer::Limits;

/// Flags that every verb accepts, before or after its name.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Directory of images, mounts and caches [env: IMGCTL_ROOT] [default: /var/lib/imgctl for
    /// root, otherwise ~/.local/share/imgctl]
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Print results as JSON, and errors as one JSON object on stderr [env: IMGCTL_JSON]
    #[arg(long, global = true)]
    json: bool,

    /// Log level on stderr [env: IMGCTL_LOG_LEVEL] [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<Level>,

    /// Log more; use twice to log everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Same as --log-level debug
    #[arg(long, global = true)]
    debug: bool,

    /// Print only the result and errors [env: IMGCTL_QUIET]
    #[arg(short, long, global = true)]
    quiet: bool,

    /// Progress display on stderr [env: IMGCTL_PROGRESS] [default: auto]
    #[arg(long, global = true, value_name = "MODE")]
    progress: Option<ProgressMode>,

    /// Disable colour [env: IMGCTL_NO_COLOR, NO_COLOR]
    #[arg(long, global = true)]
    no_color: bool,

    /// Do not sync to disk: faster, but data is lost in a power failure [env: IMGCTL_NO_SYNC]
    #[arg(long, global = true)]
    no_sync: bool,

    /// Answer yes to every prompt [env: IMGCTL_YES, SEALOS_PROMPT=disabled]
    #[arg(short, long, global = true)]
    yes: bool,

    #[command(flatten)]
    limits: LimitsArgs,
}

/// Resolved global flags and variables.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Directory of the store.
    pub(crate) root: PathBuf,
    pub(crate) json: bool,
    pub(crate) level: Level,
    pub(crate) quiet: bool,
    pub(crate) progress: ProgressMode,
    pub(crate) colour: Colour,
    pub(crate) sync: bool,
    pub(crate) assume_yes: bool,
    /// Limits for untrusted archives and layers.
    pub(crate) limits: Limits,
}

impl Settings {
    /// Resolves flags and variables. A variable with an invalid value is an error.
    pub(crate) fn resolve(globals: &Globals, environment: &Environment) -> Result<Self> {
        let switch = |flag: bool, name: &str| -> Result<bool> {
            Ok(flag || environment.switch(name)?.unwrap_or(false))
        };
        let no_prompt = matches!(
            environment.text("SEALOS_PROMPT")?,
            Some("disabled" | "disable" | "false" | "0")
        );
        Ok(Self {
            root: match globals.root.clone().or_else(|| environment.path("IMGCTL_ROOT")) {
                Some(root) => absolute(&root)?,
                None => default_root(environment)?,
            },
            json: switch(globals.json, "IMGCTL_JSON")?,
            level: level(globals, environment)?,
            quiet: switch(globals.quiet, "IMGCTL_QUIET")?,
            progress: match globals.progress {
                Some(mode) => mode,
                None => choice(environment, "IMGCTL_PROGRESS")?.unwrap_or(ProgressMode::Auto),
            },
            colour: colour(globals.no_color, environment),
            sync: !switch(globals.no_sync, "IMGCTL_NO_SYNC")?,
            assume_yes: no_prompt || switch(globals.yes, "IMGCTL_YES")?,
            limits: globals.limits.limits()?,
        })
    }
}

/// Settings needed before the command line is parsed, because errors of the parser use them too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    pub(crate) json: bool,
    pub(crate) colour: Colour,
}

impl Early {
    /// Looks for the two flags in the arguments before `--`.
    pub(crate) fn scan(arguments: &[OsString], environment: &Environment) -> Self {
        let given = |flag: &str| {
            arguments
                .iter()
                .take_while(|argument| *argument != "--")
                .any(|argument| argument == flag)
        };
        Self {
            json: given("--json") || matches!(environment.switch("IMGCTL_JSON"), Ok(Some(true))),
            colour: colour(given("--no-color"), environment),
        }
    }

    /// Returns the colour choice for clap.
    pub(crate) fn clap_colour(self) -> ColorChoice {
        match self.colour {
            Colour::Auto => ColorChoice::Auto,
            Colour::Never => ColorChoice::Never,
            Colour::Always => ColorChoice::Always,
        }
    }
}

/// Implements `NO_COLOR` as in no-color.org (set and not empty), and `CLICOLOR_FORCE` as in
/// bixense.com/clicolors.
fn colour(no_color: bool, environment: &Environment) -> Colour {
    let set = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
    if no_color
        || set("NO_COLOR")
        || matches!(environment.switch("IMGCTL_NO_COLOR"), Ok(Some(true)))
    {
        Colour::Never
    } else if set("CLICOLOR_FORCE") && environment.get("CLICOLOR_FORCE").is_some_and(|v| v != "0") {
        Colour::Always
    } else {
        Colour::Auto
    }
}

fn level(globals: &Globals, environment: &Environment) -> Result<Level> {
    if let Some(level) = globals.log_level {
        return Ok(level);
    }
    if globals.debug {
        return Ok(Level::Debug);
    }
    Ok(match globals.verbose {
        0 => choice(environment, "IMGCTL_LOG_LEVEL")?.unwrap_or(Level::Warn),
        1 => Level::Info,
        2 => Level::Debug,
        _ => Level::Trace,
    })
}

/// Reads a variable that takes the values of a flag.
fn choice<T: ValueEnum>(environment: &Environment, name: &str) -> Result<Option<T>> {
    let Some(text) = environment.text(name)? else {
        return Ok(None);
    };
    T::from_str(text, true).map(Some).map_err(|_| {
        let known: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
            .collect();
        Error::usage(format!("the variable {name} is `{text}`"))
            .hint(format!("it may be {}", known.join(", ")))
    })
}

fn default_root(environment: &Environment) -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/imgctl"));
    }
    // The XDG base directory specification requires relative paths to be ignored.
    if let Some(data) = environment.path("XDG_DATA_HOME").filter(|path| path.is_absolute()) {
        return Ok(data.join("imgctl"));
    }
    match environment.path("HOME") {
        Some(home) => Ok(home.join(".local/share/imgctl")),
        None => Err(Error::usage("cannot locate the image store: HOME is not set")
            .hint("pass --root DIR or set IMGCTL_ROOT")),
    }
}

/// Makes a path absolute without resolving symlinks, so that records stay valid when the caller
/// changes directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Error::usage(format!("cannot use --root {}", path.display())).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(globals: &Globals, variables: &[(&str, &str)]) -> Result<Settings> {
        let environment = Environment::new(
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        );
        Settings::resolve(globals, &environment)
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_default() {
        let flagged = Globals {
            root: Some("/flag".into()),
            log_level: Some(Level::Error),
            ..Globals::default()
        };
        let variables = [
            ("IMGCTL_ROOT", "/variable"),
            ("IMGCTL_LOG_LEVEL", "debug"),
            ("IMGCTL_PROGRESS", "plain"),
        ];
        let settings = resolve(&flagged, &variables).unwrap();
        assert_eq!(settings.root, Path::new("/flag"));
        assert_eq!(settings.level, Level::Error);
        assert_eq!(settings.progress, ProgressMode::Plain);

        let settings = resolve(&Globals::default(), &variables).unwrap();
        assert_eq!(settings.root, Path::new("/variable"));
        assert_eq!(settings.level, Level::Debug);

        let settings = resolve(&Globals::default(), &[("HOME", "/home/x")]).unwrap();
        assert_eq!(settings.level, Level::Warn);
        assert!(settings.sync && !settings.assume_yes && !settings.json);
    }

    #[test]
    fn variables_that_mean_nothing_are_errors_with_the_choices() {
        let error = resolve(&Globals::default(), &[("IMGCTL_PROGRESS", "loud")]).unwrap_err();
        assert_eq!(error.hints(), ["it may be auto, plain, json, none"]);
        assert!(resolve(&Globals::default(), &[("IMGCTL_NO_SYNC", "maybe")]).is_err());
    }

    #[test]
    fn sealos_prompt_and_colour_conventions_are_known() {
        let settings = resolve(
            &Globals::default(),
            &[("SEALOS_PROMPT", "disabled"), ("NO_COLOR", "1"), ("HOME", "/h")],
        )
        .unwrap();
        assert!(settings.assume_yes);
        assert_eq!(settings.colour, Colour::Never);
        let forced = resolve(&Globals::default(), &[("CLICOLOR_FORCE", "1"), ("HOME", "/h")]);
        assert_eq!(forced.unwrap().colour, Colour::Always);
    }

    #[test]
    fn early_flags_after_a_double_dash_are_arguments() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let none = Environment::default();
        assert!(Early::scan(&words(&["imgctl", "images", "--json"]), &none).json);
        assert!(!Early::scan(&words(&["imgctl", "images", "--", "--json"]), &none).json);
    }
}
