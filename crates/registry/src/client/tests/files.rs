//! Blobs that are files: the kernel sends them over plain HTTP, and whatever is not the ordinary case
//! goes on over the client's ordinary connections.

use std::io::{Cursor, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::fake::{Answer, Fake, Request};
use super::real::{Registry, protected};
use super::uploads::{Taking, taking};
use super::*;

const SIZE: usize = (5 << 20) + 1;

/// Pushes `bytes` as a file of which only the first `there` bytes exist.
fn push_part(repository: &Repository, bytes: &[u8], there: usize) -> Result<Pushed> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes[..there]).unwrap();
    let file = BlobFile { file, stop: Arc::default() };
    let whole = bytes[..there].to_vec();
    let open = move |offset: u64| -> Result<Box<dyn Read + Send>> {
        let offset = usize::try_from(offset).unwrap().min(whole.len());
        Ok(Box::new(Cursor::new(whole[offset..].to_vec())))
    };
    let sent = std::sync::atomic::AtomicU64::new(0);
    let count = |more| {
        sent.fetch_add(more, Ordering::Relaxed);
    };
    let pushed = repository.push_file(&blob(bytes), &[], &open, file, &count)?;
    assert_eq!(sent.into_inner(), bytes.len() as u64, "progress told");
    Ok(pushed)
}

fn push_file(repository: &Repository, bytes: &[u8]) -> Result<Pushed> {
    push_part(repository, bytes, bytes.len())
}

/// Says of each PATCH whether the kernel sent it: only those connections serve one request.
fn by_kernel(fake: &Fake) -> Vec<bool> {
    let closes = |request: &Request| request.header("connection") == Some("close");
    fake.asked("PATCH", "").iter().map(closes).collect()
}

#[test]
fn the_kernel_sends_what_is_neither_small_nor_encrypted_nor_proxied() {
    let (fake, state) = taking(|_, _| None);
    let bytes = noise(SIZE);
    let repository = on(&client(None), &fake.host, "app");
    assert_eq!(push_file(&repository, &bytes).unwrap(), Pushed::Uploaded);
    assert_eq!(push_file(&repository, b"small").unwrap(), Pushed::Uploaded);
    let proxies = vec![("http_proxy".to_owned(), "http://127.0.0.1:1".to_owned())];
    let options = ClientOptions { proxies, ..ClientOptions::default() };
    let proxied = Client::with_pace(options, quick());
    assert_eq!(push_file(&on(&proxied, &fake.host, "app"), &bytes).unwrap(), Pushed::Uploaded);
    assert!(state.lock().unwrap().done == [bytes.clone(), b"small".to_vec(), bytes]);
    assert_eq!(by_kernel(&fake), [true, false]);
    let patched = &fake.asked("PATCH", "")[0];
    assert_eq!(patched.header("content-length"), Some(SIZE.to_string().as_str()));
    assert_eq!(patched.header("host"), Some(fake.host.as_str()));
    assert!(patched.header("user-agent").is_some_and(|agent| agent.starts_with("imgctl/")));
}

/// Answers the first PATCH.
type Answering = fn(&mut Taking, &Request) -> Answer;

#[test]
fn after_a_refusal_the_ordinary_connections_go_on() {
    let cases: [(&str, Answering); 3] = [
        ("lost", |state, _| {
            state.session = None;
            Answer::not_found()
        }),
        ("kept", |state, request| {
            state.session = Some(request.body[..1_500_000].to_vec());
            Answer::new("502 Bad Gateway", &[], b"")
        }),
        ("garbled", |_, _| Answer::new("999999 What", &[], b"")),
    ];
    for (name, answer) in cases {
        let times = AtomicUsize::new(0);
        let (fake, state) = taking(move |request, state| {
            let first = request.method == "PATCH" && times.fetch_add(1, Ordering::Relaxed) == 0;
            first.then(|| answer(state, request))
        });
        let bytes = noise(SIZE);
        let repository = on(&client(None), &fake.host, "app");
        assert_eq!(push_file(&repository, &bytes).unwrap(), Pushed::Uploaded, "{name}");
        assert!(state.lock().unwrap().done == [bytes], "{name}");
        assert_eq!(by_kernel(&fake), [true, false], "{name}");
    }
}

#[test]
fn a_redirect_is_refused_as_on_ordinary_connections() {
    let (fake, state) = taking(|request, _| {
        let to = [("Location", "http://127.0.0.1:1/")];
        (request.method == "PATCH").then(|| Answer::new("307 Temporary Redirect", &to, b""))
    });
    let repository = on(&client(None), &fake.host, "app");
    let error = push_file(&repository, &noise(SIZE)).unwrap_err();
    assert!(error.to_string().contains("uploads do not follow redirects"), "{error}");
    assert!(state.lock().unwrap().done.is_empty());
    assert_eq!(by_kernel(&fake), [true]);
}

#[test]
fn a_limit_of_bodies_is_an_ordinary_refusal() {
    let (fake, state) = taking(|request, _| {
        (request.body.len() > 5_000_000).then(|| Answer::new("413 Too Large", &[], b"<html>"))
    });
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise(9 << 20);
    assert_eq!(push_file(&repository, &bytes).unwrap(), Pushed::Uploaded);
    assert!(state.lock().unwrap().done == [bytes]);
}

#[test]
fn a_file_that_ends_too_early_is_an_error() {
    let (fake, state) = taking(|_, _| None);
    let repository = on(&client(None), &fake.host, "app");
    let error = push_part(&repository, &noise(SIZE), SIZE - 7).unwrap_err();
    assert!(error.to_string().contains("7 bytes too early"), "{error}");
    assert!(state.lock().unwrap().done.is_empty());
}

#[test]
fn a_stop_ends_sending() {
    let (fake, _) = taking(|_, _| None);
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise(SIZE);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let file = BlobFile { file, stop: Arc::new(AtomicBool::new(true)) };
    let stopped = |_: u64| -> Result<Box<dyn Read + Send>> { Err(Error::failed("stopped")) };
    assert!(repository.push_file(&blob(&bytes), &[], &stopped, file, &|_| {}).is_err());
    assert!(fake.asked("PATCH", "").iter().all(|request| request.body.is_empty()));
}

#[test]
fn docker_registry_takes_files() {
    let bytes = noise(SIZE);
    let registry = Registry::start();
    let repository = on(&client(None), &registry.host, "app");
    assert_eq!(push_file(&repository, &bytes).unwrap(), Pushed::Uploaded);
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
    let (registry, login) = protected();
    let repository = on(&client(Some(login)), &registry.host, "app");
    assert_eq!(push_file(&repository, &bytes).unwrap(), Pushed::Uploaded);
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
}
