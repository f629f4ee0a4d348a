//! What readers in the field read differently: Go's archive/tar, libarchive, GNU tar and Python's
//! tarfile take some archives for different files. Such an entry is refused, so that what is listed
//! here is what any of them unpacks (tests/runner/unpacking compares them).
//!
//! Must not depend on the stream, or on what callers do with entries.

use super::stream::refuse;
use crate::pax;
use crate::tar_header::{self as header, BLOCK, Field};
use imgctl_base::error::{Error, Result};

/// The formats in which all readers find the same fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Old,
    Ustar,
    Star,
    Gnu,
}

fn format(block: &[u8; BLOCK]) -> Result<Format> {
    match header::get(block, Field::MAGIC) {
        [b'u', b's', b't', b'a', b'r', 0, ..] => {
            let is_star = header::get(block, Field::STAR_TRAILER) == b"tar\0";
            Ok(if is_star { Format::Star } else { Format::Ustar })
        }
        b"ustar  \0" => Ok(Format::Gnu),
        [b'u', b's', b't', b'a', b'r', ..] => Err(refuse("its format is unknown")),
        _ => Ok(Format::Old),
    }
}

/// Returns the first half of the header's name, if the format has one.
pub(super) fn prefix(block: &[u8; BLOCK]) -> &[u8] {
    if header::get(block, Field::MAGIC).starts_with(b"ustar\0") {
        header::text(block, Field::PREFIX)
    } else {
        b""
    }
}

/// Refuses types and fields that readers take for different things.
pub(super) fn check_header(block: &[u8; BLOCK]) -> Result<()> {
    let flag = block[Field::TYPE];
    let prefix = header::get(block, Field::PREFIX);
    match (format(block)?, flag) {
        (_, 0 | b'0'..=b'6') => {}
        (Format::Gnu, b'S') => return check_gnu_times(block),
        _ => {
            let shown = char::from(flag).escape_default();
            return Err(refuse(format!("readers disagree about entries of the type `{shown}`")));
        }
    }
    match format(block)? {
        // Python's tarfile takes it for one in any format, Go if it is not a time.
        Format::Gnu | Format::Old if prefix[0] != 0 => {
            Err(refuse("there is text in the place of a prefix, which its format does not have"))
        }
        Format::Old if matches!(flag, b'3' | b'4') => {
            Err(refuse("its format has no numbers of devices"))
        }
        // Others read on in the times that follow.
        Format::Star if header::text(block, Field::PREFIX).len() >= Field::STAR_PREFIX.len() => {
            Err(refuse("its prefix has no end"))
        }
        _ => Ok(()),
    }
}

/// Go takes times that are no numbers for a prefix.
fn check_gnu_times(block: &[u8; BLOCK]) -> Result<()> {
    for field in [Field::GNU_ATIME, Field::GNU_CTIME] {
        let field = header::get(block, field);
        if field[0] != 0 {
            header::number(field)?;
        }
    }
    Ok(())
}

/// Returns whether a slash at the end of the name makes a directory of the entry, as in archives
/// older than POSIX. `name` is the whole name, wherever it comes from.
pub(super) fn is_old_directory(block: &[u8; BLOCK], name: &[u8]) -> Result<bool> {
    let ends = name.ends_with(b"/");
    match block[Field::TYPE] {
        // Python's tarfile looks at the header's own name only.
        0 if header::text(block, Field::NAME).ends_with(b"/") == ends => Ok(ends),
        0 => Err(refuse("only one of its names ends with a slash, which makes a directory")),
        b'0' | b'S' if ends => Err(refuse("it is a file whose name ends with a slash")),
        _ => Ok(false),
    }
}

/// Records of PAX headers that give a file another size, content or number to some readers only.
const FOREIGN: [&[u8]; 4] =
    [b"SCHILY.realsize", b"SCHILY.devmajor", b"SCHILY.devminor", b"SUN.holesdata"];

/// Encodings of names that all readers know.
const CHARSETS: [&[u8]; 2] = [b"BINARY", b"ISO-IR 10646 2000 UTF-8"];

/// Checks a record of an entry's own PAX header.
pub(super) fn check_record(key: &[u8], value: &[u8]) -> Result<()> {
    let is_ours =
        matches!(key, pax::PATH | pax::LINKPATH | pax::SIZE | pax::UID | pax::GID | pax::MTIME);
    if is_ours && value.is_empty() {
        return Err(record(key, "has no value"));
    }
    if FOREIGN.contains(&key) {
        return Err(record(key, "is one that readers disagree about"));
    }
    if key == pax::CHARSET && !CHARSETS.contains(&value) {
        return Err(record(key, "names an unknown encoding"));
    }
    Ok(())
}

/// Checks a record of a header for all following entries: some readers apply it, others (Go's) do
/// not.
pub(super) fn check_global(key: &[u8]) -> Result<()> {
    let families: [&[u8]; 5] = [b"GNU.", b"SCHILY.", b"SUN.", b"LIBARCHIVE.", b"RHT."];
    let is_ambiguous = families.iter().any(|family| key.starts_with(family))
        || [pax::PATH, pax::LINKPATH, pax::SIZE, pax::UID, pax::GID, pax::MTIME].contains(&key)
        || [pax::CHARSET, b"charset", b"uname", b"gname"].contains(&key);
    if is_ambiguous {
        Err(refuse(format!("a global header sets `{}` for all entries", key.escape_ascii())))
    } else {
        Ok(())
    }
}

fn record(key: &[u8], how: &str) -> Error {
    refuse(format!("the PAX record `{}` {how}", key.escape_ascii()))
}
