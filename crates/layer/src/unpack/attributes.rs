//! Owner, mode, extended attributes and times of a new file, in the only order that works: chown
//! clears set-uid bits and capabilities, so they follow it, and the times come last.
//!
//! Also records what could not be set. Never refers to a file by more than one component.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::{self, Errno};

use crate::entry::{SELINUX, is_left_out};
use crate::{Entry, LayerPath, links};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::xattr;

use super::{Form, LowerFile, Privilege};

/// Zero seconds and nanoseconds.
pub(super) const EPOCH: Timestamps = timestamps(0, 0);

/// Note about device nodes that an ordinary user cannot create.
pub(super) const DEVICES: &str = "device nodes were skipped: only root can create them";
const OWNERS: &str = "owners were not set: only root can change the owner of files";
const XATTRS: &str =
    "extended attributes were skipped: the file system or the system's policy does not accept them";

const CAPABILITY: &[u8] = b"security.capability";

/// Returns the same access and modification time. Nanoseconds out of range are clamped, because the
/// kernel gives them a special meaning.
pub(super) const fn timestamps(seconds: i64, nanoseconds: u32) -> Timestamps {
    let nanoseconds = if nanoseconds > 999_999_999 { 999_999_999 } else { nanoseconds };
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Timestamps { last_access: time, last_modification: time }
}

/// The current user, who owns the files created here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    uid: u32,
    gid: u32,
    privilege: Privilege,
}

impl Identity {
    /// Changes the owner of a file just created in a directory of group `inherited` to `owner`.
    pub(super) fn give(self, fd: impl AsFd, owner: (u32, u32), inherited: u32) -> io::Result<()> {
        if self.privilege == Privilege::User || self.owns(owner, inherited) {
            return Ok(());
        }
        fs::fchown(fd, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))
    }

    /// Returns the actual group of a directory that should have group `wanted`.
    pub(super) fn gid_of(self, wanted: u32, inherited: u32) -> u32 {
        match self.privilege {
            Privilege::Root => wanted,
            Privilege::User => inherited,
        }
    }

    /// Returns whether a new file has this owner without a change. Its group is either the user's
    /// or the directory's (set-gid directories, `grpid` mounts).
    fn owns(self, (uid, gid): (u32, u32), inherited: u32) -> bool {
        uid == self.uid && gid == self.gid && gid == inherited
    }
}

/// The file to set attributes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A symlink in a directory.
    Symlink(BorrowedFd<'a>, &'a [u8]),
    /// A device or FIFO in a directory.
    Node(BorrowedFd<'a>, &'a [u8]),
}

/// Sets attributes as far as permitted.
pub(super) struct Attributes {
    identity: Identity,
    /// The xattr name space that overlayfs uses in this tree, including the final dot.
    overlay_prefix: Option<&'static [u8]>,
    may_make_devices: bool,
    /// Modes that would deny an ordinary user access to their own directories during unpacking.
    postponed: BTreeMap<Vec<u8>, Mode>,
    /// Number of occurrences, and the first path.
    notes: BTreeMap<&'static str, (u64, String)>,
}

impl Attributes {
    /// Creates the state for a tree of the given form.
    pub(super) fn new(form: Form, privilege: Privilege) -> Self {
        let identity = Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            privilege,
        };
        Self {
            identity,
            overlay_prefix: form.overlay_prefix(),
            may_make_devices: privilege == Privilege::Root && !in_user_namespace(),
            postponed: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Returns the current user.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns whether device nodes can be created.
    pub(super) fn may_make_devices(&self) -> bool {
        self.may_make_devices
    }

    /// Sets the attributes of `entry` on the file just created from it in a directory of group
    /// `inherited`.
    pub(super) fn apply(
        &mut self,
        entry: &Entry,
        target: Target<'_>,
        inherited: u32,
    ) -> Result<()> {
        self.set_owner(entry, target, inherited)
            .doing(|| format!("cannot change its owner to {}:{}", entry.uid, entry.gid))?;
        // An ordinary user needs write permission to set attributes of their own files.
        if self.identity.privilege == Privilege::User {
            self.set_xattrs(entry, target)?;
        }
        self.set_mode(entry, target).doing(|| format!("cannot set its mode {:o}", entry.mode))?;
        if self.identity.privilege == Privilege::Root {
            self.set_xattrs(entry, target)?;
        }
        let times = timestamps(entry.mtime.seconds, entry.mtime.nanoseconds);
        match target {
            // A directory's times are set when it is left.
            Target::Open(_) if entry.is_directory() => Ok(()),
            Target::Open(fd) => fs::futimens(fd, &times),
            Target::Symlink(directory, name) | Target::Node(directory, name) => {
                fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
        .doing(|| "cannot set its time".to_owned())
    }

    /// Refuses a hard link whose header says something else of its file than the file's own has: see
    /// [`links`]. What could not be set does not count.
    pub(super) fn check_link(&self, link: &Entry, file: &LowerFile) -> Result<()> {
        let doing = || "cannot examine the file that it is a link to".to_owned();
        let found = Metadata::at(&file.directory, &*file.name).doing(doing)?;
        let is_root = self.identity.privilege == Privilege::Root;
        // The kernel may clear the set-group-ID bit of an ordinary user's file.
        let bits = if is_root { 0o7777 } else { 0o5777 };
        if found.kind != FileKind::Symlink && (link.mode ^ found.mode) & bits != 0 {
            return Err(links::differs(link, "mode"));
        }
        if is_root && (link.uid, link.gid) != (found.uid, found.gid) {
            return Err(links::differs(link, "owner"));
        }
        // In a user namespace, the kernel writes capabilities in another form.
        if link.xattrs.is_empty() || !self.may_make_devices {
            return Ok(());
        }
        let present = xattr::read_at(&file.directory, &file.name).doing(doing)?;
        for (name, value) in &link.xattrs {
            let escaped = self.escape(name);
            let own = present.get(escaped.as_deref().unwrap_or(name));
            let differs = match own {
                Some(own) => own != value,
                None => name == CAPABILITY,
            };
            if name != SELINUX && differs {
                return Err(links::differs(link, &format!("`{}`", name.escape_ascii())));
            }
        }
        Ok(())
    }

    /// Removes the extended attributes of a directory that a new entry describes. Keeps the
    /// attributes that overlayfs uses and the security label, which do not belong to the image.
    pub(super) fn reset(&self, directory: BorrowedFd<'_>) -> Result<()> {
        let present =
            xattr::read(directory).doing(|| "cannot read its extended attributes".to_owned())?;
        for name in present.keys() {
            let ours = |prefix: &&[u8]| {
                name.starts_with(prefix) && !name[prefix.len()..].starts_with(b"overlay.")
            };
            if name == SELINUX || self.overlay_prefix.as_ref().is_some_and(ours) {
                continue;
            }
            match xattr::remove(directory, name) {
                Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
                Err(error) => {
                    return Err(error).doing(|| "cannot remove its extended attributes".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Records that `what` happened to `path`.
    pub(super) fn note(&mut self, what: &'static str, path: &LayerPath) {
        let note = self.notes.entry(what);
        note.or_insert_with(|| (0, path.to_string())).0 += 1;
    }

    /// Discards the state of removed directories at and below `path`.
    pub(super) fn forget(&mut self, path: &[u8]) {
        if !self.postponed.is_empty() {
            self.postponed.retain(|other, _| !is_within(other, path));
        }
    }

    /// Returns the modes to set at the end, deepest directories first.
    pub(super) fn postponed_modes(&mut self) -> Vec<(Vec<u8>, Mode)> {
        std::mem::take(&mut self.postponed).into_iter().rev().collect()
    }

    /// Returns one sentence for each type of metadata that could not be preserved.
    pub(super) fn into_notes(self) -> Vec<String> {
        let note = |(what, (count, first)): (&str, (u64, String))| {
            if count == 1 {
                format!("{what} ({first})")
            } else {
                format!("{what} ({count} entries, the first is {first})")
            }
        };
        self.notes.into_iter().map(note).collect()
    }

    fn set_owner(&mut self, entry: &Entry, target: Target<'_>, inherited: u32) -> io::Result<()> {
        let owner = (entry.uid, entry.gid);
        if self.identity.privilege == Privilege::User {
            if owner != (self.identity.uid, self.identity.gid) {
                self.note(OWNERS, &entry.path);
            }
            return Ok(());
        }
        match target {
            // The directory may have existed before, so its owner is unknown.
            Target::Open(fd) if entry.is_directory() => {
                let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
                fs::fchown(fd, Some(uid), Some(gid))
            }
            Target::Open(fd) => self.identity.give(fd, owner, inherited),
            Target::Symlink(..) | Target::Node(..) if self.identity.owns(owner, inherited) => {
                Ok(())
            }
            Target::Symlink(directory, name) | Target::Node(directory, name) => fs::chownat(
                directory,
                name,
                Some(Uid::from_raw(owner.0)),
                Some(Gid::from_raw(owner.1)),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
        }
    }

    fn set_mode(&mut self, entry: &Entry, target: Target<'_>) -> io::Result<()> {
        let mode = Mode::from_raw_mode(entry.mode & 0o7777);
        match target {
            Target::Open(fd) => {
                let path = entry.path.as_bytes();
                if self.identity.privilege == Privilege::User && entry.is_directory() {
                    if mode.contains(Mode::RWXU) {
                        self.postponed.remove(path);
                    } else {
                        self.postponed.insert(path.to_vec(), mode);
                    }
                    return fs::fchmod(fd, mode | Mode::RWXU);
                }
                fs::fchmod(fd, mode)
            }
            // Linux does not support modes of symlinks.
            Target::Symlink(..) => Ok(()),
            Target::Node(directory, name) => {
                // There is no chmod that does not follow links, but a file descriptor cannot be
                // replaced.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let node = fs::openat(directory, name, flags, Mode::empty())?;
                fs::chmod(format!("/proc/self/fd/{}", node.as_raw_fd()), mode)
            }
        }
    }

    fn set_xattrs(&mut self, entry: &Entry, target: Target<'_>) -> Result<()> {
        for (name, value) in &entry.xattrs {
            if is_left_out(&entry.kind, name) {
                continue;
            }
            let escaped = self.escape(name);
            let outcome = match target {
                Target::Open(fd) => xattr::set(fd, escaped.as_deref().unwrap_or(name), value),
                Target::Symlink(directory, file) | Target::Node(directory, file) => {
                    xattr::set_at(directory, file, escaped.as_deref().unwrap_or(name), value)
                }
            };
            let shown = String::from_utf8_lossy(name);
            match outcome {
                Ok(()) => {}
                Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS)
                    if self.identity.privilege == Privilege::User || name != CAPABILITY =>
                {
                    self.note(XATTRS, &entry.path);
                }
                Err(error) => {
                    let error =
                        Error::io(format!("cannot set its extended attribute {shown}"), error);
                    return Err(error
                        .hint("use a file system with extended attributes, such as ext4 or XFS"));
                }
            }
        }
        Ok(())
    }

    /// Escapes an image's own `trusted.overlay.x` as `trusted.overlay.overlay.x`, which overlayfs
    /// shows under the original name. Unescaped, it could redirect or hide what is below.
    fn escape(&self, name: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.overlay_prefix?;
        let rest = name.strip_prefix(prefix)?;
        Some([prefix, b"overlay.", rest].concat())
    }
}

/// Returns whether `path` is `directory` or below it.
fn is_within(path: &[u8], directory: &[u8]) -> bool {
    match path.strip_prefix(directory) {
        Some(rest) => directory.is_empty() || matches!(rest.first(), None | Some(b'/')),
        None => false,
    }
}

/// Returns whether root here is only the root of a user namespace, who cannot create devices.
pub(super) fn in_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| {
        let fields: Vec<&str> = map.split_whitespace().collect();
        fields != ["0", "0", "4294967295"]
    })
}
