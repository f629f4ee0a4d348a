//! Tar headers as a function of the entry alone: ustar, with PAX records for everything that ustar
//! cannot express (POSIX.1-2017 pax, "pax Interchange Format"). Never uses GNU extensions or
//! base-256.
//!
//! Handles framing only; the writer handles content, padding and threads.

use crate::layer::pax::{self, Records};
use crate::layer::tar_header::{self as header, BLOCK, Field, TypeFlag};
use crate::layer::{Entry, EntryKind, Mtime};
use imgctl_base::error::{Error, Result};

/// The end of an archive: two blocks of zeros. Additional blocks would only be padding for tapes.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// The name of every PAX header: readers ignore it, and it must not vary.
const PAX_NAME: &[u8] = b"././@PaxHeader";

/// Returns the number of zero bytes that follow `size` bytes of content.
pub fn padding(size: u64) -> usize {
    let over = (size % BLOCK as u64) as usize;
    (BLOCK - over) % BLOCK
}

/// Appends the header of `entry`, preceded by a PAX header if one is needed. Fails on an entry that
/// tar cannot express (a device number that is too large, a `=` in an attribute's name).
pub fn append_header(entry: &Entry, output: &mut Vec<u8>) -> Result<()> {
    let mut records = Records::new();
    let main = main_header(entry, &mut records)?;
    for (name, value) in &entry.xattrs {
        if name.is_empty() || name.contains(&b'=') || name.contains(&0) {
            return Err(Error::failed(format!(
                "`{}` has an extended attribute `{}`, whose name cannot be stored in a layer",
                entry.path,
                String::from_utf8_lossy(name)
            )));
        }
        records.insert([pax::XATTR, name].concat(), value.clone());
    }
    if !records.is_empty() {
        let body = pax::serialize(&records);
        let mut extended = [0; BLOCK];
        header::put(&mut extended, Field::NAME, PAX_NAME);
        put_number(&mut extended, Field::MODE, 0o644);
        put_number(&mut extended, Field::UID, 0);
        put_number(&mut extended, Field::GID, 0);
        put_number(&mut extended, Field::SIZE, body.len() as u64);
        put_number(&mut extended, Field::MTIME, 0);
        finish(&mut extended, TypeFlag::Pax);
        output.extend_from_slice(&extended);
        let padding = padding(body.len() as u64);
        output.extend_from_slice(&body);
        output.resize(output.len() + padding, 0);
    }
    output.extend_from_slice(&main);
    Ok(())
}

fn main_header(entry: &Entry, records: &mut Records) -> Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    put_path(&mut block, entry, records);
    put_number(&mut block, Field::MODE, u64::from(entry.mode & 0o7777));
    for (field, key, id) in [(Field::UID, pax::UID, entry.uid), (Field::GID, pax::GID, entry.gid)] {
        put_or_record(&mut block, field, key, u64::from(id), records);
    }
    put_or_record(&mut block, Field::SIZE, pax::SIZE, entry.size(), records);
    put_mtime(&mut block, entry.mtime, records);
    let flag = match &entry.kind {
        EntryKind::File { .. } => TypeFlag::Regular,
        EntryKind::Directory => TypeFlag::Directory,
        EntryKind::Fifo => TypeFlag::Fifo,
        EntryKind::Symlink { target } => {
            if target.is_empty() || target.contains(&0) {
                return Err(Error::failed(format!(
                    "the symlink `{}` has a target that cannot be stored in a layer",
                    entry.path
                )));
            }
            put_link(&mut block, target, records);
            TypeFlag::Symlink
        }
        EntryKind::HardLink { target } => {
            put_link(&mut block, target.as_bytes(), records);
            TypeFlag::HardLink
        }
        EntryKind::CharDevice { major, minor } => {
            put_device(&mut block, entry, *major, *minor)?;
            TypeFlag::CharDevice
        }
        EntryKind::BlockDevice { major, minor } => {
            put_device(&mut block, entry, *major, *minor)?;
            TypeFlag::BlockDevice
        }
    };
    finish(&mut block, flag);
    Ok(block)
}

/// Writes the name as it appears in the archive; directories end with a slash.
fn put_path(block: &mut [u8; BLOCK], entry: &Entry, records: &mut Records) {
    let mut path = entry.path.as_bytes().to_vec();
    if path.is_empty() {
        path.push(b'.');
    }
    if entry.is_directory() {
        path.push(b'/');
    }
    if path.len() <= Field::NAME.len() {
        header::put(block, Field::NAME, &path);
    } else if let Some((prefix, name)) = split(&path) {
        header::put(block, Field::PREFIX, prefix);
        header::put(block, Field::NAME, name);
    } else {
        header::put(block, Field::NAME, &path[..Field::NAME.len()]);
        pax::insert_text(records, pax::PATH, path);
    }
}

/// Splits a long path at a slash so that both halves fit and the first is as short as possible.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = path.len().checked_sub(Field::NAME.len() + 1)?;
    let cut = first + path.get(first..)?.iter().position(|b| *b == b'/')?;
    let (prefix, name) = (path.get(..cut)?, path.get(cut + 1..)?);
    let fits = (1..=Field::PREFIX.len()).contains(&prefix.len()) && !name.is_empty();
    fits.then_some((prefix, name))
}

fn put_link(block: &mut [u8; BLOCK], target: &[u8], records: &mut Records) {
    let fitting = target.len().min(Field::LINK.len());
    header::put(block, Field::LINK, &target[..fitting]);
    if fitting < target.len() {
        pax::insert_text(records, pax::LINKPATH, target.to_vec());
    }
}

fn put_device(block: &mut [u8; BLOCK], entry: &Entry, major: u32, minor: u32) -> Result<()> {
    let fits = header::put_octal(block, Field::MAJOR, u64::from(major))
        && header::put_octal(block, Field::MINOR, u64::from(minor));
    if fits {
        return Ok(());
    }
    Err(Error::failed(format!(
        "the device number {major}:{minor} of `{}` does not fit into a tar",
        entry.path
    )))
}

/// Writes whole seconds to the header and everything else to a record.
fn put_mtime(block: &mut [u8; BLOCK], mtime: Mtime, records: &mut Records) {
    let whole = u64::try_from(mtime.seconds).ok();
    let fits = whole.is_some_and(|seconds| header::put_octal(block, Field::MTIME, seconds));
    if !fits {
        put_number(block, Field::MTIME, 0);
    }
    if !fits || mtime.nanoseconds != 0 {
        records.insert(pax::MTIME.to_vec(), pax::format_time(mtime));
    }
}

fn put_or_record(
    block: &mut [u8; BLOCK],
    field: Field,
    key: &[u8],
    number: u64,
    records: &mut Records,
) {
    if !header::put_octal(block, field, number) {
        // The largest number the field holds, for readers without PAX support.
        put_number(block, field, field.max_octal());
        records.insert(key.to_vec(), number.to_string().into_bytes());
    }
}

fn put_number(block: &mut [u8; BLOCK], field: Field, number: u64) {
    header::put_octal(block, field, number);
}

fn finish(block: &mut [u8; BLOCK], flag: TypeFlag) {
    block[Field::TYPE] = flag.byte();
    header::put(block, Field::MAGIC, b"ustar\x0000");
    header::put_checksum(block);
}
