//! Tests of the server's limits with clients that break the rules.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::layout::Layout;

struct Running {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
    _directory: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

fn start(limits: Limits) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::create(directory.path(), false).unwrap();
    let options = ServeOptions {
        addresses: vec!["127.0.0.1:0".parse().unwrap()],
        limits,
        ..ServeOptions::default()
    };
    let server = Server::bind(&options, Arc::new(LayoutBackend::new(layout))).unwrap();
    let address = server.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        server.run(async {
            let _ = stopped.await;
        })
    });
    Running { address, stop: Some(stop), thread: Some(thread), _directory: directory }
}

fn connect(server: &Running, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Returns the data that arrives before the server closes the connection, and the time that took.
fn to_the_end(mut stream: TcpStream) -> (String, Duration) {
    let begun = Instant::now();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    (String::from_utf8_lossy(&bytes).into_owned(), begun.elapsed())
}

fn short() -> Limits {
    Limits {
        head: Duration::from_millis(300),
        silence: Duration::from_millis(300),
        idle: Duration::from_millis(600),
        grace: Duration::from_millis(500),
        ..Limits::default()
    }
}

#[test]
fn silent_and_slow_clients_are_let_go() {
    let server = start(short());
    for bytes in [&b""[..], b"GET /v2/ HT", b"GET /v2/ HTTP/1.1\r\nHost: x\r\nX-Slow: "] {
        let (_, took) = to_the_end(connect(&server, bytes));
        assert!(took < Duration::from_secs(10), "{bytes:?} took {took:?}");
    }
    let body = b"PUT /v2/a/manifests/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc";
    let (answer, took) = to_the_end(connect(&server, body));
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    // A client that sends a request and then stalls gets its response first.
    let asked = connect(&server, b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(to_the_end(asked).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let server = start(short());
    let content = vec![1_u8; 64 << 20];
    let digest = imgctl_base::image::Digest::of(&content);
    let head = format!(
        "POST /v2/a/blobs/uploads/?digest={digest} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    let mut push = connect(&server, head.as_bytes());
    push.write_all(&content).unwrap();
    assert!(to_the_end(push).0.starts_with("HTTP/1.1 201"));
    let get = format!("GET /v2/a/blobs/{digest} HTTP/1.1\r\nHost: x\r\n\r\n");
    let stream = connect(&server, get.as_bytes());
    std::thread::sleep(Duration::from_secs(2));
    let (answer, _) = to_the_end(stream);
    assert!(answer.len() < content.len(), "all was sent after the silence");
}

#[test]
fn more_connections_than_allowed_wait_their_turn() {
    let server = start(Limits { connections: 2, ..Limits::default() });
    let request = b"GET /v2/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let busy = b"PUT /v2/a/manifests/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc";
    // Connections are accepted in the order in which they were made.
    let held = [connect(&server, busy), connect(&server, busy)];
    std::thread::sleep(Duration::from_millis(500));
    let mut third = connect(&server, request);
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err(), "it was served at once");
    drop(held);
    third.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert!(to_the_end(third).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn nobody_holds_all_places_without_asking_for_anything() {
    let kept = b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n";
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for bytes in
        [&b""[..], b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: ", kept, b"PRI * H", http2]
    {
        let server = start(Limits { connections: 8, ..Limits::default() });
        let _held: Vec<_> = (0..20).map(|_| connect(&server, bytes)).collect();
        let request = b"GET /v2/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let (answer, took) = to_the_end(connect(&server, request));
        assert!(answer.starts_with("HTTP/1.1 200"), "{bytes:?}: {answer}");
        assert!(took < Duration::from_secs(20), "{bytes:?} took {took:?}");
    }
}

#[test]
fn the_time_of_a_head_begins_with_its_first_byte() {
    let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
    let server = start(limits);
    for before in [&b""[..], b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let mut stream = connect(&server, before);
        if !before.is_empty() {
            // The answer is there, and the connection stays for the next request.
            let _ = stream.read(&mut [0; 1024]).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            stream.write_all(before).unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0, "it was closed");
        }
        stream.write_all(b"GET /v2/ HTTP/1.1\r\nX-Slow: ").unwrap();
        let (_, took) = to_the_end(stream);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// Proxies disagree on where a request with both ends (RFC 9112, 6.1).
#[test]
fn nothing_is_read_behind_a_request_with_two_lengths() {
    let server = start(Limits::default());
    let (length, chunked) = ("Content-Length: 5", "Transfer-Encoding: chunked");
    let next = "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n";
    for (first, second) in [(length, chunked), (chunked, length)] {
        let both = format!(
            "POST /v2/a/blobs/uploads/ HTTP/1.1\r\nHost: x\r\n{first}\r\n{second}\r\n\r\n0\r\n\r\n{next}"
        );
        let (answer, _) = to_the_end(connect(&server, both.as_bytes()));
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}
