//! Action on one host: what a plan shows and what the action does.

use std::{sync::Arc, time::Duration};

use crate::shell;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{FileToWrite, Outcome, OutputLine, Run};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::state_files::StateFiles;
use imgctl_model::variables::Variables;

/// Access to the other hosts of the cluster.
pub trait HostPool: Sync {
    /// Returns the agent of `host`; connects to the host if necessary.
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>>;
}

/// Host and context in which an action runs.
pub struct Site<'a> {
    pub host: &'a Host,
    pub agent: &'a dyn Agent,
    pub pool: &'a dyn HostPool,
    pub context: &'a ClusterContext,
    /// Identifies this execution: `<run>/<step>`, safe as a file name. A resumed step keeps its
    /// key, so that a completed command does not run again.
    pub key: &'a str,
    /// Attempt number, starting at 1. A step that resumes where it stopped keeps its number.
    pub attempt: u32,
    /// Timeout from the action or the command line.
    pub timeout: Option<Duration>,
    /// Receives lines for the step's log and the screen. The receiver masks secrets.
    pub output: &'a (dyn Fn(OutputLine) + Sync),
}

impl Site<'_> {
    /// Returns the controller's files of this cluster.
    pub fn state(&self) -> &StateFiles {
        &self.context.state
    }

    /// Writes a line to the step's log and the screen.
    pub fn say(&self, text: &str) {
        (self.output)(OutputLine { text: text.to_owned(), error_stream: false });
    }

    /// Removes a file or tree of this host; fails if something is left behind.
    pub fn remove(&self, path: &String) -> Result<()> {
        let left = self.agent.remove(std::slice::from_ref(path))?;
        if left.is_empty() {
            return Ok(());
        }
        Err(Error::check_failed(format!("{}: left behind: {}", self.agent.host(), left.join(", ")))
            .hint("unmount it or stop the processes that use it, then run the same command again"))
    }

    /// Runs a shell line on this host and returns its stdout. On failure, the error includes the
    /// end of the output.
    pub fn run(&self, line: &Line) -> Result<String> {
        self.run_on(self.agent, line, "")
    }

    /// Like `run`, on another host. `suffix` keeps keys distinct if one action runs several lines.
    pub fn run_on(&self, agent: &dyn Agent, line: &Line, suffix: &str) -> Result<String> {
        let (outcome, tail, stdout) = self.try_on(agent, line, suffix)?;
        if outcome.code == Some(0) {
            return Ok(stdout);
        }
        let how = match (outcome.code, &outcome.reason) {
            (_, Some(reason)) => reason.clone(),
            (Some(code), None) => format!("exit code {code}"),
            (None, None) => "no exit code".to_owned(),
        };
        let message = format!("{}: `{}` failed: {how}", agent.host(), line.shown());
        let error = Error::new(Kind::CommandFailed, message)
            .lines(tail.iter().map(|text| format!("    {text}")));
        Err(error.hint(format!("the whole output is in {} on {}", outcome.log, agent.host())))
    }

    /// Returns a key suffix that distinguishes the steps of several hosts on the same host: such
    /// steps can run there at the same time and have the same names.
    fn guest(&self, agent: &dyn Agent) -> String {
        if agent.host() == self.agent.host() {
            return String::new();
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let name = self.host.id().replace(|c| !fits(c), "-");
        format!("-of-{name}")
    }

    /// Runs a line and returns its outcome, the last lines of its output and its stdout, whatever
    /// the exit code.
    pub fn try_on(
        &self,
        agent: &dyn Agent,
        line: &Line,
        suffix: &str,
    ) -> Result<(Outcome, Vec<String>, String)> {
        let request = Run {
            directory: self.context.paths.runs(),
            key: format!("{}{}{suffix}", self.key, self.guest(agent)),
            line: match &line.prelude {
                Some(prelude) => format!("{prelude}; {}", line.line),
                None => line.line.clone(),
            },
            workdir: line.workdir.clone(),
            environment: line.environment.to_map(),
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

/// Number of output lines that an error shows.
const TAIL: usize = 20;
/// Maximum number of stdout bytes to return to the caller.
const LONGEST_STDOUT: usize = 1 << 20;

/// A shell line and the context that it runs in.
#[derive(Clone, Default)]
pub struct Line {
    pub line: String,
    /// Runs first in the same shell; plans and errors do not show it.
    pub prelude: Option<String>,
    pub workdir: Option<String>,
    pub environment: Variables,
    pub input: Option<String>,
    /// Runs the line even if its key has run before: for queries and idempotent lines.
    pub again: bool,
    /// Keeps the output out of the log (it contains secrets or is only data).
    pub quiet: bool,
}

impl Line {
    pub fn new(line: impl Into<String>) -> Self {
        Self { line: line.into(), ..Self::default() }
    }

    /// Creates an idempotent line: runs even if its key has run before.
    pub fn repeatable(line: impl Into<String>) -> Self {
        Self { again: true, ..Self::new(line) }
    }

    /// Creates an idempotent line that runs a program, see [`shell::program`].
    pub fn script(parts: &[&str]) -> Self {
        Self::repeatable(shell::program(parts))
    }

    /// Creates a query: repeated on each run, output not logged.
    pub fn query(line: impl Into<String>) -> Self {
        Self { quiet: true, ..Self::repeatable(line) }
    }

    /// Adds variables: by them a program gets its values.
    pub fn with<const N: usize>(mut self, variables: [(&str, &str); N]) -> Self {
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.environment.extend(owned);
        self
    }

    /// Returns the first line of a program, see [`shell::program`].
    fn title(&self) -> Option<&str> {
        self.line.strip_prefix("# ")?.lines().next()
    }

    /// Returns the line for messages, shortened.
    fn shown(&self) -> String {
        if let Some(title) = self.title() {
            return title.to_owned();
        }
        let line = self.line.trim_start();
        let first = line.lines().next().unwrap_or_default();
        if first.len() < line.len() || first.chars().count() > 120 {
            format!("{}…", first.chars().take(120).collect::<String>())
        } else {
            first.to_owned()
        }
    }
}

/// Whether an action can be repeated if the outcome of the first execution is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Safe,
    /// Repeatable only if the first execution is known to have failed.
    Once,
}

type Does = dyn Fn(&Site<'_>) -> Result<()> + Send + Sync;

#[derive(Clone)]
pub struct Action {
    /// Used in step identifiers: lowercase letters, digits, dashes.
    pub name: String,
    /// Lines that a plan prints: the commands and files exactly as they will be. Contains no
    /// secrets.
    pub says: Vec<String>,
    /// Changes if the action would do something different.
    pub fingerprint: String,
    pub repeat: Repeat,
    pub timeout: Option<Duration>,
    pub does: Arc<Does>,
}

impl Action {
    /// Creates an action from a closure.
    pub fn new(
        name: &str,
        says: impl Into<String>,
        does: impl Fn(&Site<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::depending_on(name, says, "", does)
    }

    /// Creates an action from a closure. `inputs` is everything that it depends on besides its name
    /// and what it says.
    pub fn depending_on(
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

    /// Creates an action that runs a shell line on the host. A plan prints only the title of a program.
    pub fn command(name: &str, line: Line) -> Self {
        let mut says = String::new();
        if let Some(workdir) = &line.workdir {
            says.push_str(&format!("cd {workdir} && "));
        }
        says.push_str(&line.line);
        let inputs = format!("{} {:?}", line.environment.identity(), line.input);
        let title = line.title().map(str::to_owned);
        let does = move |site: &Site<'_>| site.run(&line).map(|_| ());
        let action = Self::depending_on(name, says, &inputs, does);
        match title {
            Some(title) => action.saying(title),
            None => action,
        }
    }

    /// Creates an action that runs a script of the image: `bash` with the label's value, in the
    /// scripts directory.
    pub fn script(name: &str, value: &str, scripts: String, environment: Variables) -> Self {
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

    /// Creates an action that writes a file on the host.
    pub fn file(name: &str, path: String, mode: u32, text: String) -> Self {
        let says = format!("write {path} (mode {mode:04o}, {} bytes)", text.len());
        let file = FileToWrite { path, mode, content: text.into_bytes() };
        let inputs = Digest::of(&file.content).to_string();
        Self::depending_on(name, says, &inputs, move |site| {
            site.agent.write_file(&file).map(|_| ())
        })
    }

    /// Adds image content, such as a script's text, to the fingerprint, so that the action runs
    /// again with a corrected image.
    pub fn bringing(mut self, content: &str) -> Self {
        self.fingerprint =
            Digest::of(format!("{}\0{content}", self.fingerprint).as_bytes()).to_string();
        self
    }

    /// Replaces what a plan prints.
    pub fn saying(mut self, says: impl Into<String>) -> Self {
        self.says = says.into().lines().map(str::to_owned).collect();
        self
    }

    /// Marks the action as one that must not run twice.
    pub fn once(mut self) -> Self {
        self.repeat = Repeat::Once;
        self
    }

    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::{Child, Command, Output};

    /// Stops the program at the end of the test.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn bash(line: &str, words: &[&Path]) -> Output {
        let mut command = Command::new("bash");
        command.args(["-e", "-c", &shell::program(&[shell::FILES, line]), "bash"]);
        command.args(words).env("LC_ALL", "C").output().unwrap()
    }

    #[test]
    fn messages_show_what_a_line_does() {
        let shown = |line: String| Line { line, ..Line::default() }.shown();
        let swap = shell::program(&[shell::FILES, "#!/bin/bash -e\n# the file b\nput a b\n"]);
        assert_eq!(shown(swap.clone()), "the file b");
        assert_eq!(Action::command("swap", Line::new(swap)).says, ["the file b"]);
        assert_eq!(shown("systemctl stop kubelet\nput a b".to_owned()), "systemctl stop kubelet…");
        assert_eq!(shown("date".to_owned()), "date");
    }

    #[test]
    fn a_program_that_runs_is_replaced_under_itself() {
        let directory = tempfile::tempdir().unwrap();
        let (new, target) = (directory.path().join("new"), directory.path().join("kubelet"));
        std::fs::copy("/bin/sleep", &target).unwrap();
        std::fs::copy("/bin/true", &new).unwrap();
        let mut running = Running(Command::new(&target).arg("60").spawn().unwrap());
        // Writing into the file fails.
        let into = bash("cat \"$1\" >\"$2\"", &[&new, &target]);
        let said = String::from_utf8_lossy(&into.stderr).into_owned();
        assert!(!into.status.success() && said.contains("Text file busy"), "{said}");
        let put = bash("put \"$1\" \"$2\" 0755", &[&new, &target]);
        let said = String::from_utf8_lossy(&put.stderr).into_owned();
        assert!(put.status.success(), "{said}");
        assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&new).unwrap());
        assert!(Command::new(&target).status().unwrap().success());
        // The old program keeps running.
        assert!(running.0.try_wait().unwrap().is_none());
        let exe = format!("/proc/{}/exe", running.0.id());
        let exe = std::fs::read_link(exe).unwrap();
        assert!(exe.to_string_lossy().ends_with("(deleted)"), "{exe:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
