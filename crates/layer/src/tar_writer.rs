//! Tar headers as a function of the entry alone: ustar, with PAX records for everything that ustar
//! cannot express (POSIX.1-2017 pax, "pax Interchange Format"). Never uses GNU extensions or
//! base-256.
//!
//! Handles framing only; the writer handles content, padding and threads.

use tar::{EntryType, Header};

use crate::pax::{self, Records};
use crate::tar_header::{BLOCK, Field};
use crate::{Entry, EntryKind, Mtime};
use imgctl_base::error::{Error, Result};

/// The end of an archive: two blocks of zeros. Additional blocks would only be padding for tapes.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// The name of every PAX header: readers ignore it, and it must not vary.
const PAX_NAME: &[u8] = b"././@PaxHeader";
/// The largest numbers that fit as octal digits into the short fields (owner, device) and into the
/// long ones (size, time). The `tar` crate would write larger ones in base-256.
const MAX_SHORT: u64 = 0o7_777_777;
const MAX_LONG: u64 = 0o77_777_777_777;

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
        let mut extended = Header::new_ustar();
        put(&mut extended.as_old_mut().name, PAX_NAME);
        extended.set_mode(0o644);
        extended.set_uid(0);
        extended.set_gid(0);
        extended.set_size(body.len() as u64);
        output.extend_from_slice(finish(&mut extended, EntryType::XHeader));
        let padding = padding(body.len() as u64);
        output.extend_from_slice(&body);
        output.resize(output.len() + padding, 0);
    }
    output.extend_from_slice(main.as_bytes());
    Ok(())
}

fn main_header(entry: &Entry, records: &mut Records) -> Result<Header> {
    let mut header = Header::new_ustar();
    put_path(&mut header, entry, records);
    header.set_mode(entry.mode & 0o7777);
    header.set_uid(fitting(entry.uid.into(), MAX_SHORT, pax::UID, records));
    header.set_gid(fitting(entry.gid.into(), MAX_SHORT, pax::GID, records));
    header.set_size(fitting(entry.size(), MAX_LONG, pax::SIZE, records));
    put_mtime(&mut header, entry.mtime, records);
    let flag = match &entry.kind {
        EntryKind::File { .. } => EntryType::Regular,
        EntryKind::Directory => EntryType::Directory,
        EntryKind::Fifo => EntryType::Fifo,
        EntryKind::Symlink { target } => {
            if target.is_empty() || target.contains(&0) {
                return Err(Error::failed(format!(
                    "the symlink `{}` has a target that cannot be stored in a layer",
                    entry.path
                )));
            }
            put_link(&mut header, target, records);
            EntryType::Symlink
        }
        EntryKind::HardLink { target } => {
            put_link(&mut header, target.as_bytes(), records);
            EntryType::Link
        }
        EntryKind::CharDevice { major, minor } => {
            put_device(&mut header, entry, *major, *minor)?;
            EntryType::Char
        }
        EntryKind::BlockDevice { major, minor } => {
            put_device(&mut header, entry, *major, *minor)?;
            EntryType::Block
        }
    };
    finish(&mut header, flag);
    Ok(header)
}

/// Returns the name of an entry as it appears in the archive; directories end with a slash.
pub(super) fn name_of(entry: &Entry) -> Vec<u8> {
    let mut path = entry.path.as_bytes().to_vec();
    if path.is_empty() {
        path.push(b'.');
    }
    if entry.is_directory() {
        path.push(b'/');
    }
    path
}

fn put_path(header: &mut Header, entry: &Entry, records: &mut Records) {
    let path = name_of(entry);
    match (split(&path), header.as_ustar_mut()) {
        (Some((prefix, name)), Some(ustar)) => {
            put(&mut ustar.prefix, prefix);
            put(&mut ustar.name, name);
        }
        _ => {
            put(&mut header.as_old_mut().name, &path);
            if path.len() > Field::NAME.len() {
                pax::insert_text(records, pax::PATH, path);
            }
        }
    }
}

/// Splits a path that is too long at a slash so that both halves fit and the first is as short as
/// possible.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = path.len().checked_sub(Field::NAME.len() + 1)?;
    let cut = first + path.get(first..)?.iter().position(|b| *b == b'/')?;
    let (prefix, name) = (path.get(..cut)?, path.get(cut + 1..)?);
    let fits = (1..=Field::PREFIX.len()).contains(&prefix.len()) && !name.is_empty();
    fits.then_some((prefix, name))
}

fn put_link(header: &mut Header, target: &[u8], records: &mut Records) {
    put(&mut header.as_old_mut().linkname, target);
    if target.len() > Field::LINK.len() {
        pax::insert_text(records, pax::LINKPATH, target.to_vec());
    }
}

fn put_device(header: &mut Header, entry: &Entry, major: u32, minor: u32) -> Result<()> {
    let fits = [major, minor].into_iter().all(|number| u64::from(number) <= MAX_SHORT);
    match header.as_ustar_mut() {
        Some(ustar) if fits => {
            ustar.set_device_major(major);
            ustar.set_device_minor(minor);
            Ok(())
        }
        _ => Err(Error::failed(format!(
            "the device number {major}:{minor} of `{}` does not fit into a tar",
            entry.path
        ))),
    }
}

/// Writes whole seconds to the header and everything else to a record.
fn put_mtime(header: &mut Header, mtime: Mtime, records: &mut Records) {
    let whole = u64::try_from(mtime.seconds).ok().filter(|seconds| *seconds <= MAX_LONG);
    header.set_mtime(whole.unwrap_or(0));
    if whole.is_none() || mtime.nanoseconds != 0 {
        records.insert(pax::MTIME.to_vec(), pax::format_time(mtime));
    }
}

/// Returns the number for a field that holds up to `most`. A larger one becomes a record, and the
/// field gets the largest number it holds, for readers without PAX support.
fn fitting(number: u64, most: u64, key: &[u8], records: &mut Records) -> u64 {
    if number > most {
        records.insert(key.to_vec(), number.to_string().into_bytes());
    }
    number.min(most)
}

/// Writes as many bytes as fit.
fn put(field: &mut [u8], bytes: &[u8]) {
    let length = bytes.len().min(field.len());
    field[..length].copy_from_slice(&bytes[..length]);
}

/// Writes type and checksum; returns the header's bytes.
fn finish(header: &mut Header, flag: EntryType) -> &[u8; BLOCK] {
    header.set_entry_type(flag);
    header.set_cksum();
    // POSIX, and every layer written so far, has six digits, NUL and space; the crate writes seven
    // digits and NUL. The sum of 512 bytes never needs the seventh.
    let checksum = &mut header.as_old_mut().cksum;
    checksum.copy_within(1.., 0);
    checksum[7] = b' ';
    header.as_bytes()
}
