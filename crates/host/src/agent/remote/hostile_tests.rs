//! Hosts that answer too much, or without end.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};

use crate::agent::remote::connection::{Connection, Deadline, Told, Trouble};
use crate::agent::wire::{Call, Content, Patience, ReadFile};
use crate::host::transport::Ended;
use imgctl_base::error::{Error, Kind};
use imgctl_base::wire::{LONGEST, encode};

/// A call that is over soon.
#[derive(Serialize, Deserialize)]
struct Question {
    bytes: u64,
}

impl Call for Question {
    const NAME: &'static str = "question";
    type Answer = Vec<String>;

    fn patience(&self) -> Patience {
        Patience { time: Some(Duration::from_millis(700)), bytes: self.bytes }
    }
}

/// What the host sends: a beginning, then the same for ever, or nothing more.
#[derive(Clone)]
struct Sent {
    first: Option<Bytes>,
    then: Option<Bytes>,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.first.take().or_else(|| self.then.clone()) {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// Asks a host that answers every request with `sent`, or not at all.
fn ask<C: Call>(call: &C, sent: Option<Sent>) -> (Result<C::Answer, Error>, Duration) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let service = service_fn(move |_| {
            let sent = sent.clone();
            async move {
                match sent {
                    Some(sent) => Ok::<_, Infallible>(Response::new(sent)),
                    None => std::future::pending().await,
                }
            }
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(theirs), service),
        );
        let (output, input) = tokio::io::split(ours);
        let ended = Box::pin(std::future::pending::<Result<Ended, Error>>());
        let connection = Connection::open(
            Box::new(output),
            Box::new(input),
            Box::new(tokio::io::empty()),
            ended,
        );
        let connection = connection.await.unwrap();
        let begun = Instant::now();
        let answer = connection.call(call, &mut |_: Told| {}).await;
        let answer = answer.map_err(|trouble| match trouble {
            Trouble::Lost { error, .. } | Trouble::Refused(error) => error,
        });
        (answer, begun.elapsed())
    });
    runtime.shutdown_background();
    answer
}

fn bytes(value: &impl Serialize) -> Bytes {
    encode(value).unwrap().into()
}

#[test]
fn nothing_that_a_host_sends_keeps_a_call_alive_for_ever() {
    let begun = Some(bytes(&"begun"));
    let progress = bytes(&serde_json::json!({"progress": 1}));
    let boast = bytes(&serde_json::json!({"progress": u64::MAX}));
    let line = bytes(&serde_json::json!({"line": {"text": "x", "error_stream": false}}));
    let sent = |then: Option<&Bytes>| Some(Sent { first: begun.clone(), then: then.cloned() });
    for (what, sent) in [
        ("no answer", None),
        ("no message", Some(Sent { first: None, then: None })),
        ("half a message", Some(Sent { first: Some(Bytes::from_static(b"\x09\0")), then: None })),
        ("a begun call", sent(None)),
        ("progress", sent(Some(&progress))),
        ("more progress than there can be", sent(Some(&boast))),
        ("lines", sent(Some(&line))),
    ] {
        let (answer, took) = ask(&Question { bytes: 100 }, sent);
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), Kind::Network, "{what}: {error}");
        assert!(error.to_string().contains("has not answered"), "{what}: {error}");
        assert!(took < Duration::from_secs(30), "{what}: {took:?}");
    }
}

#[test]
fn a_message_is_as_long_as_was_asked_for() {
    let length = |length: usize| Some(Bytes::copy_from_slice(&(length as u32).to_le_bytes()));
    let huge =
        Some(Sent { first: length(LONGEST + 1), then: Some(Bytes::from_static(&[b' '; 9])) });
    // A call with time: what a busy machine does late is no answer that comes too late.
    let file = |limit: u64| ReadFile { path: "/x".to_owned(), limit };
    let (answer, _) = ask(&file(0), huge.clone());
    assert_eq!(answer.err().unwrap().kind(), Kind::BadContent);
    let (answer, _) = ask(&file(u64::MAX), huge);
    assert_eq!(answer.err().unwrap().kind(), Kind::BadContent);
    let content = bytes(&serde_json::json!({"done": Content(vec![7; 300 << 10])}));
    let sent = Some(Sent { first: Some(content), then: None });
    assert_eq!(ask(&file(300 << 10), sent.clone()).0.unwrap().unwrap().0.len(), 300 << 10);
    assert_eq!(ask(&file(100 << 10), sent).0.err().unwrap().kind(), Kind::BadContent);
}

#[test]
fn bytes_that_come_extend_the_time_and_no_others() {
    let patience = |bytes| Patience { time: Some(Duration::from_secs(60)), bytes };
    let end = |deadline: &Deadline| deadline.end().unwrap();
    let start = Instant::now();
    let mut none = Deadline::new("x", patience(0));
    none.moved(u64::MAX);
    assert!(end(&none) <= start + Duration::from_secs(61));
    let mut some = Deadline::new("x", patience(1 << 30));
    std::thread::sleep(Duration::from_millis(20));
    let before = end(&some);
    some.moved(1 << 20);
    assert!(end(&some) > before, "progress counts");
    some.moved(u64::MAX);
    assert!(end(&some) <= Instant::now() + Duration::from_secs(60), "silence still ends it");
    assert!(Deadline::new("x", Patience { time: None, bytes: 0 }).end().is_none());
}
