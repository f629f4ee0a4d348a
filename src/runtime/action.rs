//! One thing to do on one host: what a plan says about it, and how it is done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::Agent;
use crate::agent::protocol::{FileToWrite, Outcome, OutputLine, Run};
use crate::cluster::host::Host;
use crate::cluster::scene::Scene;
use crate::error::{Error, Kind, Result};
use crate::image::Digest;

/// Whoever can reach the other hosts of the cluster.
pub(crate) trait Crew: Sync {
    /// The agent of `host`, connected when it was not yet.
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>>;
}

/// Where and in what surroundings an action is done.
pub(crate) struct Site<'a> {
    pub(crate) host: &'a Host,
    pub(crate) agent: &'a dyn Agent,
    pub(crate) crew: &'a dyn Crew,
    pub(crate) scene: &'a Scene,
    /// Names this execution: `<run>/<step>`, file-name safe. The same after a resume, so that what
    /// ran is not run again.
    pub(crate) key: &'a str,
    /// Counts from 1; a step that is resumed where it was goes on with the same number.
    pub(crate) attempt: u32,
    /// From the action or the command line.
    pub(crate) timeout: Option<Duration>,
    /// Lines for the step's log and the screen; secrets are taken out behind it.
    pub(crate) output: &'a (dyn Fn(OutputLine) + Sync),
}

impl Site<'_> {
    /// The controller's directory for this cluster.
    pub(crate) fn state(&self) -> &Path {
        &self.scene.state_directory
    }

    /// A line for the step's log and the screen.
    pub(crate) fn say(&self, text: &str) {
        (self.output)(OutputLine {
            text: text.to_owned(),
            error_stream: false,
        });
    }

    /// A line of shell on this host; its failure is an error with the end of its output.
    pub(crate) fn run(&self, line: &Line) -> Result<String> {
        self.run_on(self.agent, line, "")
    }

    /// The same on another host; `suffix` keeps keys apart when one action runs several lines.
    pub(crate) fn run_on(&self, agent: &dyn Agent, line: &Line, suffix: &str) -> Result<String> {
        let (outcome, tail, stdout) = self.try_on(agent, line, suffix)?;
        if outcome.code == Some(0) {
            return Ok(stdout);
        }
        let how = match (outcome.code, &outcome.reason) {
            (_, Some(reason)) => reason.clone(),
            (Some(code), None) => format!("exit code {code}"),
            (None, None) => "no exit code".to_owned(),
        };
        let mut message = format!("{}: `{}` failed: {how}", agent.host(), line.shown());
        for text in &tail {
            message.push_str("\n    ");
            message.push_str(text);
        }
        Err(Error::new(Kind::CommandFailed, message).hint(format!(
            "the whole output is in {} on {}",
            outcome.log,
            agent.host()
        )))
    }

    /// What tells apart the keys of several hosts' steps on one and the same host: they may run
    /// there at once, and have the same names.
    fn guest(&self, agent: &dyn Agent) -> String {
        if agent.host() == self.agent.host() {
            return String::new();
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let name = self.host.id().replace(|c| !fits(c), "-");
        format!("-of-{name}")
    }

    /// Runs a line and gives its outcome, the last lines of its output and its stdout, whatever
    /// the exit code.
    pub(crate) fn try_on(
        &self,
        agent: &dyn Agent,
        line: &Line,
        suffix: &str,
    ) -> Result<(Outcome, Vec<String>, String)> {
        let request = Run {
            directory: self.scene.paths.runs(),
            key: format!("{}{}{suffix}", self.key, self.guest(agent)),
            line: line.line.clone(),
            workdir: line.workdir.clone(),
            environment: line.environment.clone(),
            input: line.input.clone(),
            timeout_seconds: self.timeout.map(|timeout| timeout.as_secs().max(1)),
            again: line.again,
        };
        let mut tail = std::collections::VecDeque::new();
        let mut stdout = String::new();
        let outcome = agent.run(&request, &mut |output| {
            if tail.len() == TAIL {
                tail.pop_front();
            }
            tail.push_back(output.text.clone());
            if !output.error_stream && stdout.len() < LONGEST_STDOUT {
                stdout.push_str(&output.text);
                stdout.push('\n');
            }
            if !line.quiet {
                (self.output)(output);
            }
        })?;
        Ok((outcome, tail.into(), stdout))
    }
}

/// Lines of output that an error shows.
const TAIL: usize = 20;
/// What is kept of stdout for the caller.
const LONGEST_STDOUT: usize = 1 << 20;

/// A line of shell with its surroundings.
#[derive(Clone, Default)]
pub(crate) struct Line {
    pub(crate) line: String,
    pub(crate) workdir: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) input: Option<String>,
    /// Run it even if its key has run before: for reading, and for what is safe to repeat.
    pub(crate) again: bool,
    /// Its output is not for the log (it holds secrets or is only data).
    pub(crate) quiet: bool,
}

impl Line {
    pub(crate) fn new(line: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            ..Self::default()
        }
    }

    /// A look at the host: repeated on each run, not shown.
    pub(crate) fn query(line: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            again: true,
            quiet: true,
            ..Self::default()
        }
    }

    /// The line for messages, cut.
    fn shown(&self) -> String {
        let first = self.line.lines().next().unwrap_or_default();
        if first.len() < self.line.len() || first.chars().count() > 120 {
            format!("{}…", first.chars().take(120).collect::<String>())
        } else {
            first.to_owned()
        }
    }
}

/// Whether an action may be done a second time when it is not known how the first ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Safe,
    /// Only when it is known not to have ended well.
    Once,
}

type Does = dyn Fn(&Site<'_>) -> Result<()> + Send + Sync;

/// One thing to do.
#[derive(Clone)]
pub(crate) struct Action {
    /// For step identifiers: lower case, digits, dashes.
    pub(crate) name: String,
    /// What a plan prints: the commands as they will run, the files as they will be. No secrets.
    pub(crate) says: Vec<String>,
    /// Changes when the action would do something else.
    pub(crate) fingerprint: String,
    pub(crate) repeat: Repeat,
    pub(crate) timeout: Option<Duration>,
    pub(crate) does: Arc<Does>,
}

impl Action {
    /// Something with its own code. `inputs` is what it depends on besides its name.
    pub(crate) fn new(
        name: &str,
        says: impl Into<String>,
        inputs: &str,
        does: impl Fn(&Site<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let says = says.into();
        let fingerprint = Digest::of(format!("{name}\0{says}\0{inputs}").as_bytes()).to_string();
        Self {
            name: name.to_owned(),
            says: says.lines().map(str::to_owned).collect(),
            fingerprint,
            repeat: Repeat::Safe,
            timeout: None,
            does: Arc::new(does),
        }
    }

    /// A line of shell on the host.
    pub(crate) fn command(name: &str, line: Line) -> Self {
        let mut says = String::new();
        if let Some(workdir) = &line.workdir {
            says.push_str(&format!("cd {workdir} && "));
        }
        says.push_str(&line.line);
        let inputs = format!("{:?} {:?}", line.environment, line.input);
        Self::new(name, says, &inputs, move |site| site.run(&line).map(|_| ()))
    }

    /// A script of the image: the label's value behind `bash `, in the scripts directory.
    pub(crate) fn script(
        name: &str,
        value: &str,
        scripts: String,
        environment: BTreeMap<String, String>,
    ) -> Self {
        Self::command(
            name,
            Line {
                line: format!("bash {value}"),
                workdir: Some(scripts),
                environment,
                ..Line::default()
            },
        )
    }

    /// A file on the host.
    pub(crate) fn file(name: &str, file: FileToWrite) -> Self {
        let says = format!(
            "write {} (mode {:04o}, {} bytes)",
            file.path,
            file.mode,
            file.content.len()
        );
        let inputs = Digest::of(&file.content).to_string();
        Self::new(name, says, &inputs, move |site| {
            site.agent.write_file(&file).map(|_| ())
        })
    }

    /// What it does depends on `content` of images as well, such as a script's text: a corrected
    /// image has it done again.
    pub(crate) fn bringing(mut self, content: &str) -> Self {
        self.fingerprint =
            Digest::of(format!("{}\0{content}", self.fingerprint).as_bytes()).to_string();
        self
    }

    /// Must not be done twice.
    pub(crate) fn once(mut self) -> Self {
        self.repeat = Repeat::Once;
        self
    }

    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}
