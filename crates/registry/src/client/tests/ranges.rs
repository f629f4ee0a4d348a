//! Several ranges of a blob, read one after another.

use super::fake::{Answer, Fake, Request};
use super::faults::ranged;
use super::*;

type Ranges = Vec<Range<u64>>;
type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

fn one(start: u64, end: u64) -> Ranges {
    std::iter::once(start..end).collect()
}

fn read_ranges(
    repository: &Repository,
    blob: &Descriptor,
    ranges: &[Range<u64>],
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = repository.blob_ranges(blob, ranges.to_vec())?;
    reader.read_to_end(&mut bytes).map_err(|error| Error::io("cannot read", error))?;
    Ok(bytes)
}

/// Many small ranges, none, and one that takes several pieces.
fn some() -> Ranges {
    let mut ranges: Ranges = (0..50).map(|number| number * 1000..number * 1000 + 700).collect();
    ranges.push(60_000..60_000);
    ranges.push(100_000..(5 << 20) + 7);
    ranges
}

fn expected(bytes: &[u8]) -> Vec<u8> {
    some().into_iter().flat_map(|r| bytes[r.start as usize..r.end as usize].to_vec()).collect()
}

#[test]
fn ranges_arrive_in_order_from_a_real_registry_and_through_cuts() {
    let bytes = noise(6 << 20);
    let real = real::Registry::start();
    let repository = on(&client(None), &real.host, "app");
    push(&repository, &bytes, &[]).unwrap();
    assert!(read_ranges(&repository, &blob(&bytes), &some()).unwrap() == expected(&bytes));
    assert!(read_ranges(&repository, &blob(&bytes), &[]).unwrap().is_empty());
    assert!(read_ranges(&repository, &blob(&bytes), &one(7, (6 << 20) + 1)).is_err());
    let content = bytes.clone();
    let fake = Fake::start(move |request| ranged(&content, request).cut(500_000));
    let repository = on(&client(None), &fake.host, "app");
    assert!(read_ranges(&repository, &blob(&bytes), &some()).unwrap() == expected(&bytes));
    let asked = fake.asked("GET", "/blobs/");
    assert!(asked.iter().all(|request| request.header("range").is_some()));
}

#[test]
fn readers_that_nobody_reads_do_not_stop_others() {
    let bytes = noise(6 << 20);
    let content = bytes.clone();
    let fake = Fake::start(move |request| ranged(&content, request));
    let repository = on(&client(None), &fake.host, "app");
    let open = || repository.blob_ranges(&blob(&bytes), one(0, 6 << 20)).unwrap();
    let idle: Vec<_> = (0..12).map(|_| open()).collect();
    assert!(read_ranges(&repository, &blob(&bytes), &some()).unwrap() == expected(&bytes));
    drop(idle);
}

#[test]
fn a_mirror_that_fails_is_replaced_by_the_next_place() {
    let bytes = noise(6 << 20);
    let content = bytes.clone();
    let origin = Fake::start(move |request| ranged(&content, request));
    let mirror = Fake::start(|_| Answer::new("500 Internal Server Error", &[], b""));
    let repository = behind(&client(None), &[&mirror.host], &origin.host, "app");
    assert!(read_ranges(&repository, &blob(&bytes), &some()).unwrap() == expected(&bytes));
}

#[test]
fn answers_that_are_not_the_range_are_refused() {
    let bytes = noise(1 << 20);
    let partial = |headers: &[(&str, &str)], length: usize| {
        Answer::new("206 Partial Content", headers, &noise(length))
    };
    let whole = bytes.clone();
    let multipart = [("Content-Type", "multipart/byteranges; boundary=x")];
    let cases: Vec<(&str, Box<Handler>)> = vec![
        ("everything", Box::new(move |_| Answer::new("200 OK", &[], &whole))),
        ("no range", Box::new(move |_| partial(&[], 1000))),
        ("parts", Box::new(move |_| partial(&multipart, 1000))),
        (
            "another start",
            Box::new(move |_| partial(&[("Content-Range", "bytes 101-1100/1048576")], 1000)),
        ),
        (
            "another size",
            Box::new(move |_| partial(&[("Content-Range", "bytes 100-1099/1048577")], 1000)),
        ),
        (
            "too much",
            Box::new(move |_| partial(&[("Content-Range", "bytes 100-1099/1048576")], 1001)),
        ),
    ];
    for (name, answer) in cases {
        let fake = Fake::start(answer);
        let repository = on(&client(None), &fake.host, "app");
        let error = read_ranges(&repository, &blob(&bytes), &one(100, 1100)).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent, "{name}: {error}");
        assert_eq!(fake.asked("GET", "/blobs/").len(), 1, "{name}");
    }
}
