//! Faults while a blob is pushed: registries that lose state, impose limits and report wrong
//! values, scripted by a fake, and a real registry behind a connection that breaks.

use std::io::{Cursor, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::fake::{Answer, Fake, Request};
use super::real::Registry;
use super::*;

/// State of a registry that accepts one upload at a time.
#[derive(Default)]
pub(super) struct Taking {
    pub(super) session: Option<Vec<u8>>,
    pub(super) sessions: usize,
    pub(super) done: Vec<Vec<u8>>,
}

/// Starts a fake that accepts uploads correctly, unless `disturb` answers first.
pub(super) fn taking(
    disturb: impl Fn(&Request, &mut Taking) -> Option<Answer> + Send + Sync + 'static,
) -> (Fake, Arc<Mutex<Taking>>) {
    let state = Arc::new(Mutex::new(Taking::default()));
    let of_fake = Arc::clone(&state);
    let fake = Fake::start(move |request| {
        let mut state = of_fake.lock().unwrap();
        if let Some(answer) = disturb(request, &mut state) {
            return answer;
        }
        let number = state.sessions.to_string();
        let is_current = request.target.contains(&format!("/uploads/{number}"));
        let progress = |state: &Taking, status: &str| {
            let length = state.session.as_ref().map_or(0, Vec::len);
            let range = format!("0-{}", length.saturating_sub(1));
            let location = format!("/v2/app/blobs/uploads/{}?state=a%2Fb", state.sessions);
            Answer::new(status, &[("Range", &range), ("Location", &location)], b"")
        };
        match request.method.as_str() {
            "HEAD" => Answer::not_found(),
            "POST" => {
                state.sessions += 1;
                state.session = Some(Vec::new());
                progress(&state, "202 Accepted")
            }
            _ if !is_current || state.session.is_none() => Answer::not_found(),
            "GET" => progress(&state, "204 No Content"),
            "PATCH" => {
                let session = state.session.as_mut().unwrap();
                let start = request
                    .header("content-range")
                    .map_or(0, |range| range.split('-').next().unwrap().parse().unwrap());
                if start != session.len() {
                    return Answer::new("416 Range Not Satisfiable", &[], b"");
                }
                session.extend(&request.body);
                progress(&state, "202 Accepted")
            }
            "PUT" => {
                assert!(request.target.contains("?state=a%2Fb&digest=sha256%3A"));
                let mut session = state.session.take().unwrap();
                session.extend(&request.body);
                state.done.push(session);
                Answer::new("201 Created", &[], b"")
            }
            _ => {
                state.session = None;
                Answer::new("204 No Content", &[], b"")
            }
        }
    });
    (fake, state)
}

#[test]
fn blobs_go_in_one_piece_small_ones_in_one_request() {
    let (fake, state) = taking(|_, _| None);
    let repository = on(&client(None), &fake.host, "app");
    let (small, large) = (noise(1 << 20), noise((1 << 20) + 1));
    for bytes in [&Vec::new(), &small, &large] {
        assert_eq!(push(&repository, bytes, &[]).unwrap(), Pushed::Uploaded);
    }
    assert!(state.lock().unwrap().done == [Vec::new(), small, large]);
    assert_eq!(fake.asked("PUT", "").len(), 3);
    let patched = fake.asked("PATCH", "");
    assert_eq!(patched.len(), 1);
    assert_eq!(patched[0].header("content-length"), Some("1048577"));
}

#[test]
fn a_session_that_is_lost_is_begun_anew() {
    let times = AtomicUsize::new(0);
    let (fake, state) = taking(move |request, state| {
        let lose = request.method == "PATCH" && times.fetch_add(1, Ordering::Relaxed) == 0;
        lose.then(|| {
            state.session = None;
            Answer::new("404 Not Found", &[], br#"{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}"#)
        })
    });
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise(2 << 20);
    assert_eq!(push(&repository, &bytes, &[]).unwrap(), Pushed::Uploaded);
    assert_eq!(state.lock().unwrap().sessions, 2);
    assert!(state.lock().unwrap().done == [bytes]);
}

#[test]
fn what_the_registry_kept_is_not_sent_again() {
    let times = AtomicUsize::new(0);
    let (fake, state) = taking(move |request, state| {
        let cut = request.method == "PATCH" && times.fetch_add(1, Ordering::Relaxed) == 0;
        cut.then(|| {
            state.session = Some(request.body[..1_500_000].to_vec());
            Answer::new("502 Bad Gateway", &[], b"")
        })
    });
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise(2 << 20);
    assert_eq!(push(&repository, &bytes, &[]).unwrap(), Pushed::Uploaded);
    assert!(state.lock().unwrap().done == [bytes]);
    let second = &fake.asked("PATCH", "")[1];
    assert_eq!(second.header("content-range"), Some("1500000-2097151"));
}

#[test]
fn a_limit_of_bodies_makes_chunks() {
    let (fake, state) = taking(|request, _| {
        (request.body.len() > 5_000_000)
            .then(|| Answer::new("413 Request Entity Too Large", &[], b"<html>"))
    });
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise(9 << 20);
    assert_eq!(push(&repository, &bytes, &[]).unwrap(), Pushed::Uploaded);
    assert!(state.lock().unwrap().done == [bytes]);
    let sizes: Vec<usize> =
        fake.asked("PATCH", "").iter().map(|request| request.body.len()).collect();
    assert_eq!(sizes, [9 << 20, 9 << 19, 9 << 19]);
}

#[test]
fn chunks_are_not_smaller_than_the_registry_wants() {
    let (fake, state) = taking(|request, state| {
        if request.method == "POST" {
            state.sessions += 1;
            state.session = Some(Vec::new());
            let location = format!("/v2/app/blobs/uploads/{}?state=a%2Fb", state.sessions);
            let headers = [("Location", location.as_str()), ("OCI-Chunk-Min-Length", "6000000")];
            return Some(Answer::new("202 Accepted", &headers, b""));
        }
        (request.body.len() > 7_000_000).then(|| Answer::new("413 Too Large", &[], b""))
    });
    let repository = on(&client(None), &fake.host, "app");
    let error = push(&repository, &noise(9 << 20), &[]).unwrap_err();
    assert!(error.to_string().contains("413"), "{error}");
    assert_eq!(fake.asked("PATCH", "").len(), 1);
    assert!(state.lock().unwrap().session.is_none(), "the session is cancelled");
    assert_eq!(push(&repository, &noise(6_500_000), &[]).unwrap(), Pushed::Uploaded);
}

#[test]
fn a_registry_that_is_full_says_so() {
    let (fake, _) = taking(|request, _| {
        let full = br#"{"errors":[{"code":"UNKNOWN","message":"no space left on device"}]}"#;
        (request.method == "PUT").then(|| Answer::new("507 Insufficient Storage", &[], full))
    });
    let repository = on(&client(None), &fake.host, "app");
    let error = push(&repository, b"content", &[]).unwrap_err();
    assert!(
        error.to_string().contains("507 Insufficient Storage: UNKNOWN: no space left"),
        "{error}"
    );
    assert_eq!(fake.asked("DELETE", "/uploads/").len(), 1);
}

#[test]
fn our_own_trouble_is_not_the_networks() {
    let (fake, state) = taking(|_, _| None);
    let repository = on(&client(None), &fake.host, "app");
    for length in [1000, 3 << 20] {
        let bytes = noise(length);
        let error = repository
            .push_blob(
                &blob(&bytes),
                &[],
                &|_| Ok(Box::new(Cursor::new(bytes[..length - 1].to_vec()))),
                &|_| {},
            )
            .unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert!(error.to_string().contains("1 bytes too early"), "{error}");
    }
    assert!(state.lock().unwrap().done.is_empty());
}

/// Starts a forwarder to `host` that breaks each connection after `after` bytes have been sent.
pub(super) fn breaking_line(host: &str, after: u64) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let breaks = Arc::new(AtomicU64::new(0));
    let (host, counted) = (host.to_owned(), Arc::clone(&breaks));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (host, counted) = (host.clone(), Arc::clone(&counted));
            std::thread::spawn(move || {
                let server = TcpStream::connect(host)?;
                let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let sent = std::io::copy(&mut (&client).take(after), &mut &server)?;
                if sent == after {
                    counted.fetch_add(1, Ordering::Relaxed);
                    // Hands everything received to the registry before the connection breaks.
                    (&server).flush()?;
                    server.shutdown(Shutdown::Both)?;
                    client.shutdown(Shutdown::Both)?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    (address, breaks)
}

#[test]
fn a_push_goes_on_after_every_break() {
    let registry = Registry::start();
    let (line, breaks) = breaking_line(&registry.host, 3 << 20);
    let bytes = noise(20 << 20);
    let broken = on(&client(None), &line, "app");
    assert_eq!(push(&broken, &bytes, &[]).unwrap(), Pushed::Uploaded);
    assert!(breaks.load(Ordering::Relaxed) >= 1, "{breaks:?}");
    assert!(read(&on(&client(None), &registry.host, "app"), &blob(&bytes), 0).unwrap() == bytes);
}
