//! Files of this host that change together, and the way back. What they were is on disk before the first
//! one changes, so that a run that is killed is finished, or undone, by the next one.

use serde::{Deserialize, Serialize};

use crate::action::Line;
use crate::renewal::settings::Settings;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{FileToWrite, OutputLine, Run};

const LONGEST_FILE: u64 = 1 << 20;
const PENDING: &str = "pending.json";
/// Timeout of one command, in seconds.
const LIMIT: u64 = 600;

/// This host, as the timer sees it.
pub(crate) struct Machine<'a> {
    pub(crate) agent: &'a dyn Agent,
    pub(crate) settings: &'a Settings,
    /// Names this run among the commands on the host.
    pub(crate) key: String,
}

/// A file with what it is to contain; `None`: it is removed.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) text: Option<String>,
}

/// What a run has begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Files that change, in order. The content that each one had is in `before/NUMBER`.
    pub(crate) files: Vec<Kept>,
    /// What has to be restarted, in the words of the runtime.
    pub(crate) restarts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) path: String,
    mode: u32,
    /// Whether there was such a file.
    existed: bool,
}

impl Pending {
    /// Tells whether the file at `path` changes.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|one| one.path == path)
    }
}

impl Machine<'_> {
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>> {
        let bytes = self.agent.read_file(path, LONGEST_FILE)?;
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    /// Reads a file that must be there.
    pub(crate) fn need(&self, path: &str) -> Result<String> {
        self.read(path)?.ok_or_else(|| Error::not_found(format!("there is no {path}")))
    }

    pub(crate) fn write(&self, path: &str, mode: u32, text: &str) -> Result<()> {
        let content = text.as_bytes().to_vec();
        self.agent
            .write_file(&FileToWrite { path: path.to_owned(), mode, content })
            .map(|_| ())
            .context(|| format!("cannot write {path}"))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let left = self.agent.remove(&[path.to_owned()])?;
        match left.first() {
            None => Ok(()),
            Some(why) => Err(Error::failed(format!("cannot remove {path}: {why}"))),
        }
    }

    /// Runs a line, with the variables of the settings as well; returns its stdout.
    pub(crate) fn run(&self, name: &str, line: &Line) -> Result<String> {
        let mut environment = self.settings.environment.clone();
        environment.extend(line.environment.to_map());
        let run = Run {
            directory: format!("{}/runs", self.settings.root),
            key: format!("{}.{name}", self.key),
            line: line.line.clone(),
            workdir: None,
            environment,
            input: None,
            timeout_seconds: Some(LIMIT),
            again: true,
        };
        self.finish(&run)
    }

    /// Runs a line of the image in its `scripts/`.
    pub(crate) fn run_script(&self, name: &str, line: &str) -> Result<String> {
        let mut environment = self.settings.environment.clone();
        // Gates judge the whole cluster.
        environment.insert("IMGCTL_UPGRADE_ID".to_owned(), "certificates".to_owned());
        let run = Run {
            directory: format!("{}/runs", self.settings.root),
            key: format!("{}.{name}", self.key),
            line: line.to_owned(),
            workdir: Some(self.settings.scripts.clone()),
            environment,
            input: None,
            timeout_seconds: Some(LIMIT),
            again: true,
        };
        self.finish(&run)
    }

    fn finish(&self, run: &Run) -> Result<String> {
        let mut all = Vec::new();
        let outcome = self.agent.run(run, &mut |line: OutputLine| all.push(line))?;
        if outcome.code == Some(0) {
            let stdout = all.iter().filter(|line| !line.error_stream);
            return Ok(stdout.map(|line| format!("{}\n", line.text)).collect());
        }
        let tail: Vec<&str> =
            all.iter().rev().take(5).rev().map(|line| line.text.as_str()).collect();
        let line = run.line.lines().next().unwrap_or_default();
        Err(Error::new(Kind::CommandFailed, format!("`{line}` failed: {}", tail.join("; "))))
    }

    fn kept(&self, number: usize) -> String {
        self.settings.path(&format!("before/{number}"))
    }

    /// Returns what an earlier run has begun and not finished.
    pub(crate) fn pending(&self) -> Result<Pending> {
        let Some(text) = self.read(&self.settings.path(PENDING))? else {
            return Ok(Pending::default());
        };
        serde_json::from_str(&text)
            .map_err(|error| Error::bad_content(format!("{PENDING} is damaged")).caused_by(error))
    }

    /// Records that `file` changes and what is to be restarted then, and changes it.
    pub(crate) fn change(
        &self,
        pending: &mut Pending,
        file: &NewFile,
        restart: Option<&str>,
    ) -> Result<()> {
        if !pending.has(&file.path) {
            let before = self.read(&file.path)?;
            let number = pending.files.len();
            self.write(&self.kept(number), 0o600, before.as_deref().unwrap_or_default())?;
            let existed = before.is_some();
            pending.files.push(Kept { path: file.path.clone(), mode: file.mode, existed });
        }
        if let Some(restart) = restart.filter(|one| !pending.restarts.iter().any(|own| own == one))
        {
            pending.restarts.push(restart.to_owned());
        }
        self.note(pending)?;
        match &file.text {
            Some(text) => self.write(&file.path, file.mode, text),
            None => self.remove(&file.path),
        }
    }

    /// Records what is pending, before it begins.
    pub(crate) fn note(&self, pending: &Pending) -> Result<()> {
        let text = serde_json::to_string(pending)
            .map_err(|error| Error::failed("cannot write what is pending").caused_by(error))?;
        self.write(&self.settings.path(PENDING), 0o600, &text)
    }

    /// Puts all files back.
    pub(crate) fn undo(&self, pending: &Pending) -> Result<()> {
        for (number, file) in pending.files.iter().enumerate().rev() {
            if file.existed {
                let text = self.need(&self.kept(number))?;
                self.write(&file.path, file.mode, &text)?;
            } else {
                self.remove(&file.path)?;
            }
        }
        Ok(())
    }

    /// Forgets what was pending: it is done, or undone.
    pub(crate) fn settle(&self) -> Result<()> {
        self.remove(&self.settings.path(PENDING))?;
        self.remove(&self.settings.path("before"))
    }
}
