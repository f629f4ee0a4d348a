//! User-facing output: progress, tables, prompts, JSON events. Must not depend on stores or images.

mod ansi;
#[cfg(feature = "testing")]
mod asking;
mod canvas;
pub mod ci;
pub mod edge;
mod full_screen;
mod groups;
pub mod hosts_view;
mod progress;
mod prompt;
pub mod results;
mod run_draw;
mod run_screen;
mod run_state;
mod screen;
pub mod status_screen;
pub mod table;
pub mod terminal;
mod tty;

use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use results::Results;
use serde::Serialize;
use terminal::Terminal;

use imgctl_base::error::{Error, Result};
use imgctl_base::progress::{Reporter, Silent};
use imgctl_base::text::Lines;
use imgctl_journal::event::Listener;

/// How to display progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// On a terminal the whole screen for a run over several hosts, and bars otherwise; elsewhere
    /// plain lines
    Auto,
    /// The whole screen for every run over hosts, where there is a terminal
    Fullscreen,
    /// Bars, where there is a terminal
    #[value(alias = "tty")]
    Bars,
    /// One line for each beginning and end
    #[value(alias = "lines")]
    Plain,
    /// One JSON object per event and line
    #[value(alias = "rawjson")]
    Json,
    /// Nothing
    #[value(alias = "quiet")]
    None,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal.
    Auto,
    Never,
    Always,
}

/// Options of the user interface.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub json: bool,
    pub quiet: bool,
    pub level: terminal::Level,
    pub progress: ProgressMode,
    pub colour: Colour,
    pub assume_yes: bool,
    /// The terminal cannot move its cursor (`TERM=dumb`).
    pub is_dumb: bool,
    /// A CI system takes lines of the log for commands.
    pub on_runner: bool,
}

/// Smallest number of hosts of a run that gets the whole screen unasked.
const SEVERAL: usize = 2;

/// Returns whether to colour text on stderr.
pub fn colours_stderr(colour: Colour) -> bool {
    colours(colour, edge::is_terminal(edge::Stream::Error))
}

fn colours(colour: Colour, is_terminal: bool) -> bool {
    match colour {
        Colour::Auto => is_terminal,
        Colour::Never => false,
        Colour::Always => true,
    }
}

/// Output to the user: results on stdout, everything else on stderr.
pub struct Ui {
    options: Options,
    reporter: Box<dyn Reporter>,
    terminal: Arc<Terminal>,
    /// The terminal's full-screen mode, from its first use on; `None` if it cannot be had.
    screen: OnceLock<Option<screen::Screen>>,
}

impl Ui {
    /// Sets up progress and logging for this process.
    pub fn new(options: Options) -> Self {
        let on_terminal = edge::is_terminal(edge::Stream::Error);
        let terminal = Arc::new(Terminal::new(options.on_runner));
        terminal::start_log(options.level, colours(options.colour, on_terminal), &terminal);
        let quiet = options.quiet || options.json;
        let shown = |bars| Box::new(progress::OnTerminal { terminal: Arc::clone(&terminal), bars });
        let reporter: Box<dyn Reporter> = match options.progress {
            ProgressMode::None => Box::new(Silent),
            ProgressMode::Json => Box::new(progress::JsonEvents::new(edge::json_to_stderr)),
            ProgressMode::Plain => shown(false),
            ProgressMode::Auto if quiet => Box::new(Silent),
            ProgressMode::Auto | ProgressMode::Fullscreen | ProgressMode::Bars => {
                shown(on_terminal)
            }
        };
        Self { options, reporter, terminal, screen: OnceLock::new() }
    }

    /// Returns the view for runs over hosts; `None` if they must not be displayed.
    pub fn run_view(&self) -> Option<Box<dyn Listener>> {
        let live = match self.options.progress {
            ProgressMode::None | ProgressMode::Json => return None,
            ProgressMode::Plain => false,
            ProgressMode::Auto if self.options.quiet || self.options.json => return None,
            ProgressMode::Auto | ProgressMode::Fullscreen | ProgressMode::Bars => {
                edge::is_terminal(edge::Stream::Error)
            }
        };
        let lines = hosts_view::HostsView::new(Arc::clone(&self.terminal), live, self.is_verbose());
        // Whoever asks for the output of commands wants to read it as it comes.
        let from_hosts = match self.options.progress {
            ProgressMode::Fullscreen => 1,
            ProgressMode::Auto if !self.is_verbose() => SEVERAL,
            _ => return Some(Box::new(lines)),
        };
        let Some(screen) = self.screen() else { return Some(Box::new(lines)) };
        let colours = colours_stderr(self.options.colour);
        Some(Box::new(run_screen::RunScreen::new(lines, screen, from_hosts, colours)))
    }

    /// Returns the view of a cluster's status that is watched; `None` if it is to be printed instead.
    /// `quit` is called when the user wants to end it.
    pub fn status_screen(
        &self,
        quit: impl Fn() + Send + Sync + 'static,
    ) -> Option<status_screen::StatusScreen> {
        let wants = match self.options.progress {
            ProgressMode::Fullscreen => true,
            ProgressMode::Auto => !self.options.quiet && !self.is_verbose(),
            _ => false,
        };
        if !wants || self.options.json || !self.stdout_is_terminal() {
            return None;
        }
        let colours = colours_stderr(self.options.colour);
        Some(status_screen::StatusScreen::new(self.screen()?, colours, Box::new(quit)))
    }

    /// Returns the full-screen mode of the terminal; `None` if it has none.
    fn screen(&self) -> Option<screen::Screen> {
        if self.options.is_dumb || !edge::is_terminal(edge::Stream::Error) {
            return None;
        }
        let start = || {
            screen::Screen::start(Arc::clone(&self.terminal))
                .inspect_err(|error| tracing::warn!("{error}"))
                .ok()
        };
        self.screen.get_or_init(start).clone()
    }

    fn is_verbose(&self) -> bool {
        !matches!(self.options.level, terminal::Level::Error | terminal::Level::Warn)
    }

    /// Returns the progress reporter for lower layers.
    pub fn reporter(&self) -> &dyn Reporter {
        &*self.reporter
    }

    /// Returns a reporter that shows steps as folded groups of a CI system's log; `None` if lines are
    /// not to be shown.
    pub fn grouped(&self, system: ci::System) -> Option<Box<dyn Reporter + '_>> {
        let shows_lines = match self.options.progress {
            ProgressMode::None | ProgressMode::Json => false,
            ProgressMode::Plain | ProgressMode::Fullscreen | ProgressMode::Bars => true,
            ProgressMode::Auto => !self.options.quiet && !self.options.json,
        };
        let terminal = Arc::clone(&self.terminal);
        let out = move |lines: &[u8]| terminal.log_of_runner(lines);
        shows_lines.then(|| Box::new(groups::Groups::new(system, Box::new(out))) as Box<_>)
    }

    /// Tells something to a CI system that reads the log.
    pub fn tell(&self, annotation: &ci::Annotation<'_>) {
        self.terminal.log_of_runner(format!("{}\n", annotation.command()).as_bytes());
    }

    /// Returns whether only results and errors are printed.
    pub fn is_quiet(&self) -> bool {
        self.options.quiet
    }

    /// Returns whether every line of stderr is JSON.
    pub fn has_json_stderr(&self) -> bool {
        self.options.json || self.options.progress == ProgressMode::Json
    }

    /// Returns whether results are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.options.json
    }

    /// Returns whether text on stdout may contain colours.
    pub fn colours_stdout(&self) -> bool {
        let is_terminal = edge::is_terminal(edge::Stream::Output);
        colours(self.options.colour, is_terminal)
    }

    /// Returns whether stdout is a terminal (binary archives are not written to one).
    pub fn stdout_is_terminal(&self) -> bool {
        edge::is_terminal(edge::Stream::Output)
    }

    /// Returns the width of the terminal behind stdout, in columns.
    pub fn columns(&self) -> Option<usize> {
        edge::columns()
    }

    /// Writes lines to stdout.
    pub fn print(&self, lines: &Lines) -> Result<()> {
        self.terminal.result(lines)
    }

    /// Writes one line to stdout.
    pub fn line(&self, line: &str) -> Result<()> {
        self.print(&[line].into_iter().collect())
    }

    /// Writes content to stdout, such as a file or what a template of the user's made: exactly, unless
    /// stdout is a terminal.
    pub fn content(&self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.terminal.content(bytes.as_ref())
    }

    /// Writes a value to stdout as indented JSON.
    pub fn json<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        self.json_from(|out| serde_json::to_writer_pretty(out, value))
    }

    fn json_from(
        &self,
        write: impl FnOnce(&mut Results<'_>) -> serde_json::Result<()>,
    ) -> Result<()> {
        let mut out = self.json_stream();
        let written = write(&mut out);
        out.check(
            written
                .map_err(|error| Error::failed("cannot write the result as JSON").caused_by(error)),
        )?;
        out.add(b"\n")?;
        out.end()
    }

    /// Writes a value to stdout as one line of JSON.
    pub fn json_line<T: Serialize + ?Sized>(&self, value: &T) -> Result<()> {
        let mut text = serde_json::to_string(value)
            .map_err(|error| Error::failed("cannot write the result as JSON").caused_by(error))?;
        text.push('\n');
        self.terminal.json(&text)
    }

    /// Writes values to stdout as an indented JSON list, one after another.
    pub fn json_list<T: Serialize>(&self, values: impl Iterator<Item = T>) -> Result<()> {
        use serde::Serializer as _;
        self.json_from(|out| serde_json::Serializer::pretty(out).collect_seq(values))
    }

    /// Returns a writer of long content to stdout.
    pub fn stream(&self) -> Results<'_> {
        Results::of_content(&self.terminal)
    }

    /// Returns a writer of a long JSON text to stdout.
    pub fn json_stream(&self) -> Results<'_> {
        Results::of_json(&self.terminal)
    }

    /// Writes a result: `value` if results are JSON, otherwise the line `line`.
    pub fn result(&self, value: &impl Serialize, line: &str) -> Result<()> {
        if self.options.json { self.json(value) } else { self.line(line) }
    }

    /// Prints a note on stderr that is neither a result nor an error.
    pub fn note(&self, message: &str) {
        if self.options.quiet {
            return;
        }
        if self.options.json && self.options.progress == ProgressMode::Auto {
            return;
        }
        match self.options.progress {
            ProgressMode::Json => self.reporter.note(message),
            _ => self.reporter.note(&format!("note: {message}")),
        }
    }

    /// Reports a completed action on stderr, without the `note:` prefix.
    pub fn say(&self, message: &str) {
        if !self.options.quiet && !self.options.json {
            self.reporter.note(message);
        }
    }

    /// Prints notes on stderr.
    pub fn notes<'a>(&self, messages: impl IntoIterator<Item = &'a String>) {
        messages.into_iter().for_each(|message| self.note(message));
    }

    /// Asks a yes-or-no question, unless the user has agreed in advance. Fails if nobody can answer.
    /// Every verb that asks does so through this function: silence never counts as a yes.
    pub fn confirm(&self, question: &str) -> Result<bool> {
        if self.options.assume_yes {
            return Ok(true);
        }
        self.confirm_here(question)?.ok_or_else(|| {
            Error::usage(format!(
                "nobody can answer `{question}` with --json or without a terminal"
            ))
            .hint("pass --yes to agree in advance")
        })
    }

    /// Asks a yes-or-no question that nobody can answer in advance; returns `None` if nobody can
    /// answer it now.
    pub fn confirm_here(&self, question: &str) -> Result<Option<bool>> {
        if !self.can_ask() {
            return Ok(None);
        }
        self.terminal.aside(|| prompt::confirm(question)).map(Some)
    }

    /// Returns whether somebody can answer questions.
    pub fn can_ask(&self) -> bool {
        !self.options.json && prompt::can_ask()
    }

    /// Asks for a line of text; returns `None` without an interactive terminal.
    pub fn ask(&self, question: &str) -> Result<Option<String>> {
        if !self.can_ask() {
            return Ok(None);
        }
        self.terminal.aside(|| prompt::line(question)).map(Some)
    }

    /// Asks for a line of text without echoing it; returns `None` without an interactive terminal.
    pub fn ask_secret(&self, question: &str) -> Result<Option<String>> {
        if !self.can_ask() {
            return Ok(None);
        }
        self.terminal.aside(|| prompt::secret(question)).map(Some)
    }
}
