//! PAX extended header records: `LENGTH KEY=VALUE\n` (POSIX.1-2017 pax, "pax Extended Header").
//!
//! Keys and values are bytes. Must not depend on headers or entries.

use std::collections::BTreeMap;

use crate::Mtime;
use imgctl_base::error::{Error, Result};

/// Records by key; sorted, so the output is deterministic.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) const PATH: &[u8] = b"path";
pub(super) const LINKPATH: &[u8] = b"linkpath";
pub(super) const SIZE: &[u8] = b"size";
pub(super) const UID: &[u8] = b"uid";
pub(super) const GID: &[u8] = b"gid";
pub(super) const MTIME: &[u8] = b"mtime";
/// The encoding of names.
pub(super) const CHARSET: &[u8] = b"hdrcharset";
/// Prefix of extended attributes, introduced by star and used by all tools.
pub(super) const XATTR: &[u8] = b"SCHILY.xattr.";
/// GNU tar's prefix for everything about sparse files.
pub(super) const SPARSE: &[u8] = b"GNU.sparse.";

/// Maximum length of a record, in bytes: libarchive ignores longer ones and what follows them.
const MAX_RECORD: usize = 999_999;

/// Adds a name, and declares its encoding if it is not the UTF-8 that PAX expects.
pub(super) fn insert_text(records: &mut Records, key: &[u8], text: Vec<u8>) {
    if std::str::from_utf8(&text).is_err() {
        records.insert(CHARSET.to_vec(), b"BINARY".to_vec());
    }
    records.insert(key.to_vec(), text);
}

/// Returns the body of a PAX header.
pub(super) fn serialize(records: &Records) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        // The length includes its own digits.
        let rest = 1 + key.len() + 1 + value.len() + 1;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        body.extend_from_slice(length.to_string().as_bytes());
        body.push(b' ');
        body.extend_from_slice(key);
        body.push(b'=');
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    body
}

/// Parses the records of a PAX header, in order and including repetitions. Fails on anything
/// malformed: a reader that skips it would see a different archive than other readers.
pub(super) fn parse(mut body: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let malformed = || {
            let start = &body[..body.len().min(40)];
            Error::bad_content(format!("malformed PAX record at `{}`", start.escape_ascii()))
        };
        let digits = body.iter().take_while(|b| b.is_ascii_digit()).count();
        let length = decimal(&body[..digits]).ok_or_else(malformed)?;
        let length = usize::try_from(length).map_err(|_| malformed())?;
        if length > body.len() || length > MAX_RECORD {
            return Err(malformed());
        }
        let (record, rest) = body.split_at(length);
        let record = record
            .get(digits..)
            .and_then(|record| record.strip_prefix(b" "))
            .and_then(|record| record.strip_suffix(b"\n"))
            .ok_or_else(malformed)?;
        let equals = record.iter().position(|b| *b == b'=');
        let equals = equals.filter(|at| *at > 0).ok_or_else(malformed)?;
        let key = &record[..equals];
        if key.contains(&0) {
            return Err(malformed());
        }
        records.push((key, &record[equals + 1..]));
        body = rest;
    }
    Ok(records)
}

/// Parses an unsigned decimal number without anything around it.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Formats a time as PAX does: seconds, a point, and no more digits than needed.
pub(super) fn format_time(time: Mtime) -> Vec<u8> {
    // The fraction counts away from zero: half a second before 1970 is "-0.5".
    let (sign, seconds, nanoseconds) = match (time.seconds, time.nanoseconds) {
        (0.., nanoseconds) => ("", time.seconds.unsigned_abs(), nanoseconds),
        (_, 0) => ("-", time.seconds.unsigned_abs(), 0),
        (_, nanoseconds) => {
            ("-", time.seconds.unsigned_abs() - 1, 1_000_000_000_u32.saturating_sub(nanoseconds))
        }
    };
    if nanoseconds == 0 {
        return format!("{sign}{seconds}").into_bytes();
    }
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').as_bytes().to_vec()
}

/// Parses a time; digits beyond nanoseconds are dropped, rounding towards the past.
pub(super) fn parse_time(text: &[u8]) -> Option<Mtime> {
    let (negative, unsigned) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let point = unsigned.iter().position(|b| *b == b'.');
    let (whole, fraction) = unsigned.split_at(point.unwrap_or(unsigned.len()));
    let fraction = fraction.strip_prefix(b".").unwrap_or_default();
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut nanoseconds = 0;
    for index in 0..9 {
        let digit = fraction.get(index).map_or(0, |byte| byte - b'0');
        nanoseconds = nanoseconds * 10 + u32::from(digit);
    }
    if !negative {
        return Some(Mtime { seconds, nanoseconds });
    }
    let beyond = fraction.iter().skip(9).any(|byte| *byte != b'0');
    let nanoseconds = nanoseconds + u32::from(beyond);
    Some(match nanoseconds {
        0 => Mtime { seconds: -seconds, nanoseconds: 0 },
        _ => {
            Mtime { seconds: (-seconds).checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_round_trip() {
        let mut records = Records::new();
        for length in (0..120).chain([980, 985, 990, 995, 9_980, 9_990]) {
            let key = format!("k{length}").into_bytes();
            records.insert(key, vec![b'\n'; length]);
        }
        insert_text(&mut records, PATH, b"\xff=\0".to_vec());
        let body = serialize(&records);
        let parsed: Records = parse(&body)
            .unwrap()
            .into_iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect();
        assert_eq!(parsed, records);
        assert_eq!(records[&b"hdrcharset"[..]], b"BINARY");
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in [
            &b"7 a=b\n"[..],
            b"5 a=b\n",
            b"6 a=b",
            b"6 a=b\n\0",
            b"6 a=b\n\n",
            b"6a=b\n",
            b" 6 a=b\n",
            b"+6 a=b\n",
            b"5 =b\n",
            b"5 ab\n",
            b"8 a\0b=c\n",
            b"0 a=b\n",
            b"1 a=b\n",
            b"99999999999999999999 a=b\n",
            b"18446744073709551615 a=b\n",
            b"a=b\n",
        ] {
            assert!(parse(bad).is_err(), "{}", bad.escape_ascii());
        }
        assert_eq!(parse(b"6 a=b\n").unwrap(), [(&b"a"[..], &b"b"[..])]);
        assert_eq!(parse(b"5 a=\n").unwrap(), [(&b"a"[..], &b""[..])]);
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn times_on_both_sides_of_1970() {
        for (text, seconds, nanoseconds) in [
            ("0", 0, 0),
            ("12", 12, 0),
            ("12.5", 12, 500_000_000),
            ("12.000000001", 12, 1),
            ("-3", -3, 0),
            ("-0.5", -1, 500_000_000),
            ("-3.25", -4, 750_000_000),
            ("9223372036854775807", i64::MAX, 0),
        ] {
            let time = Mtime { seconds, nanoseconds };
            assert_eq!(parse_time(text.as_bytes()), Some(time), "{text}");
            assert_eq!(format_time(time), text.as_bytes());
        }
        for (text, seconds, nanoseconds) in [
            ("1.", 1, 0),
            ("1.0000000019", 1, 1),
            ("-1.0000000011", -2, 999_999_998),
            ("-0.9999999999", -1, 0),
        ] {
            let time = Mtime { seconds, nanoseconds };
            assert_eq!(parse_time(text.as_bytes()), Some(time), "{text}");
        }
        for bad in ["", "-", ".5", "1.x", "1e3", "+1", " 1", "1,5", "9223372036854775808"] {
            assert_eq!(parse_time(bad.as_bytes()), None, "{bad}");
        }
    }
}
