//! Malicious archives, and archives damaged by faulty disks.

use super::*;

#[test]
fn what_is_malformed_or_ambiguous_is_refused() {
    let link =
        |flag, target: &str| Raw::new(flag, "a", 0).with(Field::LINK, target.as_bytes()).block();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("..", archive(&[file("a/../../etc/passwd", "")]), "leads outside"),
        ("PAX ..", archive(&[pax(&[("path", "../x")]), file("a", "")]), "leads outside"),
        ("hard link to ..", archive(&[link(b'1', "../x")]), "leads outside"),
        ("hard link to nothing", archive(&[link(b'1', "")]), "link without a target"),
        ("symlink to nothing", archive(&[link(b'2', "")]), "symlink's target"),
        ("PAX symlink with NUL", archive(&[pax(&[("linkpath", "a\0b")]), link(b'2', "x")]), "NUL"),
        ("NUL in a PAX path", archive(&[pax(&[("path", "a\0b")]), file("x", "")]), "NUL"),
        ("NUL in a long name", archive(&[special(b'L', "a\0b\0"), file("x", "")]), "NUL"),
        ("a file without a name", archive(&[file("./.", "")]), "no name"),
        (
            "wrong checksum",
            {
                let mut tar = archive(&[file("a", ""), file("b", "")]);
                tar[512] = b'c';
                tar
            },
            "checksum",
        ),
        (
            "wrong checksum of the first header",
            {
                let mut tar = archive(&[file("a", "")]);
                tar[0] = b'b';
                tar
            },
            "not a tar archive",
        ),
        ("not a tar", vec![b'x'; 1024], "not a tar archive"),
        ("zeros in the middle", [vec![0; 512], file("a", "")].concat(), "zeros"),
        ("header cut off", file("a", "")[..511].to_vec(), "truncated"),
        (
            "content cut off",
            file("a", &"x".repeat(600))[..1000].to_vec(),
            "ends in the middle of `/a`",
        ),
        ("padding of PAX cut off", pax(&[("path", "a")])[..BLOCK + 100].to_vec(), "truncated"),
        ("PAX cut off", pax(&[("path", "a")])[..515].to_vec(), "truncated"),
        ("PAX for nothing", archive(&[pax(&[("path", "a")])]), "was announced"),
        ("long name for nothing", archive(&[special(b'L', "a\0")]), "was announced"),
        ("two PAX headers", archive(&[pax(&[]), pax(&[]), file("a", "")]), "two PAX"),
        (
            "two long names",
            archive(&[special(b'L', "a"), special(b'L', "b"), file("a", "")]),
            "two GNU",
        ),
        ("malformed PAX", archive(&[special(b'x', "5 a=b\n"), file("a", "")]), "malformed PAX"),
        (
            "PAX with padding inside",
            archive(&[special(b'x', "6 a=b\n\0\0"), file("a", "")]),
            "malformed PAX",
        ),
        ("malformed PAX size", archive(&[pax(&[("size", "-1")]), file("a", "")]), "PAX size"),
        ("PAX size with blanks", archive(&[pax(&[("size", " 1")]), file("a", "x")]), "PAX size"),
        (
            "PAX size beyond numbers",
            archive(&[pax(&[("size", "99999999999999999999")]), file("a", "")]),
            "PAX size",
        ),
        (
            "huge PAX size",
            archive(&[pax(&[("size", "9223372036854775807")]), file("a", "")]),
            "ends in the middle",
        ),
        (
            "global path",
            archive(&[special(b'g', records(&[("path", "x")])), file("a", "")]),
            "global",
        ),
        (
            "global size",
            archive(&[special(b'g', records(&[("size", "1")])), file("a", "")]),
            "global",
        ),
        ("global in between", archive(&[pax(&[]), special(b'g', ""), file("a", "")]), "global"),
        ("malformed mtime", archive(&[pax(&[("mtime", "1e9")]), file("a", "")]), "mtime"),
        ("owner too large", archive(&[pax(&[("uid", "4294967296")]), file("a", "")]), "owner"),
        (
            "owner that means none",
            archive(&[pax(&[("gid", "4294967295")]), file("a", "")]),
            "owner",
        ),
        (
            "negative owner",
            archive(&[Raw::new(b'0', "a", 0).with(Field::UID, &[0xff; 8]).block()]),
            "owner is negative",
        ),
        (
            "negative size",
            archive(&[Raw::new(b'0', "a", 0).with(Field::SIZE, &[0xff; 12]).block()]),
            "size is negative",
        ),
        (
            "size that is no number",
            archive(&[Raw::new(b'0', "a", 0).with(Field::SIZE, b"12345678x").block()]),
            "malformed number",
        ),
        ("continued file", archive(&[Raw::new(b'M', "a", 0).block()]), "type `M`"),
        (
            "name of 256 bytes",
            archive(&[pax(&[("path", &"n".repeat(256))]), file("a", "")]),
            "component",
        ),
        (
            "a record of libarchive's limit",
            archive(&[pax(&[("comment", &"x".repeat(1_000_000)), ("path", "p")]), file("a", "")]),
            "malformed PAX",
        ),
        (
            "xattr without a name",
            archive(&[pax(&[("SCHILY.xattr.", "x")]), file("a", "")]),
            "no name",
        ),
    ];
    for (name, tar, why) in cases {
        match listing(&tar) {
            Ok(found) => panic!("{name}: accepted as {found:?}"),
            Err(error) => {
                assert!(error.to_string().contains(why), "{name}: {error}");
                assert_eq!(error.kind(), Kind::BadContent, "{name}");
            }
        }
    }
}

#[test]
fn limits_are_kept() {
    let deep = pax(&[("path", &"d/".repeat(20))]);
    let entries = archive(&[file("a", ""), file("b", ""), file("c", "")]);
    let cases: &[(&str, Vec<u8>, Limits)] = &[
        ("entries", entries, Limits { entries: 2, ..Limits::default() }),
        (
            "size",
            archive(&[file("a", &"x".repeat(5000))]),
            Limits { size: 4096, ..Limits::default() },
        ),
        ("path", archive(&[file("abcdef", "")]), Limits { path: 5, ..Limits::default() }),
        (
            "deeper",
            archive(&[deep, Raw::new(b'5', "a", 0).block()]),
            Limits { depth: 19, ..Limits::default() },
        ),
        (
            "extended",
            archive(&[pax(&[("a", &"x".repeat(100))]), file("a", "")]),
            Limits { pax: 99, ..Limits::default() },
        ),
    ];
    for (name, tar, limits) in cases {
        assert!(read(tar).is_ok(), "{name}");
        let error = read_with(tar, *limits).unwrap_err().to_string();
        assert!(error.contains("limit") || error.contains("more than"), "{name}: {error}");
    }
}

#[test]
fn sparse_files_that_lie_are_refused() {
    let gnu = |pairs: &[(u64, u64)], real: u64, content: &str| {
        let mut raw = Raw::new(b'S', "s", content.len() as u64).with(Field::MAGIC, b"ustar  \0");
        for (index, (offset, length)) in pairs.iter().enumerate() {
            raw = raw.octal(Field::new(386 + 24 * index, 12), *offset);
            raw = raw.octal(Field::new(398 + 24 * index, 12), *length);
        }
        raw.octal(Field::GNU_REAL_SIZE, real).and(content)
    };
    let v1 = |real: &str, content: &str| {
        let map = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", "s"),
            ("GNU.sparse.realsize", real),
        ];
        [pax(&map), file("GNUSparseFile.0/s", content)].concat()
    };
    let map = |text: &str| String::from_utf8(padded(text)).unwrap();
    let v01 = |list: &str, size: &str, content: &str| {
        let count = list.split(',').count().div_ceil(2).to_string();
        let records = [
            ("GNU.sparse.size", size),
            ("GNU.sparse.numblocks", &count),
            ("GNU.sparse.name", "s"),
            ("GNU.sparse.map", list),
        ];
        [pax(&records), file("made-up", content)].concat()
    };
    for (name, tar, expected) in [
        ("old", gnu(&[(1, 2), (5, 1)], 7, "abc"), "s=\\x00ab\\x00\\x00c\\x00"),
        ("only a hole", gnu(&[(4, 0)], 4, ""), "s=\\x00\\x00\\x00\\x00"),
        ("0.1", v01("1,1", "3", "a"), "s=\\x00a\\x00"),
        (
            "0.0",
            [
                pax(&[
                    ("GNU.sparse.size", "2"),
                    ("GNU.sparse.numblocks", "1"),
                    ("GNU.sparse.offset", "0"),
                    ("GNU.sparse.numbytes", "1"),
                ]),
                file("s", "a"),
            ]
            .concat(),
            "s=a\\x00",
        ),
        ("1.0", v1("3", &(map("1\n1\n2\n") + "ab")), "s=\\x00ab"),
    ] {
        let tar = archive(&[tar, file("next", "")]);
        assert_eq!(listing(&tar).unwrap(), format!("{expected} next="), "{name}");
    }
    for (name, tar) in [
        ("overlap", gnu(&[(0, 2), (1, 2)], 9, "abcd")),
        ("backwards", gnu(&[(5, 1), (0, 1)], 9, "ab")),
        ("outside", gnu(&[(8, 2)], 9, "ab")),
        ("overflow", v01("18446744073709551615,2", "3", "ab")),
        ("less content", gnu(&[(0, 3)], 9, "ab")),
        ("more content", gnu(&[(0, 1)], 9, "ab")),
        ("no size", [pax(&[("GNU.sparse.map", "0,1")]), file("s", "a")].concat()),
        ("odd map", v01("0,1,2", "3", "a")),
        ("no numbers", v01("0,x", "3", "a")),
        (
            "not as many",
            [
                pax(&[
                    ("GNU.sparse.size", "2"),
                    ("GNU.sparse.numblocks", "2"),
                    ("GNU.sparse.map", "0,1"),
                ]),
                file("s", "a"),
            ]
            .concat(),
        ),
        (
            "out of order",
            [pax(&[("GNU.sparse.size", "2"), ("GNU.sparse.numbytes", "1")]), file("s", "a")]
                .concat(),
        ),
        (
            "a sparse directory",
            [
                pax(&[("GNU.sparse.map", "0,0"), ("GNU.sparse.size", "1")]),
                Raw::new(b'5', "s", 0).block(),
            ]
            .concat(),
        ),
        ("a map beyond its content", v1("3", "1\n1\n")),
        ("a map without end", v1("3", &map("9\n1\n"))),
        ("a map too long", v1("3", &map("99999999\n"))),
        (
            "an unknown version",
            [
                pax(&[
                    ("GNU.sparse.major", "2"),
                    ("GNU.sparse.minor", "0"),
                    ("GNU.sparse.size", "1"),
                ]),
                file("s", ""),
            ]
            .concat(),
        ),
        ("a bomb of holes", gnu(&[(0, 0)], 1 << 32, "")),
    ] {
        assert!(listing(&archive(&[tar])).is_err(), "{name}");
    }
}

/// Half of the inputs get correct checksums; otherwise none would pass the first header.
#[test]
fn noise_never_panics() {
    bolero::check!().with_type::<(bool, Vec<u8>)>().with_iterations(3000).for_each(
        |(mend, bytes)| {
            let mut tar = bytes.clone();
            if *mend {
                tar.resize(tar.len().next_multiple_of(BLOCK), 0);
                for chunk in tar.chunks_exact_mut(BLOCK) {
                    chunk.copy_from_slice(&with_checksum(chunk));
                }
            }
            let limits = Limits { size: 1 << 20, ..Limits::default() };
            let mut reader = TarReader::new(&tar[..], limits, Names::Layer);
            let mut buffer = vec![0; 4096];
            while let Ok(Some(_)) = reader.next_entry() {
                let _ = reader.read(&mut buffer);
            }
        },
    );
}

#[test]
fn attributes_cannot_fill_the_memory() {
    let hostile = [pax(&[("SCHILY.xattr.user.a", &"x".repeat(1 << 19))]), file("a", "")].concat();
    let tar = hostile.repeat(140);
    let mut reader = TarReader::new(&tar[..], Limits::default(), Names::Layer);
    let outcome = (0..140).try_for_each(|_| reader.next_entry().map(drop));
    assert!(outcome.unwrap_err().to_string().contains("too large in total"));
}

/// What the readers of tests/runner/unpacking take for different files, one by one.
#[test]
fn what_readers_disagree_about_is_refused_with_its_name() {
    let old = |raw: Raw| raw.with(Field::MAGIC, &[0; 8]);
    let gnu = |raw: Raw| raw.with(Field::MAGIC, b"ustar  \0");
    let long = |flag, name: &str| special(flag, format!("{name}\0"));
    let regular = |name: &str| Raw::new(b'0', name, 0);
    let sized = |flag: u8, name: &str| {
        let raw = Raw::new(flag, name, 512).with(Field::LINK, b"f");
        [raw.block(), file("inner", "")].concat()
    };
    let mut cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![long(b'L', "go"), pax(&[("path", "img")]), file("h", "")], "`go` and `img`"),
        (vec![pax(&[("path", "img")]), long(b'L', "go"), file("h", "")], "`go` and `img`"),
        (
            vec![
                long(b'K', "go"),
                pax(&[("linkpath", "img")]),
                Raw::new(b'2', "l", 0).with(Field::LINK, b"x").block(),
            ],
            "`go` and `img`",
        ),
        (vec![gnu(regular("f")).with(Field::PREFIX, b"usr/bin").block()], "`f`"),
        (vec![gnu(regular("f")).with(Field::PREFIX, b"00000000001\0").block()], "`f`"),
        (vec![old(regular("f")).with(Field::PREFIX, b"usr/bin").block()], "`f`"),
        (vec![regular("f").with(Field::MAGIC, b"ustar 00").block()], "format is unknown"),
        (vec![regular("f").with(Field::MAGIC, b"ustarxyz").block()], "format is unknown"),
        (vec![old(Raw::new(b'3', "dev", 0)).block()], "`dev`"),
        (
            vec![
                regular("f")
                    .with(Field::PREFIX, &[b'p'; 155])
                    .with(Field::STAR_TRAILER, b"tar\0")
                    .block(),
            ],
            "prefix has no end",
        ),
        (vec![sized(0, "d/")], "`d/`"),
        (vec![file("d/", "content")], "`d/`"),
        (vec![pax(&[("path", "d/")]), Raw::new(0, "d", 0).block()], "`d/`"),
        (vec![long(b'L', "d"), Raw::new(0, "d/", 0).block()], "`d`"),
        (vec![Raw::new(b'S', "s", 0).block()], "type `S`"),
        (vec![pax(&[("size", "")]), file("f", "")], "`size`"),
        (vec![pax(&[("path", "")]), file("f", "")], "`path`"),
        (vec![pax(&[("path", "a"), ("path", "b")]), file("f", "")], "twice"),
        (vec![pax(&[("SCHILY.realsize", "9")]), file("f", "")], "`SCHILY.realsize`"),
        (vec![pax(&[("SUN.holesdata", " 0 1")]), file("f", "")], "`SUN.holesdata`"),
        (vec![pax(&[("hdrcharset", "UTF-16")]), file("f", "")], "`hdrcharset`"),
        (vec![special(b'g', records(&[("uid", "1")])), file("f", "")], "global"),
        (vec![special(b'g', records(&[("GNU.sparse.name", "x")])), file("f", "")], "global"),
        (vec![special(b'g', records(&[("mtime", "5")])), file("f", "")], "global"),
        (vec![pax(&[("SCHILY.xattr.system.posix_acl_access", "x")]), file("f", "")], "`f`"),
        (vec![pax(&[("SCHILY.xattr.system.posix_acl_default", "x")]), file("f", "")], "`f`"),
        (vec![special(b'L', "\0"), file("f", "")], "long name is empty"),
        (
            vec![
                pax(&[
                    ("comment", "\n26 GNU.sparse.offset=0000\n"),
                    ("GNU.sparse.size", "0"),
                    ("GNU.sparse.numblocks", "0"),
                ]),
                file("f", ""),
            ],
            "name of another inside",
        ),
        (
            vec![
                pax(&[
                    ("path", "p"),
                    ("GNU.sparse.name", "s"),
                    ("GNU.sparse.major", "1"),
                    ("GNU.sparse.minor", "0"),
                    ("GNU.sparse.realsize", "0"),
                ]),
                Raw::new(b'0', "h", 512).and("0\n"),
            ],
            "`p` and `s`",
        ),
    ];
    cases.extend(b"123456".iter().map(|flag| (vec![sized(*flag, "odd")], "`odd`")));
    let others = (1_u8..=255).filter(|flag| !b"0123456xgLK".contains(flag));
    cases.extend(others.map(|flag| (vec![Raw::new(flag, "odd", 0).block()], "`odd`")));
    for (parts, why) in cases {
        for names in [Names::Plain, Names::Archive, Names::Layer] {
            let tar = archive(&[file("before", ""), parts.concat()]);
            let error = read_names(&tar, Limits::default(), names).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}

#[test]
fn only_zeros_and_a_list_may_follow_the_end_of_a_layer() {
    use crate::plain_list::RunWriter;
    let tar = archive(&[file("a", &"x".repeat(200_000))]);
    let list = |runs: &[u64]| {
        let mut writer = RunWriter::default();
        runs.iter().for_each(|length| writer.content(*length, &[1; 32]));
        writer.finish(tar.len() as u64)
    };
    let size = tar.len() as u64;
    let good = list(&[4096, size - 4096]);
    assert!(!good.is_empty());
    let mut hidden = list(&[4096; 40]);
    hidden.splice(..BLOCK, Raw::new(b'0', "hidden", 0).block());
    let layer =
        |rest: &[u8]| read_names(&[&tar, rest].concat(), Limits::default(), Names::Layer).map(drop);
    for good in [&b""[..], &[0; 1], &[0; 9 * BLOCK + 3], &good] {
        layer(good).unwrap();
    }
    for bad in [
        &b"junk"[..],
        &archive(&[file("b", "")]),
        &[&[0; 4096], &b"x"[..]].concat(),
        &list(&[4096]),
        &list(&[size + 1]),
        &[&good, &[0; BLOCK][..]].concat(),
        &[&[0; BLOCK], &good[..]].concat(),
        &good[..good.len() - 1],
        &hidden,
    ] {
        let error = layer(bad).unwrap_err().to_string();
        assert!(error.contains("follow the end"), "{error}");
    }
}
