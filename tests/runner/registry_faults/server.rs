//! `imgctl registry serve` on a free port, to be killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{IMGCTL, Ran};

/// A running server; killed with the value.
pub(crate) struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Serves `tree`.
    pub(crate) fn start(tree: &Path) -> Self {
        let mut child = Command::new(IMGCTL)
            .args(["registry", "serve", "--create", "--addr=127.0.0.1:0"])
            .arg(tree)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let (_, host) = line.trim().split_once("://").expect("it does not serve");
        let host = host.trim_end_matches('/').to_owned();
        Self { child, host }
    }

    /// `kill -9`.
    pub(crate) fn stop(self) {}
}

/// Panics unless every blob and name of a tree on disk is what it should be.
#[track_caller]
pub(crate) fn assert_tree_scrubs_clean(tree: &Path) {
    let mut command = Command::new(IMGCTL);
    command.args(["registry", "scrub"]).arg(tree);
    Ran::new(command).ok();
}
