//! POSIX ACLs among the extended attributes of an entry. The kernel takes the mode of a file from the ACL that
//! is set last, so a file whose ACL and mode disagree gets other permissions than a listing shows.
//!
//! Must not depend on archives.

use super::stream::refuse;
use crate::{Entry, EntryKind};
use imgctl_base::error::Result;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The version in front of the entries (Linux, include/uapi/linux/posix_acl_xattr.h).
const VERSION: [u8; 4] = [2, 0, 0, 0];
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Checks the ACLs of an entry.
pub(super) fn check(entry: &Entry) -> Result<()> {
    if let Some(acl) = entry.xattrs.get(ACCESS) {
        if matches!(entry.kind, EntryKind::Symlink { .. }) {
            return Err(refuse("a symlink has an ACL, which the kernel does not support"));
        }
        let mode = mode(acl).ok_or_else(|| refuse("its ACL is malformed"))?;
        if mode != entry.mode & 0o777 {
            return Err(refuse(format!(
                "its ACL makes its mode {mode:03o}, its header {:03o}",
                entry.mode & 0o777
            )));
        }
    }
    if let Some(acl) = entry.xattrs.get(DEFAULT) {
        if !entry.is_directory() {
            return Err(refuse("it has a default ACL and is no directory"));
        }
        if mode(acl).is_none() {
            return Err(refuse("its default ACL is malformed"));
        }
    }
    Ok(())
}

/// Returns the permission bits that an ACL gives a file; `None` if the kernel does not accept it.
fn mode(acl: &[u8]) -> Option<u32> {
    let (entries, rest) = acl.strip_prefix(&VERSION)?.as_chunks::<8>();
    let mut last = 0;
    let (mut mode, mut has_names, mut mask) = (0, false, None);
    for [tag, high_tag, permissions, high, id @ ..] in entries {
        let (tag, permissions) =
            (u16::from_le_bytes([*tag, *high_tag]), u16::from_le_bytes([*permissions, *high]));
        let is_named = matches!(tag, USER | GROUP);
        // In this order, and only the named ones more than once.
        let is_next = if is_named { tag >= last } else { tag > last };
        if !is_next || permissions > 7 || (is_named && *id == [0xff; 4]) {
            return None;
        }
        let is_behind = |needed| last >= needed;
        match tag {
            OWNER => mode |= u32::from(permissions) << 6,
            USER if is_behind(OWNER) => has_names = true,
            OWNING_GROUP if is_behind(OWNER) => mode |= u32::from(permissions) << 3,
            GROUP if is_behind(OWNING_GROUP) => has_names = true,
            MASK if is_behind(OWNING_GROUP) => mask = Some(u32::from(permissions)),
            OTHER if is_behind(OWNING_GROUP) => mode |= u32::from(permissions),
            _ => return None,
        }
        last = tag;
    }
    let is_whole = rest.is_empty() && last == OTHER && (mask.is_some() || !has_names);
    is_whole.then(|| mask.map_or(mode, |mask| mode & 0o707 | mask << 3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LayerPath;

    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut acl = VERSION.to_vec();
        for (tag, permissions) in entries {
            acl.extend(tag.to_le_bytes());
            acl.extend(permissions.to_le_bytes());
            acl.extend(if matches!(*tag, USER | GROUP) { [1, 2, 0, 0] } else { [0xff; 4] });
        }
        acl
    }

    #[test]
    fn the_mode_of_an_acl_is_the_kernels() {
        let minimal = [(OWNER, 6), (OWNING_GROUP, 4), (OTHER, 0)];
        assert_eq!(mode(&acl(&minimal)), Some(0o640));
        let named = [
            (OWNER, 7),
            (USER, 7),
            (USER, 1),
            (OWNING_GROUP, 4),
            (GROUP, 2),
            (MASK, 5),
            (OTHER, 1),
        ];
        assert_eq!(mode(&acl(&named)), Some(0o751));
        for wrong in [
            &[][..],
            &minimal[..2],
            &minimal[1..],
            &[(OWNER, 6), (OTHER, 0)],
            &[(OWNER, 8), (OWNING_GROUP, 4), (OTHER, 0)],
            &[(OWNER, 6), (OWNER, 6), (OWNING_GROUP, 4), (OTHER, 0)],
            &[(OWNING_GROUP, 4), (OWNER, 6), (OTHER, 0)],
            // Named entries need a mask.
            &[(OWNER, 6), (USER, 6), (OWNING_GROUP, 4), (OTHER, 0)],
            &[(OWNER, 6), (OWNING_GROUP, 4), (MASK, 4), (GROUP, 4), (OTHER, 0)],
            &[(OWNER, 6), (OWNING_GROUP, 4), (3, 0), (OTHER, 0)],
            &[(OWNER, 6), (OWNING_GROUP, 4), (OTHER, 0), (0x40, 0)],
        ] {
            assert_eq!(mode(&acl(wrong)), None, "{wrong:?}");
        }
        let whole = acl(&minimal);
        for length in 0..whole.len() {
            assert_eq!(mode(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(mode(&[&whole[..], &[0]].concat()), None);
        assert_eq!(mode(&[&[1][..], &whole[1..]].concat()), None);
    }

    #[test]
    fn the_kernel_agrees() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        bolero::check!().with_type::<Vec<(u8, u8)>>().for_each(|entries| {
            let tags = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHER, 3, 0x40];
            let mut entries: Vec<(u16, u16)> = entries
                .iter()
                .map(|(tag, permissions)| (tags[usize::from(tag % 8)], u16::from(permissions % 9)))
                .collect();
            if entries.len() > 3 {
                entries.sort_by_key(|(tag, _)| *tag);
            }
            let acl = acl(&entries);
            file.set_permissions(PermissionsExt::from_mode(0o600)).unwrap();
            let found = match imgctl_base::fs::xattr::set(&file, ACCESS, &acl) {
                Ok(()) => Some(file.metadata().unwrap().mode() & 0o777),
                Err(rustix::io::Errno::INVAL) => None,
                // This file system has no ACLs.
                Err(_) => return,
            };
            // The kernel takes an ACL without entries for none.
            if !entries.is_empty() {
                assert_eq!(mode(&acl), found, "{entries:?}");
            }
        });
    }

    #[test]
    fn acls_stand_where_they_can() {
        let minimal = acl(&[(OWNER, 6), (OWNING_GROUP, 4), (OTHER, 0)]);
        let entry = |kind, mode, name: &[u8], value: &[u8]| {
            let mut entry = Entry::new(LayerPath::parse(b"a").unwrap(), kind, mode);
            entry.xattrs.insert(name.to_vec(), value.to_vec());
            check(&entry).map_err(|error| error.to_string())
        };
        let file = || EntryKind::File { size: 0 };
        assert_eq!(entry(file(), 0o4640, ACCESS, &minimal), Ok(()));
        assert_eq!(entry(EntryKind::Directory, 0o755, DEFAULT, &minimal), Ok(()));
        for (kind, mode, name, value, why) in [
            (file(), 0o600, ACCESS, &minimal[..], "makes its mode 640, its header 600"),
            (file(), 0o640, ACCESS, &minimal[..8], "malformed"),
            (EntryKind::Symlink { target: b"x".to_vec() }, 0o640, ACCESS, &minimal, "symlink"),
            (file(), 0o640, DEFAULT, &minimal, "no directory"),
            (EntryKind::Directory, 0o755, DEFAULT, b"", "default ACL is malformed"),
        ] {
            let error = entry(kind, mode, name, value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
