//! Requests to `imgctl host-action`.

use std::io::Write;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::TestEnv;

/// What it said.
pub(crate) struct Answer {
    pub(crate) success: bool,
    /// One JSON value per line.
    pub(crate) lines: Vec<Value>,
    pub(crate) error: String,
}

impl Answer {
    /// The last value; panics unless it succeeded.
    #[track_caller]
    pub(crate) fn last(&self) -> &Value {
        assert!(self.success, "{}", self.error);
        self.lines.last().unwrap()
    }

    /// The output of a command, both streams.
    #[track_caller]
    pub(crate) fn output(&self) -> Vec<&str> {
        assert!(self.success, "{}", self.error);
        let texts = self.lines.iter().filter_map(|line| line["text"].as_str());
        texts.collect()
    }
}

/// Starts a request and hands it over.
pub(crate) fn start(env: &TestEnv, action: &str, request: &Value) -> Child {
    let mut child = env
        .command(["host-action", action])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(request.to_string().as_bytes()).unwrap();
    child
}

/// Waits for its answer.
pub(crate) fn finish(child: Child) -> Answer {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Answer {
        success: output.status.success(),
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        error: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A request and its answer.
pub(crate) fn act(env: &TestEnv, action: &str, request: &Value) -> Answer {
    finish(start(env, action, request))
}
