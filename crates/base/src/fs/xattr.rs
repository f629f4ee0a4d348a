//! Extended attributes by descriptor, or by directory and name if the file cannot be opened
//! (symlinks, devices). The caller decides which attributes matter.

use std::collections::{BTreeMap, btree_map};
use std::ffi::{CStr, OsStr};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{self, XattrFlags};
use rustix::io::{self, Errno};

/// Linux limit for one value and for the list of names, in bytes.
const MAX: usize = 64 * 1024;
/// Initial buffer size, sufficient for most files.
const USUAL: usize = 512;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Attributes by full name (`user.x`). Without any, as most files are, they take one pointer.
#[derive(Clone, Debug, Default)]
pub struct Xattrs(Option<Box<Map>>);

impl Xattrs {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn clear(&mut self) {
        self.0 = None;
    }
}

impl Deref for Xattrs {
    type Target = Map;

    fn deref(&self) -> &Map {
        static NONE: Map = Map::new();
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Xattrs {
    fn deref_mut(&mut self) -> &mut Map {
        self.0.get_or_insert_default()
    }
}

impl PartialEq for Xattrs {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Xattrs {}

impl From<Map> for Xattrs {
    fn from(map: Map) -> Self {
        Self((!map.is_empty()).then(|| Box::new(map)))
    }
}

impl<const N: usize> From<[(Vec<u8>, Vec<u8>); N]> for Xattrs {
    fn from(list: [(Vec<u8>, Vec<u8>); N]) -> Self {
        Map::from(list).into()
    }
}

impl FromIterator<(Vec<u8>, Vec<u8>)> for Xattrs {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(list: I) -> Self {
        Map::from_iter(list).into()
    }
}

impl IntoIterator for Xattrs {
    type Item = (Vec<u8>, Vec<u8>);
    type IntoIter = btree_map::IntoIter<Vec<u8>, Vec<u8>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map(|map| *map).unwrap_or_default().into_iter()
    }
}

impl<'a> IntoIterator for &'a Xattrs {
    type Item = (&'a Vec<u8>, &'a Vec<u8>);
    type IntoIter = btree_map::Iter<'a, Vec<u8>, Vec<u8>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns all attributes of an open file; none if the file system does not support attributes.
pub fn read(fd: impl AsFd) -> io::Result<Xattrs> {
    let fd = fd.as_fd();
    collect(|buffer| fs::flistxattr(fd, buffer), |name, buffer| fs::fgetxattr(fd, name, buffer))
}

/// Returns all attributes of `name` in `directory`, without following a symlink. Makes one system
/// call for a file that has none. Requires /proc.
pub fn read_at(directory: impl AsFd, name: &[u8]) -> io::Result<Xattrs> {
    let path = path_at(directory, name);
    collect(
        |buffer| fs::llistxattr(&path, buffer),
        |name, buffer| fs::lgetxattr(&path, name, buffer),
    )
}

/// Returns one attribute of an open file, `None` if it has no attribute of that name.
pub fn get(fd: impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let fd = fd.as_fd();
    absent_is_none(value(|buffer| fs::fgetxattr(fd, name, buffer)))
}

/// Sets one attribute of an open file.
pub fn set(fd: impl AsFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    fs::fsetxattr(fd, name, value, XattrFlags::empty())
}

/// Sets one attribute of `name` in `directory`, without following a symlink. Requires /proc.
pub fn set_at(directory: impl AsFd, name: &[u8], attribute: &[u8], value: &[u8]) -> io::Result<()> {
    fs::lsetxattr(path_at(directory, name), attribute, value, XattrFlags::empty())
}

/// Removes one attribute of an open file; a missing one is not an error.
pub fn remove(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    match fs::fremovexattr(fd, name) {
        Err(Errno::NODATA) => Ok(()),
        outcome => outcome,
    }
}

/// Returns the path of a file through the descriptor of its directory: there are no `*at` calls for
/// attributes before Linux 6.13, and the `l*` calls do not follow the last component.
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
        // Removed in the meantime, or listed although the process may not read it.
        if let Some(value) = absent_is_none(value(|buffer| get(name, buffer)))? {
            xattrs.insert(name.to_bytes().to_vec(), value);
        }
    }
    Ok(xattrs)
}

/// Reads with a small buffer first, then with one of the maximum size.
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
        let expected =
            Xattrs::from([(b"user.a".to_vec(), Vec::new()), (b"user.long".to_vec(), long.clone())]);
        assert_eq!(read(&file).unwrap(), expected);
        assert_eq!(read_at(&open, b"a").unwrap(), expected);
        assert_eq!(get(&file, b"user.long").unwrap(), Some(long));
        remove(&file, b"user.a").unwrap();
        remove(&file, b"user.a").unwrap();
        assert_eq!(get(&file, b"user.a").unwrap(), None);
    }
}
