//! How a conversation begins and ends.

use std::process::Stdio;

use http::Method;
use serde_json::json;

use crate::agent::conversation::Conversation;
use crate::common::{IMGCTL, Ran, TestEnv};

#[test]
fn it_greets_answers_and_ends_with_stdin() {
    let env = TestEnv::new();
    let agent = Conversation::new(&env);
    let expected = format!("imgctl-agent 5 {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(agent.greeting.last(), Some(&expected));
    let facts = agent.call("facts", &json!({"data_root": "/nowhere"}));
    let facts = &facts["done"]["facts"];
    assert!(facts["hostname"].as_str().is_some_and(|name| !name.is_empty()), "{facts}");
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn what_is_no_call_is_refused_and_the_rest_goes_on() {
    let env = TestEnv::new();
    let agent = Conversation::new(&env);
    for (method, path, body, status) in [
        (Method::GET, "/", "", 404),
        (Method::GET, "/imgctl/v1/facts", "", 404),
        (Method::POST, "/imgctl/v1/no-such-call", "{}", 404),
        (Method::POST, "/imgctl/v1/../facts", "{}", 404),
        (Method::POST, "/imgctl/v1/facts", "", 400),
        (Method::POST, "/imgctl/v1/facts", "{\"data_root\": \"/\"} {}", 400),
        (Method::POST, "/imgctl/v1/remove", "{\"paths\": 1}", 400),
        (Method::GET, "/v2/no/such/thing", "", 404),
    ] {
        let got = agent.ask(method, path, &[], body.as_bytes());
        assert_eq!(got.status.as_u16(), status, "{path}");
    }
    let read = agent.call("read-file", &json!({"path": "/proc/version", "limit": 5}));
    assert_eq!(read["failed"]["kind"], "bad-content");
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn noise_on_stdin_ends_it() {
    let env = TestEnv::new();
    let mut command = env.command(["agent", "--stdio"]);
    let path = env.write("noise", "GET / HTTP/1.1\r\n\r\n");
    command.stdin(std::fs::File::open(path).unwrap());
    let ran = Ran::new(command).ok();
    assert!(ran.bytes().starts_with(b"\nimgctl-agent 5 "));
    let mut command = std::process::Command::new(IMGCTL);
    command.arg("agent").stdin(Stdio::null());
    Ran::new(command).fails(2);
}
