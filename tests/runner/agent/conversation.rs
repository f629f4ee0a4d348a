//! One conversation with an agent that runs in a process of its own.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;

use crate::common::{IMGCTL, TestEnv};

/// A running agent.
pub(crate) struct Conversation {
    runtime: Runtime,
    sender: Option<SendRequest<Full<Bytes>>>,
    pub(crate) child: Child,
    /// Lines before the conversation.
    pub(crate) greeting: Vec<String>,
}

/// What a request got.
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Conversation {
    /// Starts the agent on the store of `env`.
    pub(crate) fn new(env: &TestEnv) -> Self {
        Self::through(env, &[])
    }

    /// Starts it by another program: `unshare -m`, say.
    pub(crate) fn through(env: &TestEnv, words: &[&str]) -> Self {
        let root = env.root();
        let words = words.iter().map(std::ffi::OsStr::new);
        let words: Vec<_> = words
            .chain([IMGCTL.as_ref(), "--root".as_ref(), root.as_os_str()])
            .chain(["agent", "--stdio"].map(std::ffi::OsStr::new))
            .collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let talk = async {
            let mut child = Command::new(words[0])
                .args(&words[1..])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut greeting = Vec::new();
            while !greeting.last().is_some_and(|line: &String| line.starts_with("imgctl-agent ")) {
                let mut line = String::new();
                let count = output.read_line(&mut line).await.unwrap();
                assert!(count > 0, "the agent ended after {greeting:?}");
                greeting.push(line);
            }
            let io = tokio::io::join(output, child.stdin.take().unwrap());
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .max_frame_size(1 << 20)
                .handshake(TokioIo::new(io))
                .await
                .unwrap();
            tokio::spawn(connection);
            (child, sender, greeting)
        };
        let limited = async { tokio::time::timeout(Duration::from_secs(30), talk).await };
        let (child, sender, greeting) = runtime.block_on(limited).expect("no agent in time");
        Self { runtime, sender: Some(sender), child, greeting }
    }

    /// Sends one request.
    pub(crate) fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Got {
        let mut request = Request::builder().method(method).uri(format!("http://agent{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        let mut sender = self.sender.clone().unwrap();
        self.runtime.block_on(async {
            sender.ready().await.unwrap();
            let response = sender.send_request(request).await.unwrap();
            let (head, body) = response.into_parts();
            Got {
                status: head.status,
                headers: head.headers,
                body: body.collect().await.unwrap().to_bytes(),
            }
        })
    }

    /// Makes a call; gives the last event of its answer.
    pub(crate) fn call(&self, name: &str, call: &Value) -> Value {
        let path = format!("/imgctl/v1/{name}");
        let got = self.ask(Method::POST, &path, &[], call.to_string().as_bytes());
        assert_eq!(got.status, 200, "{}", String::from_utf8_lossy(&got.body));
        let (mut body, mut last) = (&got.body[..], Value::Null);
        while let Some((length, rest)) = body.split_first_chunk() {
            let (message, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            (last, body) = (serde_json::from_slice(message).unwrap(), rest);
        }
        last
    }

    /// Closes stdin and waits for the agent's end; gives its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.sender = None;
        let ended =
            async { tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await };
        let status = self.runtime.block_on(ended);
        status.expect("the agent stays").unwrap().code()
    }
}
