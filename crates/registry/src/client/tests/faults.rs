//! Faults of a registry while content is read, one by one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::fake::{Answer, Fake, Request};
use super::*;
use imgctl_base::image::media_type;

/// Answers a request for `content` as a correct registry does, with ranges.
pub(super) fn ranged(content: &[u8], request: &Request) -> Answer {
    let total = content.len();
    let Some(range) = request.header("range") else {
        return Answer::new("200 OK", &[("Accept-Ranges", "bytes")], content);
    };
    let (start, end) = range["bytes=".len()..].split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(total, |end: usize| end + 1);
    let range = format!("bytes {start}-{}/{total}", end - 1);
    Answer::new("206 Partial Content", &[("Content-Range", &range)], &content[start..end])
}

fn fails(result: Result<Vec<u8>>, kind: Kind, words: &str) {
    let error = result.unwrap_err();
    assert!(error.kind() == kind && error.to_string().contains(words), "{error:?}, not {words}");
}

#[test]
fn a_registry_that_cuts_every_connection_is_read_to_the_end() {
    let bytes = noise(7 << 20);
    let content = bytes.clone();
    let fake = Fake::start(move |request| ranged(&content, request).cut(1 << 20));
    let repository = on(&client(None), &fake.host, "app");
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
    assert_eq!(fake.asked("GET", "/blobs/").len(), 7);
}

#[test]
fn without_ranges_what_was_had_is_read_again() {
    let bytes = noise(1 << 20);
    let content = bytes.clone();
    let times = AtomicUsize::new(0);
    let fake = Fake::start(move |_| {
        let cut = [400_000, 700_000, 1 << 20][times.fetch_add(1, Ordering::Relaxed)];
        Answer::new("200 OK", &[], &content).cut(cut)
    });
    let repository = on(&client(None), &fake.host, "app");
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
    let asked = fake.asked("GET", "/blobs/");
    assert_eq!(asked[1].header("range"), Some("bytes=400000-"));
    assert_eq!(asked[2].header("range"), Some("bytes=700000-"));
}

#[test]
fn a_registry_that_brings_nothing_more_is_given_up() {
    let bytes = noise(100_000);
    let content = bytes.clone();
    let fake = Fake::start(move |request| match request.header("range") {
        None => ranged(&content, request).cut(50_000),
        Some(_) => ranged(&content, request).cut(0),
    });
    let repository = on(&client(None), &fake.host, "app");
    fails(read(&repository, &blob(&bytes), 0), Kind::Network, "(tried 5 times)");
    assert_eq!(fake.asked("GET", "/blobs/").len(), 5);
}

#[test]
fn lies_about_lengths_are_found() {
    let bytes = noise(1000);
    let chunked = |length: usize| {
        let mut body = format!("{length:x}\r\n").into_bytes();
        body.extend(noise(length));
        body.extend(b"\r\n0\r\n\r\n");
        Answer::raw("200 OK", &[("Transfer-Encoding", "chunked")], &body)
    };
    let partial = |range: &str, length: usize| {
        Answer::new("206 Partial Content", &[("Content-Range", range)], &noise(length))
    };
    type Case = (u64, Answer, Kind, &'static str);
    let cases: Vec<Case> = vec![
        (
            0,
            Answer::new("200 OK", &[], &noise(999)),
            Kind::BadContent,
            "it has 999 bytes, not 1000",
        ),
        (0, Answer::new("200 OK", &[], &noise(1001)), Kind::BadContent, "it has 1001 bytes"),
        (0, chunked(1001), Kind::BadContent, "longer than 1000 bytes"),
        (0, chunked(999), Kind::BadContent, "ended after 999 of 1000"),
        (0, Answer::new("204 No Content", &[], b""), Kind::BadContent, "contains no blob"),
        (5, partial("bytes 6-999/1000", 994), Kind::BadContent, "received others"),
        (5, partial("bytes 5-999/1001", 995), Kind::BadContent, "received others"),
        (5, partial("bytes 9-5/1000", 995), Kind::BadContent, "Content-Range"),
        (5, partial("lines 5-999/1000", 995), Kind::BadContent, "Content-Range"),
        (5, partial("bytes 5-999/1000", 996), Kind::BadContent, "1001 bytes"),
        (5, Answer::new("416 Range Not Satisfiable", &[], b""), Kind::Network, "416"),
    ];
    for (offset, answer, kind, words) in cases {
        let fake = Fake::start(move |_| answer.clone());
        let repository = on(&client(None), &fake.host, "app");
        fails(read(&repository, &blob(&bytes), offset), kind, words);
    }
}

#[test]
fn silence_and_dripping_are_not_waited_for() {
    let bytes = noise(1000);
    for (piece, pause) in [(100, 2000), (10, 50)] {
        let content = bytes.clone();
        let fake = Fake::start(move |request| Answer {
            pauses: Some((piece, Duration::from_millis(pause))),
            ..ranged(&content, request)
        });
        let options = ClientOptions { attempts: Some(2), ..ClientOptions::default() };
        let pace = Pace { silence: Duration::from_millis(400), least: 500, ..quick() };
        let client = Client::with_pace(options, pace);
        let repository = on(&client, &fake.host, "app");
        let start = Instant::now();
        let error = read(&repository, &blob(&bytes), 0).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Network, "{error}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert!(fake.asked("GET", "/blobs/").len() == 2, "{error}");
    }
}

#[test]
fn an_answer_that_never_starts_is_given_up() {
    let fake = Fake::start(|_| {
        std::thread::sleep(Duration::from_secs(3));
        Answer::not_found()
    });
    let pace = Pace { answer: Duration::from_millis(200), ..quick() };
    let options = ClientOptions { attempts: Some(2), ..ClientOptions::default() };
    let repository = on(&Client::with_pace(options, pace), &fake.host, "app");
    let error = repository.document(&tag("v1")).unwrap_err();
    assert!(error.to_string().contains("sent nothing"), "{error}");
    assert_eq!(error.kind(), Kind::Network);
}

#[test]
fn mirrors_are_gone_through_and_gone_back_from() {
    let bytes = noise(3 << 20);
    let content = bytes.clone();
    let origin = Fake::start(move |request| ranged(&content, request));
    let content = bytes.clone();
    let breaking = Fake::start(move |request| match request.header("range") {
        None => ranged(&content, request).cut(1 << 20),
        Some(_) => Answer::new("500 Internal Server Error", &[], b""),
    });
    let empty = Fake::start(|_| Answer::not_found());
    let lying = Fake::start(|_| Answer::new("200 OK", &[], b"something else"));
    let closed = format!("127.0.0.1:{}", imgctl_base::testing::free_port());
    let client = client(None);
    let mirrors = [closed.as_str(), &empty.host, &lying.host, &breaking.host];
    let repository = behind(&client, &mirrors, &origin.host, "app");
    for round in 1..=2 {
        assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
        assert_eq!(empty.asked("GET", "/blobs/").len(), round);
        assert_eq!(lying.asked("GET", "/blobs/").len(), round);
    }
    let asked = origin.asked("GET", "/blobs/");
    assert_eq!(asked[0].header("range"), Some("bytes=1048576-"));
    assert_eq!(repository.document(&tag("v1")).unwrap_err().kind(), Kind::BadContent);
}

#[test]
fn what_may_pass_is_tried_again_and_told_in_the_end() {
    for (status, kind) in [
        ("503 Service Unavailable", Kind::Network),
        ("429 Too Many Requests", Kind::Network),
        ("408 Request Timeout", Kind::Network),
    ] {
        let times = AtomicUsize::new(0);
        let fake = Fake::start(move |_| match times.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Answer::new(status, &[("Retry-After", "0")], b""),
            2 => Answer::new("200 OK", &[], b"x"),
            _ => Answer::new(
                status,
                &[],
                br#"{"errors":[{"code":"X","message":"so\nit \u001b[31mis"}]}"#,
            ),
        });
        let repository = on(&client(None), &fake.host, "team/app");
        assert_eq!(read(&repository, &blob(b"x"), 0).unwrap(), b"x");
        let error = read(&repository, &blob(b"x"), 0).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), kind);
        for part in [status, "tried 5 times", "X: so it [31mis", "team/app", &fake.host] {
            assert!(text.contains(part), "{text}: no {part}");
        }
        assert_eq!(fake.asked("GET", "/blobs/").len(), 3 + 5);
    }
    let fake = Fake::start(|_| Answer::new("400 Bad Request", &[], b"no"));
    let repository = on(&client(None), &fake.host, "app");
    repository.document(&tag("v1")).unwrap_err();
    assert_eq!(fake.asked("GET", "/manifests/").len(), 1, "no use in repeating");
}

#[test]
fn a_retry_after_is_obeyed() {
    let times = AtomicUsize::new(0);
    let fake = Fake::start(move |_| match times.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::new("429 Too Many Requests", &[("Retry-After", "1")], b""),
        _ => Answer::new("200 OK", &[], b"x"),
    });
    let repository = on(&client(None), &fake.host, "app");
    let start = Instant::now();
    assert_eq!(read(&repository, &blob(b"x"), 0).unwrap(), b"x");
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn redirects_are_followed_but_not_for_ever_and_not_anywhere() {
    let store = Fake::start(|request| ranged(b"content", request));
    let elsewhere = format!("http://{}/signed?key=hidden", store.host);
    let fake = Fake::start(move |request| {
        let to =
            |location: &str| Answer::new("307 Temporary Redirect", &[("Location", location)], b"");
        let number = request.target.rsplit('=').next().unwrap();
        match request.target.split('/').nth(2).unwrap() {
            "elsewhere" => to(&elsewhere),
            "circle" => to(&request.target),
            "endless" => to(&format!("/v2/endless/blobs/?n={number}1")),
            "password" => to("http://me:pw@127.0.0.1:9/"),
            "file" => to("file:///etc/passwd"),
            _ => Answer::new("307 Temporary Redirect", &[], b""),
        }
    });
    let client = client(None);
    let descriptor = blob(b"content");
    let through = on(&client, &fake.host, "elsewhere");
    assert_eq!(read(&through, &descriptor, 0).unwrap(), b"content");
    assert_eq!(read(&through, &descriptor, 3).unwrap(), b"tent");
    assert_eq!(store.asked("GET", "/signed")[1].header("range"), Some("bytes=3-"));
    for (repository, words) in [
        ("circle", "a redirect loop"),
        ("endless", "too many redirects"),
        ("password", "contains a password"),
        ("file", "no Location"),
        ("nowhere", "no Location"),
    ] {
        let error = read(&on(&client, &fake.host, repository), &descriptor, 0).unwrap_err();
        assert!(error.to_string().contains(words), "{repository}: {error}");
        assert!(!error.to_string().contains("pw"), "{error}");
    }
}

#[test]
fn foreign_layers_are_fetched_by_https_only() {
    let foreign = Fake::start(|request| ranged(b"content", request));
    let fake = Fake::start(|_| Answer::not_found());
    let repository = on(&client(None), &fake.host, "app");
    let mut descriptor = blob(b"content");
    descriptor.urls = vec![format!("http://{}/layer", foreign.host), "ftp://x/".to_owned()];
    fails(read(&repository, &descriptor, 0), Kind::NotFound, "404");
    assert_eq!(foreign.asked("GET", "").len(), 0);
}

#[test]
fn a_slow_connection_is_joined_by_others() {
    // A period that is not a multiple of the piece length.
    let bytes = noise(999_983).repeat(88);
    let content = bytes.clone();
    let fake = Fake::start(move |request| Answer {
        pauses: Some((1 << 20, Duration::from_millis(10))),
        ..ranged(&content, request)
    });
    let repository = on(&client(None), &fake.host, "app");
    assert!(read(&repository, &blob(&bytes), 0).unwrap() == bytes);
    let asked = fake.asked("GET", "/blobs/");
    assert!(asked.len() > 5, "{} requests", asked.len());
    let ends =
        |request: &Request| request.header("range").is_some_and(|range| !range.ends_with('-'));
    assert!(asked[1..].iter().all(ends));
}

#[test]
fn manifests_that_are_not_what_they_say_are_refused() {
    let good = serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
        "config": blob(b"{}"), "layers": [],
    })
    .to_string();
    let manifest = ("Content-Type", media_type::OCI_MANIFEST);
    let other = Digest::of(b"other").to_string();
    let by_digest = Target::Digest(Digest::of(good.as_bytes()));
    let cases: Vec<(Target, Answer, &str)> = vec![
        (
            Target::Digest(Digest::of(b"x")),
            Answer::new("200 OK", &[manifest], good.as_bytes()),
            "its digest is",
        ),
        (
            tag("v1"),
            Answer::new("200 OK", &[manifest, ("Docker-Content-Digest", &other)], good.as_bytes()),
            "reports",
        ),
        (
            tag("v1"),
            Answer::new("200 OK", &[manifest, ("Docker-Content-Digest", "../x")], good.as_bytes()),
            "not a digest",
        ),
        (
            by_digest,
            Answer::new("200 OK", &[("Content-Type", media_type::OCI_INDEX)], good.as_bytes()),
            "announced as",
        ),
        (
            tag("v1"),
            Answer::raw("200 OK", &[manifest, ("Content-Length", "99999999999")], b""),
            "more than",
        ),
        (tag("v1"), Answer::raw("200 OK", &[manifest], &vec![b' '; (16 << 20) + 1]), "more than"),
        (
            tag("v1"),
            Answer::new(
                "200 OK",
                &[("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")],
                b"{}",
            ),
            "schema 1",
        ),
        (tag("v1"), Answer::new("200 OK", &[], br#"{"schemaVersion":1}"#), "schema 1"),
        (tag("v1"), Answer::new("200 OK", &[], b"<html>"), "not JSON"),
    ];
    for (target, answer, words) in cases {
        let fake = Fake::start(move |_| answer.clone());
        let error = on(&client(None), &fake.host, "app").document(&target).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{error}");
        assert!(error.to_string().contains(words), "{error}: no {words}");
    }
    let content = good.clone();
    let vague = Fake::start(move |_| {
        Answer::new(
            "200 OK",
            &[("Content-Type", "application/json; charset=utf-8")],
            content.as_bytes(),
        )
    });
    let repository = on(&client(None), &vague.host, "app");
    let expected =
        Descriptor::new(media_type::OCI_MANIFEST, Digest::of(good.as_bytes()), good.len() as u64);
    assert_eq!(repository.document(&tag("v1")).unwrap().descriptor, expected);
    // Without a digest in the response to HEAD, the document itself provides it.
    assert_eq!(repository.head(&tag("v1")).unwrap(), Some(expected));
}

#[test]
fn lists_end_and_hold_only_names() {
    let fake = Fake::start(|request| {
        let next = format!("<{}1>; rel=\"next\"", request.target);
        match request.target.split('/').nth(2).unwrap() {
            "pages" if request.target.contains("last=b") => Answer::json(r#"{"tags":["c"]}"#),
            "pages" => Answer::new(
                "200 OK",
                &[("Link", "</v2/pages/tags/list?last=b&n=2>; rel=\"next\"")],
                br#"{"tags":["a","b","-x","a/b","\u001b[31m"]}"#,
            ),
            "itself" => Answer::new(
                "200 OK",
                &[("Link", "</v2/itself/tags/list?n=1000>; rel=next")],
                br#"{"tags":["a"]}"#,
            ),
            "old" if request.target.contains("n=") => Answer::new("400 Bad Request", &[], b""),
            "old" => Answer::json(r#"{"tags":["a"]}"#),
            "none" => Answer::json(r#"{"tags":null}"#),
            _ => Answer::new("200 OK", &[("Link", &next)], b"{}"),
        }
    });
    let client = client(None);
    let tags = |name: &str| on(&client, &fake.host, name).tags();
    assert_eq!(tags("pages").unwrap(), ["a", "b", "c"]);
    assert_eq!(tags("old").unwrap(), ["a"]);
    assert!(tags("none").unwrap().is_empty());
    assert!(tags("itself").unwrap_err().to_string().contains("links to itself"));
}
