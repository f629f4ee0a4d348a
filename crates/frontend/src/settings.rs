//! Global flags and `IMGCTL_*` variables, resolved once into one value. Flags take precedence over
//! variables, and variables over defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice, ValueEnum};

use crate::{duration, environment::Environment};
use imgctl_base::error::{Error, Result};
use imgctl_layer::Limits;
use imgctl_ui as ui;
use imgctl_ui::{Colour, ProgressMode, terminal::Level};

/// Flags that every verb accepts, before or after its name.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Directory of images, mounts and caches [env: IMGCTL_ROOT] [default: /var/lib/imgctl for
    /// root, otherwise ~/.local/share/imgctl]
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Print results as JSON, errors as JSON on stderr [env: IMGCTL_JSON]
    #[arg(long, global = true)]
    json: bool,

    /// Log level on stderr [env: IMGCTL_LOG_LEVEL, BUILDAH_LOG_LEVEL] [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<Level>,

    /// Log more; use twice to log everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Same as --log-level debug
    #[arg(long, global = true)]
    debug: bool,

    /// Accepted for compatibility with existing scripts: logs always name the module
    #[arg(long, global = true, hide = true)]
    show_path: bool,

    /// Print only the result and errors [env: IMGCTL_QUIET]
    #[arg(short, long, global = true)]
    quiet: bool,

    /// Progress display on stderr [env: IMGCTL_PROGRESS] [default: auto]
    #[arg(long, global = true, value_name = "MODE")]
    progress: Option<ProgressMode>,

    /// Disable colour [env: IMGCTL_NO_COLOR, NO_COLOR]
    #[arg(long, global = true)]
    no_color: bool,

    /// Identity file for encrypted states [env: IMGCTL_STATE_IDENTITY]
    #[arg(long, global = true, value_name = "FILE")]
    state_identity: Option<PathBuf>,

    /// Do not sync to disk; unsafe at power loss [env: IMGCTL_NO_SYNC]
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
pub struct Settings {
    /// Directory of the store.
    pub root: PathBuf,
    pub ui: ui::Options,
    pub sync: bool,
    /// Decrypts the state of clusters.
    pub state_identity: Option<PathBuf>,
    /// Limits for untrusted archives and layers.
    pub limits: Limits,
}

impl Settings {
    /// Resolves flags and variables. A variable with an invalid value is an error.
    pub fn resolve(globals: &Globals, environment: &Environment) -> Result<Self> {
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
            ui: ui::Options {
                json: switch(globals.json, "IMGCTL_JSON")?,
                level: level(globals, environment)?,
                quiet: switch(globals.quiet, "IMGCTL_QUIET")?,
                progress: match globals.progress {
                    Some(mode) => mode,
                    None => choice(environment, "IMGCTL_PROGRESS")?.unwrap_or(ProgressMode::Auto),
                },
                colour: colour(globals.no_color, environment),
                assume_yes: no_prompt || switch(globals.yes, "IMGCTL_YES")?,
                is_dumb: environment
                    .get("TERM")
                    .is_none_or(|term| term == "dumb" || term.is_empty()),
                on_runner: on_runner(environment),
            },
            sync: !switch(globals.no_sync, "IMGCTL_NO_SYNC")?,
            state_identity: globals
                .state_identity
                .clone()
                .or_else(|| environment.path("IMGCTL_STATE_IDENTITY")),
            limits: globals.limits.limits()?,
        })
    }
}

/// Returns whether a CI system reads the log: GitHub's runner, Gitea's or GitLab's.
fn on_runner(environment: &Environment) -> bool {
    let is_on = |name: &str| matches!(environment.switch(name), Ok(Some(true)));
    is_on("GITHUB_ACTIONS") || is_on("GITLAB_CI")
}

/// Settings needed before the command line is parsed, because errors of the parser use them too.
#[derive(Clone, Copy, Debug)]
pub struct Early {
    pub json: bool,
    pub colour: Colour,
    /// A CI system takes lines of the log for commands.
    pub on_runner: bool,
}

impl Early {
    /// Looks for the two flags in the arguments before `--`.
    pub fn scan(arguments: &[OsString], environment: &Environment) -> Self {
        let given = |flag: &str| {
            arguments
                .iter()
                .take_while(|argument| *argument != "--")
                .any(|argument| argument == flag)
        };
        Self {
            json: given("--json") || matches!(environment.switch("IMGCTL_JSON"), Ok(Some(true))),
            colour: colour(given("--no-color"), environment),
            on_runner: on_runner(environment),
        }
    }

    /// Returns the colour choice for clap.
    pub fn clap_colour(self) -> ColorChoice {
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
        0 => match choice(environment, "IMGCTL_LOG_LEVEL")? {
            Some(level) => level,
            None => choice(environment, "BUILDAH_LOG_LEVEL")?.unwrap_or(Level::Warn),
        },
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

/// Limits for archives, layers and their entries.
#[derive(Args, Clone, Debug, Default)]
pub struct LimitsArgs {
    /// Maximum number of entries in a layer or an archive
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_entries: Option<u64>,

    /// Maximum uncompressed size of a layer or an archive
    #[arg(long, global = true, hide = true, value_name = "SIZE")]
    max_size: Option<String>,

    /// Maximum length of an entry's path, in bytes
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_path: Option<usize>,

    /// Maximum number of components in an entry's path
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_depth: Option<usize>,

    /// Maximum size of an entry's extended header
    #[arg(long, global = true, hide = true, value_name = "SIZE")]
    max_pax: Option<String>,

    /// Maximum number of uncompressed bytes per compressed byte, beyond the first GiB
    #[arg(long, global = true, hide = true, value_name = "N")]
    max_ratio: Option<u64>,
}

impl LimitsArgs {
    /// Returns the limits, with defaults for those that are not set.
    pub fn limits(&self) -> Result<Limits> {
        let size = |given: &Option<String>, usual: u64| match given {
            Some(text) => duration::bytes(text),
            None => Ok(usual),
        };
        let usual = Limits::default();
        let limits = Limits {
            entries: self.max_entries.unwrap_or(usual.entries),
            size: size(&self.max_size, usual.size)?,
            path: self.max_path.unwrap_or(usual.path),
            depth: self.max_depth.unwrap_or(usual.depth),
            pax: size(&self.max_pax, usual.pax)?,
            ratio: self.max_ratio.unwrap_or(usual.ratio),
            ratio_from: usual.ratio_from,
        };
        // The system does not accept longer ones, and headers are held in memory.
        let bounds = [
            ("--max-path", limits.path as u64, 4096),
            ("--max-depth", limits.depth as u64, 2048),
            ("--max-pax", limits.pax, 64 << 20),
        ];
        for (flag, given, most) in bounds {
            if given > most {
                return Err(Error::usage(format!("{flag} must be at most {most}")));
            }
        }
        Ok(limits)
    }
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
        assert_eq!(settings.ui.level, Level::Error);
        assert_eq!(settings.ui.progress, ProgressMode::Plain);

        let settings = resolve(&Globals::default(), &variables).unwrap();
        assert_eq!(settings.root, Path::new("/variable"));
        assert_eq!(settings.ui.level, Level::Debug);

        let settings = resolve(&Globals::default(), &[("HOME", "/home/x")]).unwrap();
        assert_eq!(settings.ui.level, Level::Warn);
        assert!(settings.sync && !settings.ui.assume_yes && !settings.ui.json);
    }

    #[test]
    fn variables_that_mean_nothing_are_errors_with_the_choices() {
        let error = resolve(&Globals::default(), &[("IMGCTL_PROGRESS", "loud")]).unwrap_err();
        assert_eq!(error.hints(), ["it may be auto, fullscreen, bars, plain, json, none"]);
        assert!(resolve(&Globals::default(), &[("IMGCTL_NO_SYNC", "maybe")]).is_err());
    }

    #[test]
    fn sealos_prompt_and_colour_conventions_are_known() {
        let settings = resolve(
            &Globals::default(),
            &[("SEALOS_PROMPT", "disabled"), ("NO_COLOR", "1"), ("HOME", "/h")],
        )
        .unwrap();
        assert!(settings.ui.assume_yes);
        assert_eq!(settings.ui.colour, Colour::Never);
        let forced = resolve(&Globals::default(), &[("CLICOLOR_FORCE", "1"), ("HOME", "/h")]);
        assert_eq!(forced.unwrap().ui.colour, Colour::Always);
    }

    #[test]
    fn early_flags_after_a_double_dash_are_arguments() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let none = Environment::default();
        assert!(Early::scan(&words(&["imgctl", "images", "--json"]), &none).json);
        assert!(!Early::scan(&words(&["imgctl", "images", "--", "--json"]), &none).json);
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        let given = LimitsArgs {
            max_entries: Some(7),
            max_size: Some("2GiB".to_owned()),
            ..LimitsArgs::default()
        };
        let expected = Limits { entries: 7, size: 2 << 30, ..Limits::default() };
        assert_eq!(given.limits().unwrap(), expected);
        for wrong in [
            LimitsArgs { max_size: Some("big".to_owned()), ..LimitsArgs::default() },
            LimitsArgs { max_path: Some(4097), ..LimitsArgs::default() },
        ] {
            assert!(wrong.limits().is_err(), "{wrong:?}");
        }
    }
}
