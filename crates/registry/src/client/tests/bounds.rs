//! Limits against hostile registries, scripted by a fake.

use std::sync::atomic::{AtomicU64, Ordering};

use super::fake::{Answer, Fake};
use super::*;

#[test]
fn an_upload_that_goes_to_and_fro_ends() {
    let asked = AtomicU64::new(0);
    let fake = Fake::start(move |request| match request.method.as_str() {
        "HEAD" => Answer::not_found(),
        "POST" => Answer::new("202 Accepted", &[("Location", "/v2/app/blobs/uploads/1")], b""),
        "GET" => {
            // The reported offset alternately grows and shrinks.
            let number = asked.fetch_add(1, Ordering::Relaxed);
            let range = format!("0-{}", if number.is_multiple_of(2) { 99 } else { 49 });
            Answer::new("204 No Content", &[("Range", &range)], b"")
        }
        "DELETE" => Answer::new("204 No Content", &[], b""),
        _ => Answer::new("503 Service Unavailable", &[], b""),
    });
    let repository = on(&client(None), &fake.host, "app");
    let bytes = noise((1 << 20) + 1);
    let error = repository
        .push_blob(
            &blob(&bytes),
            &[],
            &move |offset| Ok(Box::new(std::io::Cursor::new(bytes[offset as usize..].to_vec()))),
            &|_| {},
        )
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    let sent = fake.asked("PATCH", "/uploads/").len();
    assert!((10..=100).contains(&sent), "{sent} times");
}

#[test]
fn a_length_that_no_number_holds_is_refused() {
    let fake = Fake::start(|request| {
        let start = match request.header("range") {
            Some(_) => ("206 Partial Content", "bytes 5-9/10"),
            None => ("200 OK", ""),
        };
        let headers = [("Content-Length", "18446744073709551610"), ("Content-Range", start.1)];
        Answer::raw(start.0, &headers, b"56789")
    });
    let repository = on(&client(None), &fake.host, "app");
    for offset in [0, 5] {
        let error = read(&repository, &blob(b"0123456789"), offset).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{offset}: {error}");
        assert!(error.to_string().contains("18446744073709551"), "{error}");
    }
}
