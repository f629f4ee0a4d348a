//! A console on a real socket, asked with raw requests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use imgctl_base::error::Result;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_ops::report::Recorded;
use imgctl_ops::session::Controller;
use imgctl_store::store::{self, Store};

use crate::{Console, Options};

struct Running {
    address: SocketAddr,
    url: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
    directory: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn options(directory: &Path, listen: &str) -> Options {
    let state_root = Some(directory.join("state"));
    let controller = Controller { state_root, ..Controller::default() };
    Options {
        listen: listen.parse().unwrap(),
        store: Store::open(&directory.join("store"), store::Options { sync: false }).unwrap(),
        recorded: Recorded::new(&controller, Vec::new(), "test"),
    }
}

fn start() -> Running {
    let directory = tempfile::tempdir().unwrap();
    let console = Console::bind(options(directory.path(), "127.0.0.1:0")).unwrap();
    let (address, url) = (console.address(), console.url().to_owned());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        console.run(async {
            let _ = stopped.await;
        })
    });
    Running { address, url, stop: Some(stop), thread: Some(thread), directory }
}

impl Running {
    /// Sends `text` and returns all that comes back.
    fn raw(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A server that refuses may close before everything is sent.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn ask(&self, method: &str, path: &str, more: &str) -> String {
        let host = self.address;
        self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n"
        ))
    }

    /// Goes in through the printed address; returns the base and the header with the cookie.
    fn enter(&self) -> (String, String) {
        let path = self.url.strip_prefix(&format!("http://{}", self.address)).unwrap();
        let answer = self.ask("GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
        let base = header(&answer, "location").strip_suffix('/').unwrap().to_owned();
        let cookie = header(&answer, "set-cookie");
        assert!(cookie.ends_with(&format!("; Path={base}; HttpOnly; SameSite=Strict")), "{cookie}");
        assert!(!header(&answer, "location").contains("token"));
        (base, format!("Cookie: {}\r\n", cookie.split(';').next().unwrap()))
    }
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let head = answer.split("\r\n\r\n").next().unwrap();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .unwrap_or_else(|| panic!("{answer}"))
        .1
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn every_response_is_closed_to_others_whatever_is_asked() {
    let console = start();
    let (base, cookie) = console.enter();
    let page = console.ask("GET", &format!("{base}/"), &cookie);
    assert!(page.contains("The store has no images."), "{page}");
    assert!(header(&page, "content-security-policy").contains("script-src 'sha256-"));
    let evil = format!("{cookie}Origin: http://evil.example\r\n");
    let outside = "x/../../../../../../etc/passwd";
    for (answer, expected) in [
        (page, "200"),
        (console.ask("GET", &format!("{base}/?format=json"), &cookie), "200"),
        (console.ask("GET", &format!("{base}/"), ""), "401"),
        (console.ask("GET", &format!("{base}/"), &evil), "403"),
        (console.ask("POST", &format!("{base}/"), &cookie), "405"),
        (console.ask("GET", "/etc/passwd", &cookie), "404"),
        (console.ask("GET", &format!("{base}/../{outside}"), &cookie), "404"),
        (console.ask("GET", &format!("{base}/runs/..%2f..%2fetc/passwd"), &cookie), "404"),
        (console.ask("GET", &format!("{base}/clusters/%2e%2e"), &cookie), "404"),
        (console.ask("GET", &format!("{base}/files/sha256:0/l/{outside}"), &cookie), "404"),
        (console.ask("GET", &format!("{base}/events/a/b?at=0"), &cookie), "404"),
        (console.ask("GET", &format!("{base}/plans/99999999999999999999"), &cookie), "404"),
    ] {
        assert_eq!(status(&answer), expected, "{answer}");
        let policy = header(&answer, "content-security-policy");
        for part in ["default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff");
        assert_eq!(header(&answer, "referrer-policy"), "no-referrer");
        assert_eq!(header(&answer, "cache-control"), "no-store");
        assert_eq!(header(&answer, "x-frame-options"), "DENY");
        assert!(!answer.contains("root:x:0"), "{answer}");
        // The secrets are in no page.
        assert!(!answer.contains(cookie.trim().rsplit('=').next().unwrap()), "{answer}");
    }
    let head = console.ask("HEAD", &format!("{base}/"), &cookie);
    assert_eq!((status(&head), head.split("\r\n\r\n").nth(1)), ("200", Some("")));
    let rebound = console.raw(&format!(
        "GET {base}/ HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n{cookie}\r\n"
    ));
    assert_eq!(status(&rebound), "421");
    assert_eq!(status(&console.raw("GET / HTTP/1.1\r\nConnection: close\r\n\r\n")), "421");
    let long = format!("X: {}\r\n{cookie}", "x".repeat(100 << 10));
    let answer = console.ask("GET", &format!("{base}/"), &long);
    assert!(["431", ""].contains(&status(&answer)), "{answer}");
}

#[test]
fn other_machines_cannot_reach_it() {
    let directory = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080", "[::ffff:192.0.2.1]:1"] {
        let error = Console::bind(options(directory.path(), address)).err().unwrap();
        assert!(error.to_string().contains("this machine alone"), "{error}");
        assert!(error.hints()[0].contains("ssh -L"), "{error:?}");
    }
}

#[test]
fn a_run_is_followed_until_it_ends_and_a_stop_does_not_wait_for_it() {
    const START: &str = r#"{"record":"start","time":"2026-01-01T00:00:00Z","verb":"run","cluster":"c","intent":"i","plan":"p","arguments":[],"version":"1","controller":"me"}"#;
    const BEGIN: &str = r#"{"record":"begin","time":"2026-01-01T00:00:01Z","step":"p/h:22/<b>","fingerprint":"f","attempt":1}"#;
    let console = start();
    let (base, cookie) = console.enter();
    let journals = console.directory.path().join("state/c/journal");
    std::fs::create_dir_all(&journals).unwrap();
    let path = journals.join("1.jsonl");
    std::fs::write(&path, format!("{START}\n")).unwrap();
    let held = Lock::try_acquire(&path, Mode::Exclusive).unwrap().unwrap();
    let page = console.ask("GET", &format!("{base}/runs/c/1"), &cookie);
    let events = format!("{base}/events/c/1?at={}", START.len() + 1);
    assert!(page.contains(&format!("data-events=\"{events}\"")), "{page}");
    assert!(header(&page, "content-security-policy").contains("connect-src 'self'"));

    let open = |more: &str| {
        let mut stream = TcpStream::connect(console.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head =
            format!("GET {events} HTTP/1.1\r\nHost: {}\r\n{cookie}{more}\r\n", console.address);
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let until = |stream: &mut TcpStream, wanted: &str| {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains(wanted) {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "ended after {text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        text
    };
    let mut stream = open("");
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    // Half a record is none.
    write!(file, "{BEGIN}\n{}", &BEGIN[..30]).unwrap();
    let text = until(&mut stream, "\n\n");
    assert_eq!(header(&text, "content-type"), "text/event-stream");
    let at = START.len() + BEGIN.len() + 2;
    assert!(text.contains(&format!("event: progress\nid: {at}\n")), "{text}");
    assert!(text.contains(r#""host":"h:22","phase":"p","step":"<b>","attempt":1"#), "{text}");
    // A browser that comes again gets what it has not had.
    let mut again = open(&format!("Last-Event-ID: {at}\r\n"));
    writeln!(file, "{}", &BEGIN[30..]).unwrap();
    let text = until(&mut again, "event: progress");
    assert_eq!(text.matches("\"kind\":\"begin\"").count(), 1, "{text}");
    drop(again);
    // The process dies without a word.
    drop((held, file));
    let text = until(&mut stream, "event: end");
    assert!(text.contains("unfinished") || until(&mut stream, "unfinished").contains("end"));

    let held = Lock::try_acquire(&path, Mode::Exclusive).unwrap().unwrap();
    let mut stream = open("");
    until(&mut stream, "event: progress");
    let begun = Instant::now();
    drop(console);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(held);
}
