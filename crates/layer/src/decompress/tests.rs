//! Real-world streams and damaged ones.

use std::io::Write;

use super::*;

const TEXT: &[u8] = b"the quick brown fox jumps over the lazy dog; ";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

/// `xz -0` of the word "word".
const XZ: &[u8] =
    b"\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x0c\x00\x00\x00\
    \x8f\x98\x41\x9c\x01\x00\x03\x77\x6f\x72\x64\x00\xce\xab\x13\xac\x05\xdc\xc4\xe1\
    \x00\x01\x1c\x04\x6f\x2c\x9c\xc1\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a";

fn all(blob: &[u8]) -> io::Result<(Format, Vec<u8>)> {
    // Returns one byte at a time: no decoder may depend on how its input is split.
    struct Slow<'a>(&'a [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }
    let mut bytes = Vec::new();
    let (format, mut reader) = decompress(Slow(blob)).map_err(io::Error::other)?;
    reader.read_to_end(&mut bytes)?;
    Ok((format, bytes))
}

#[test]
fn every_format_is_recognised_and_read_to_the_end() {
    let twice = TEXT.repeat(2);
    let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let cases: &[(&str, Format, Vec<u8>, &[u8])] = &[
        ("plain", Format::Plain, TEXT.to_vec(), TEXT),
        ("nothing", Format::Plain, Vec::new(), b""),
        ("short", Format::Plain, b"BZ".to_vec(), b"BZ"),
        ("gzip", Format::Gzip, gzip(TEXT), TEXT),
        ("empty gzip", Format::Gzip, gzip(b""), b""),
        ("gzip members", Format::Gzip, [gzip(TEXT), gzip(b""), gzip(TEXT)].concat(), &twice),
        ("gzip and zeros", Format::Gzip, [gzip(TEXT), vec![0; 700]].concat(), TEXT),
        ("gzip and junk", Format::Gzip, [gzip(TEXT), b"junk".to_vec()].concat(), TEXT),
        ("zstd", Format::Zstd, zstd(TEXT), TEXT),
        ("zstd frames", Format::Zstd, [zstd(TEXT), zstd(b""), zstd(TEXT)].concat(), &twice),
        (
            "zstd with skippable frames",
            Format::Zstd,
            [skippable.clone(), zstd(TEXT), skippable.clone(), zstd(TEXT), skippable].concat(),
            &twice,
        ),
        ("bzip2", Format::Bzip2, [bzip2(TEXT), bzip2(TEXT)].concat(), &twice),
        ("xz", Format::Xz, [XZ, XZ].concat(), b"wordword"),
    ];
    for (name, format, blob, expected) in cases {
        let (found, bytes) = all(blob).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found, *format, "{name}");
        assert!(bytes == *expected, "{name}");
    }
}

#[test]
fn truncated_streams_are_errors() {
    for (name, blob) in
        [("gzip", gzip(TEXT)), ("zstd", zstd(TEXT)), ("bzip2", bzip2(TEXT)), ("xz", XZ.to_vec())]
    {
        for length in SNIFF..blob.len() {
            assert!(all(&blob[..length]).is_err(), "{name} cut at {length}");
        }
    }
}

#[test]
fn bombs_are_defused() {
    let zeros = vec![0; 80 << 20];
    let within = |blob: &[u8], limits| {
        let (_, mut reader) = decompress_within(blob, limits).unwrap();
        io::copy(&mut reader, &mut io::sink())
    };
    let blob = zstd(&zeros);
    let ratio = |ratio| Limits { ratio, ratio_from: 64 << 20, ..Limits::default() };
    assert!(within(&blob, ratio(1000)).is_err());
    assert_eq!(within(&blob, ratio(1_000_000)).unwrap(), 80 << 20);
    assert_eq!(within(&zeros, ratio(1)).unwrap(), 80 << 20);
    let small = Limits { size: 1 << 20, ..Limits::default() };
    assert!(within(&zeros, small).is_err());
}

#[test]
fn a_frame_that_wants_too_much_memory_is_refused() {
    // Window descriptor: two to the power of 10 + 31.
    let hostile = [0x28, 0xb5, 0x2f, 0xfd, 0, 31 << 3, 1, 0, 0];
    assert!(all(&hostile).is_err());
}

#[test]
fn noise_never_panics() {
    bolero::check!().with_iterations(2000).for_each(|bytes: &[u8]| {
        for magic in
            [&b""[..], b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\0"]
        {
            let blob = [magic, bytes].concat();
            if let Ok((_, reader)) = decompress(&blob[..]) {
                let _ = io::copy(&mut reader.take(1 << 20), &mut io::sink());
            }
        }
    });
}

#[test]
fn an_archive_that_is_a_frame_of_zstd_is_refused() {
    // A name that is the magic number and length of a skippable frame, in a header of tar(1).
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..8].copy_from_slice(b"\x50\x2a\x4d\x18\xf8\x01\0\0");
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    let blob = [&header.as_bytes()[..], &zstd(TEXT)].concat();
    let error = all(&blob).unwrap_err().to_string();
    assert!(error.contains("as a tar archive and as a frame"), "{error}");
    // The frame alone, without a valid header.
    let mut frame = blob.clone();
    frame[200] ^= 1;
    assert_eq!(all(&frame).unwrap(), (Format::Zstd, TEXT.to_vec()));
}
