//! A host with a real agent in a process of its own: the test program itself, started through a
//! real shell. For tests only.
//!
//! A test program that uses it has an ignored test `…tests::child` that calls [`serve`].

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::process::Command;
use tokio::runtime::Runtime;

use super::{Launch, Remote};
use crate::agent::install::Binaries;
use crate::agent::server;
use crate::host::transport::{BoxFuture, Channel, Ended, Privilege, Transport};
use imgctl_base::error::Result;
use imgctl_store::store::{Options, Store};

/// Serves as the agent. Its store is the working directory.
pub fn serve() {
    let store = Store::open(Path::new("."), Options { sync: false }).unwrap();
    server::serve_stdio(&store).unwrap();
}

/// A shell on this machine.
pub struct Shell {
    /// Program and arguments before the line to execute.
    words: Vec<String>,
    /// Shell code that runs before each command.
    motd: &'static str,
    is_local: bool,
    pub lines: AtomicUsize,
    pub pids: Mutex<Vec<u32>>,
}

impl Shell {
    fn new(words: Vec<String>, motd: &'static str, is_local: bool) -> Self {
        Self { words, motd, is_local, lines: AtomicUsize::new(0), pids: Mutex::default() }
    }
}

impl Transport for Shell {
    fn label(&self) -> &str {
        "10.9.9.9"
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn open<'a>(&'a self, line: &'a str, _: Privilege) -> BoxFuture<'a, Result<Channel>> {
        self.lines.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let (program, arguments) = self.words.split_first().unwrap();
            let mut child = Command::new(program)
                .args(arguments)
                .arg(format!("{}{line}", self.motd))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            self.pids.lock().unwrap().push(child.id().unwrap());
            Ok(Channel {
                input: Box::new(child.stdin.take().unwrap()),
                output: Box::new(child.stdout.take().unwrap()),
                errors: Box::new(child.stderr.take().unwrap()),
                ended: Box::pin(async move {
                    use std::os::unix::process::ExitStatusExt;
                    let status = child.wait().await.unwrap();
                    Ok(match status.signal() {
                        Some(signal) => Ended::Signal(signal),
                        None => Ended::Code(u8::try_from(status.code().unwrap()).unwrap()),
                    })
                }),
            })
        })
    }
}

/// One host with an agent of its own.
pub struct Host {
    pub directory: tempfile::TempDir,
    pub shell: Arc<Shell>,
    pub remote: Remote,
}

impl Host {
    pub fn new(runtime: &Runtime) -> Self {
        Self::with(runtime, "", true, &agent_script)
    }

    /// `script` receives the directory of the store and returns the program to run as the agent.
    pub fn with(
        runtime: &Runtime,
        motd: &'static str,
        is_local: bool,
        script: &dyn Fn(&Path) -> String,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::write(&program, script(directory.path())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let binaries = Binaries::new(PathBuf::from("/proc/self/exe"), Some(program), None);
        let words = ["/bin/sh", "-c"].map(str::to_owned).to_vec();
        Self::at(runtime, directory, Shell::new(words, motd, is_local), binaries)
    }

    /// A host that is reached by the shell of `words`, and whose agent is found in `binaries`.
    pub fn through(runtime: &Runtime, words: Vec<String>, binaries: Binaries) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::at(runtime, directory, Shell::new(words, "", false), binaries)
    }

    fn at(
        runtime: &Runtime,
        directory: tempfile::TempDir,
        shell: Shell,
        binaries: Binaries,
    ) -> Self {
        let shell = Arc::new(shell);
        let launch = Launch {
            binaries: Arc::new(binaries),
            directory: directory.path().join("kept").to_str().unwrap().to_owned(),
            root: None,
            data_root: directory.path().to_str().unwrap().to_owned(),
        };
        let transport = Arc::clone(&shell) as Arc<dyn Transport>;
        Self { remote: Remote::new(transport, launch, runtime.handle().clone()), directory, shell }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn store(&self) -> Store {
        Store::open(self.directory.path(), Options { sync: false }).unwrap()
    }

    pub fn kill(&self) {
        let pid = *self.shell.pids.lock().unwrap().last().unwrap();
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    pub fn agents(&self) -> usize {
        self.shell.pids.lock().unwrap().len()
    }
}

/// Returns the program that starts test `child` of this test program as the agent of `root`.
pub fn agent_script(root: &Path) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "#!/bin/sh\ncd '{}' && exec '{}' tests::child --ignored --nocapture\n",
        root.display(),
        program.display()
    )
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
