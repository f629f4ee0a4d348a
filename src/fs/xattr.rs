//! Extended attributes by descriptor, or by directory and name where nothing can be opened
//! (symlinks, devices). Which attributes matter is the caller's business.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{self, XattrFlags};
use rustix::io::{self, Errno};

/// Linux's limit for one value and for the list of names, in bytes.
const MAX: usize = 64 * 1024;
/// Enough for what files usually have.
const USUAL: usize = 512;

/// Attributes by full name (`user.x`).
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// All attributes of an open file; none where the file system has no attributes.
pub(crate) fn read(fd: impl AsFd) -> io::Result<Xattrs> {
    let fd = fd.as_fd();
    collect(
        |buffer| fs::flistxattr(fd, buffer),
        |name, buffer| fs::fgetxattr(fd, name, buffer),
    )
}

/// All attributes of `name` in `directory`, not following a symlink. Costs one call for a file
/// that has none. Needs /proc.
pub(crate) fn read_at(directory: impl AsFd, name: &[u8]) -> io::Result<Xattrs> {
    let path = path_at(directory, name);
    collect(
        |buffer| fs::llistxattr(&path, buffer),
        |name, buffer| fs::lgetxattr(&path, name, buffer),
    )
}

/// One attribute of an open file, `None` if it has none of that name.
pub(crate) fn get(fd: impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let fd = fd.as_fd();
    absent_is_none(value(|buffer| fs::fgetxattr(fd, name, buffer)))
}

/// Sets one attribute of an open file.
pub(crate) fn set(fd: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    fs::fsetxattr(fd, name, value, XattrFlags::empty())
}

/// Sets one attribute of `name` in `directory`, not following a symlink. Needs /proc.
pub(crate) fn set_at(
    directory: impl AsFd,
    name: &[u8],
    attribute: &[u8],
    value: &[u8],
) -> io::Result<()> {
    fs::lsetxattr(
        path_at(directory, name),
        attribute,
        value,
        XattrFlags::empty(),
    )
}

/// Removes one attribute of an open file; one that is not there is fine.
pub(crate) fn remove(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    match fs::fremovexattr(fd, name) {
        Err(Errno::NODATA) => Ok(()),
        outcome => outcome,
    }
}

/// The name of a file by its directory's descriptor: there are no `*at` calls for attributes
/// before Linux 6.13, and the `l*` calls do not follow the last component.
fn path_at(directory: impl AsFd, name: &[u8]) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()));
    path.push(OsStr::from_bytes(name));
    path
}

fn collect(
    mut list: impl FnMut(&mut [u8]) -> io::Result<usize>,
    mut get: impl FnMut(&CStr, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Xattrs> {
    let names = match value(&mut list) {
        Err(Errno::NOTSUP) => return Ok(Xattrs::new()),
        names => names?,
    };
    let mut xattrs = Xattrs::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        // Gone in between, or listed to those who may not read it.
        if let Some(value) = absent_is_none(value(|buffer| get(name, buffer)))? {
            xattrs.insert(name.to_bytes().to_vec(), value);
        }
    }
    Ok(xattrs)
}

/// Reads with a small buffer, then with the largest there is need for.
fn value(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut small = [0; USUAL];
    match read(&mut small) {
        Ok(length) => Ok(small.get(..length).unwrap_or_default().to_vec()),
        Err(Errno::RANGE) => {
            let mut large = vec![0; MAX];
            let length = read(&mut large)?;
            large.truncate(length);
            Ok(large)
        }
        Err(error) => Err(error),
    }
}

fn absent_is_none(value: io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::fs::directory;

    #[test]
    fn what_is_set_is_read_by_descriptor_and_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("a")).unwrap();
        let open = directory::open(fs::CWD, directory.path()).unwrap();
        assert_eq!(read(&file).unwrap(), Xattrs::new());
        let long = vec![7; 1500];
        set(&file, b"user.a", b"").unwrap();
        set_at(&open, b"a", b"user.long", &long).unwrap();
        let expected = Xattrs::from([
            (b"user.a".to_vec(), Vec::new()),
            (b"user.long".to_vec(), long.clone()),
        ]);
        assert_eq!(read(&file).unwrap(), expected);
        assert_eq!(read_at(&open, b"a").unwrap(), expected);
        assert_eq!(get(&file, b"user.long").unwrap(), Some(long));
        remove(&file, b"user.a").unwrap();
        remove(&file, b"user.a").unwrap();
        assert_eq!(get(&file, b"user.a").unwrap(), None);
    }
}
