//! Blobs of every kind: valid, invalid and damaged.

use std::io::Write;

use super::*;
use crate::writer::tests::{noise, read_all, write_layer};
use crate::{Compression, LayerPath};
use imgctl_base::error::Kind;

type Files = Vec<(Entry, Vec<u8>)>;

const ALL: [Compression; 3] =
    [Compression::None, Compression::Gzip { level: 1 }, Compression::Zstd { level: 1 }];

fn files(sizes: &[usize]) -> Files {
    let mut files = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let path = LayerPath::parse(format!("d/{index}").as_bytes()).unwrap();
        let content = match index % 2 {
            0 => noise(*size),
            _ => b"play and work ".iter().copied().cycle().take(*size).collect(),
        };
        let kind = EntryKind::File { size: *size as u64 };
        files.push((Entry::new(path, kind, 0o644), content));
    }
    files
}

fn large() -> Files {
    files(&[0, 1, 5 << 20, 9 << 20, 4 << 20, 300, 20 << 20])
}

fn scan_all(blob: &[u8], expected: Expected<'_>) -> Result<(Scanned, Files)> {
    let mut files = Vec::new();
    let scanned = scan(blob, expected, Limits::default(), &mut |entry, content, _| {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).doing(|| "content".to_owned())?;
        files.push((entry.clone(), bytes));
        Ok(())
    })?;
    Ok((scanned, files))
}

fn ignore(_: &Entry, _: &mut dyn BufRead, _: Option<u64>) -> Result<()> {
    Ok(())
}

#[test]
fn a_scan_finds_what_the_writer_knew() {
    let files = large();
    for compression in ALL {
        let (blob, layer) = write_layer(&files, compression, 2);
        let expected = Expected {
            digest: Some(&layer.digest),
            size: Some(layer.size),
            diff_id: Some(&layer.diff_id),
        };
        let (scanned, found) = scan_all(&blob, expected).unwrap();
        assert!(found == files, "{compression:?}");
        assert_eq!(scanned.digest, layer.digest);
        assert_eq!(scanned.size, layer.size);
        assert_eq!(scanned.toc.entries, layer.toc.unpack().unwrap().entries);
        if !matches!(compression, Compression::Gzip { .. }) {
            assert_eq!(scanned.toc.restarts, layer.toc.restarts);
        }
        let skipped = scan(&blob[..], expected, Limits::default(), &mut ignore).unwrap();
        assert_eq!(skipped.toc, scanned.toc, "content left unread changes something");
    }
}

#[test]
fn foreign_blobs_are_read_too() {
    let files = large();
    let (tar, layer) = write_layer(&files, Compression::None, 1);
    let mut zstd_stream = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    zstd_stream.write_all(&tar).unwrap();
    let zstd_stream = zstd_stream.finish().unwrap();
    let half = tar.len() / 2;
    // A frame as imgctl writes it, then one of unknown size, then one that is too large.
    let mixed = [
        zstd::bulk::compress(&tar[..1000], 1).unwrap(),
        zstd::stream::encode_all(&tar[1000..half], 1).unwrap(),
        zstd::bulk::compress(&tar[half..], 1).unwrap(),
    ]
    .concat();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let padded = [&gzip[..], &[0; 100]].concat();
    for (name, blob) in
        [("stream", zstd_stream), ("mixed", mixed), ("gzip", gzip), ("padded", padded)]
    {
        let digest = Digest::of(&blob);
        let expected =
            Expected { digest: Some(&digest), diff_id: Some(&layer.diff_id), size: None };
        let (scanned, found) = scan_all(&blob, expected).unwrap();
        assert!(found == files, "{name}");
        assert_eq!(scanned.size, blob.len() as u64, "{name}");
    }
    let junk = [&tar[..], b"junk"].concat();
    let error = scan_all(&junk, Expected::default()).unwrap_err().to_string();
    assert!(error.contains("follow the end"), "{error}");
}

#[test]
fn other_digest_algorithms_are_checked() {
    let (blob, layer) = write_layer(&large(), Compression::None, 1);
    let mut hasher = imgctl_base::image::Hasher::with(Algorithm::Sha512);
    hasher.update(&blob);
    let sha512 = hasher.finish();
    let expected = Expected { digest: Some(&sha512), diff_id: Some(&layer.diff_id), size: None };
    let (scanned, _) = scan_all(&blob, expected).unwrap();
    assert_eq!((scanned.digest, scanned.diff_id), (sha512, layer.diff_id));
}

#[test]
fn whatever_differs_is_noticed() {
    let other = Digest::of(b"other");
    for compression in ALL {
        let (blob, layer) = write_layer(&large(), compression, 1);
        for (expected, why) in [
            (Expected { digest: Some(&other), ..Expected::default() }, "the layer has the digest"),
            (Expected { diff_id: Some(&other), ..Expected::default() }, "uncompressed"),
            (Expected { size: Some(layer.size - 1), ..Expected::default() }, "more than"),
            (Expected { size: Some(layer.size + 1), ..Expected::default() }, "instead of"),
        ] {
            let error = scan_all(&blob, expected).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(error.kind(), Kind::BadContent);
        }
        let exact = Expected { digest: Some(&layer.digest), ..Expected::default() };
        for at in [0, 5, 11, blob.len() / 3, blob.len() - 5] {
            let mut damaged = blob.clone();
            damaged[at] ^= 0x10;
            assert!(scan_all(&damaged, exact).is_err(), "{compression:?} byte {at}");
            assert!(scan_all(&blob[..at], exact).is_err(), "{compression:?} cut at {at}");
        }
    }
}

#[test]
fn the_callers_error_ends_everything() {
    for compression in ALL {
        let (blob, _) = write_layer(&large(), compression, 1);
        for stop_at in 0..7 {
            let mut seen = 0;
            let error =
                scan(&blob[..], Expected::default(), Limits::default(), &mut |_, content, _| {
                    let _ = content.read(&mut [0; 10]);
                    seen += 1;
                    if seen > stop_at { Err(Error::usage("enough")) } else { Ok(()) }
                });
            assert_eq!(error.unwrap_err().to_string(), "enough");
        }
    }
}

#[test]
fn a_blob_that_fails_to_read_says_why() {
    struct Failing(u64);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::from_raw_os_error(5));
            }
            self.0 -= 1;
            buffer.fill(0);
            Ok(buffer.len().min(1000))
        }
    }
    for reads in [0, 1, 5000] {
        let error = scan(Failing(reads), Expected::default(), Limits::default(), &mut ignore);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("os error 5"), "{text}");
    }
}

#[test]
fn bombs_are_defused() {
    let mut tar = vec![0; 1024];
    tar.resize(100 << 20, 0);
    let limits = Limits { ratio: 100, ratio_from: 64 << 20, ..Limits::default() };
    let gzip = {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&tar).unwrap();
        gzip.finish().unwrap()
    };
    let zstd = zstd::stream::encode_all(&tar[..], 1).unwrap();
    let frames = zstd::bulk::compress(&tar[..4 << 20], 1).unwrap().repeat(25);
    for blob in [gzip, zstd, frames] {
        let error = scan(&blob[..], Expected::default(), limits, &mut ignore).unwrap_err();
        assert!(error.to_string().contains("100 times"), "{error}");
    }
    let small = Limits { size: 1 << 20, ..Limits::default() };
    assert!(scan(&tar[..], Expected::default(), small, &mut ignore).is_err());
    let generous = Limits::default();
    let plain = scan(&tar[..], Expected::default(), generous, &mut ignore).unwrap();
    assert_eq!(plain.size, tar.len() as u64);
}

#[test]
fn entries_match_a_plain_reading() {
    let (tar, _) = write_layer(&files(&[10, 600, 0, 5000]), Compression::None, 1);
    assert!(scan_all(&tar, Expected::default()).unwrap().1 == read_all(&tar));
}

#[test]
fn noise_neither_panics_nor_hangs() {
    bolero::check!().with_iterations(300).for_each(|bytes: &[u8]| {
        for magic in [&b""[..], b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x28\xb5\x2f\xfd"] {
            let blob = [magic, bytes].concat();
            let _ = scan(&blob[..], Expected::default(), Limits::default(), &mut ignore);
        }
    });
}
