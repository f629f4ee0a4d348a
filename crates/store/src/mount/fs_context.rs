//! The kernel's file-system context (`fsopen`, `fsconfig`, `fsmount`, `move_mount`; Linux 5.2),
//! including the kernel's messages about a failure: an error number alone is not informative.
//!
//! Does not depend on a specific file system.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use imgctl_base::error::{Error, Result};

/// A file system being configured.
#[derive(Debug)]
pub(crate) struct FsContext {
    fd: OwnedFd,
}

impl FsContext {
    /// Starts configuring a file system of type `fs`. The raw error number lets the caller
    /// distinguish a kernel without this API (`ENOSYS`) from a denied request (`EPERM`).
    pub(crate) fn open(fs: &str) -> std::result::Result<Self, Errno> {
        fsopen(fs, FsOpenFlags::FSOPEN_CLOEXEC).map(|fd| Self { fd })
    }

    /// Sets an option without a value.
    pub(crate) fn flag(&self, key: &str) -> Result<()> {
        fsconfig_set_flag(&self.fd, key).map_err(|errno| self.error(key, errno))
    }

    /// Sets an option to a string of at most 255 bytes (the kernel's limit).
    pub(crate) fn string(&self, key: &str, value: &str) -> Result<()> {
        self.try_string(key, value).map_err(|errno| self.error(key, errno))
    }

    /// Like [`FsContext::string`], but returns the raw error for the caller to interpret.
    pub(crate) fn try_string(&self, key: &str, value: &str) -> std::result::Result<(), Errno> {
        fsconfig_set_string(&self.fd, key, value)
    }

    /// Passes a directory or file by descriptor; for overlayfs since Linux 6.13.
    pub(crate) fn try_fd(&self, key: &str, fd: impl AsFd) -> std::result::Result<(), Errno> {
        fsconfig_set_fd(&self.fd, key, fd)
    }

    /// Creates the file system and attaches it at `target` (without following a symlink there).
    pub(crate) fn mount(&self, target: &Path, attributes: MountAttrFlags) -> Result<()> {
        fsconfig_create(&self.fd).map_err(|errno| self.error("create", errno))?;
        let mount = fsmount(&self.fd, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|errno| self.error("fsmount", errno))?;
        move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|errno| Error::io(format!("cannot mount at {}", target.display()), errno))
    }

    /// Returns an error with `errno` and the messages that the kernel has left in the context.
    pub(crate) fn error(&self, step: &str, errno: Errno) -> Error {
        let messages = self.messages();
        let refused = format!("the kernel refuses the mount at `{step}`");
        if messages.is_empty() {
            return Error::io(refused, errno).hint("the kernel's reason may be in `dmesg`");
        }
        Error::io(format!("{refused}: {}", messages.join("; ")), errno)
    }

    /// Reads the messages; each read returns one, preceded by `e`, `w` or `i` and a blank.
    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0_u8; 1024];
        while messages.len() < 16 {
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(length) if length > 0 => {
                    let text = String::from_utf8_lossy(&buffer[..length]);
                    let text = text.trim_end();
                    messages.push(
                        text.strip_prefix("e ")
                            .or_else(|| text.strip_prefix("w "))
                            .or_else(|| text.strip_prefix("i "))
                            .unwrap_or(text)
                            .to_owned(),
                    );
                }
                Ok(_) | Err(_) => break,
            }
        }
        messages
    }
}
