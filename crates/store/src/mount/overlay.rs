//! One overlay mount: its parameters ([`OverlaySpec`]) and how to attach it.
//!
//! The parameters are plain data, so a sandbox can mount them in its own namespace. Must not depend
//! on images, stores or records.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, mount};
use serde::{Deserialize, Serialize};

use crate::mount::fs_context::FsContext;
use crate::mount::path_serde;
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// Maximum length of the options of `mount(2)`: a page minus the terminating NUL.
const MAX_OPTIONS: usize = 4095;
/// Maximum number of lower directories that the kernel accepts (`OVL_MAX_STACK`).
pub(crate) const MAX_LOWERS: usize = 500;

/// The parameters of one overlay mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlaySpec {
    /// Source that `/proc/self/mountinfo` shows. Identifies a mount as ours.
    pub source: String,
    /// Snapshots, lowest first, in the order in which an image lists its layers. At least one;
    /// without an upper directory, overlayfs requires at least two ([`OverlaySpec::empty`] may be
    /// one of them).
    #[serde(with = "path_serde::list")]
    pub(crate) lowers: Vec<PathBuf>,
    /// Directory that receives changes; `None` for a read-only mount.
    pub upper: Option<Upper>,
    /// Whiteouts and opaque markers are `user.overlay.*`, as in snapshots made by an unprivileged
    /// user.
    pub(crate) user_xattrs: bool,
    /// Never sync the upper directory: its content is useless after a power failure (build
    /// containers).
    pub(crate) volatile: bool,
    /// Device nodes of the image do not work in this mount.
    pub(crate) no_devices: bool,
}

/// Writable part of an overlay. Both directories are on the same file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upper {
    /// Receives the changes.
    #[serde(with = "path_serde")]
    pub directory: PathBuf,
    /// Work directory of overlayfs; empty when mounting.
    #[serde(with = "path_serde")]
    pub work: PathBuf,
}

impl OverlaySpec {
    /// Options that both mount methods share. `index`, `metacopy` and redirects would make the
    /// upper directory differ from a plain difference to the lower directories, and would tie the
    /// lower directories to one mount. `nofollow` also disables redirects that an image contains.
    pub const OPTIONS: [(&'static str, &'static str); 4] =
        [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow"), ("xino", "off")];

    fn check(&self) -> Result<()> {
        let least = if self.upper.is_some() { 1 } else { 2 };
        if self.lowers.len() < least || self.lowers.len() > MAX_LOWERS {
            return Err(Error::failed(format!(
                "cannot mount an overlay of {} lower directories: {least} to {MAX_LOWERS} are possible",
                self.lowers.len()
            )));
        }
        Ok(())
    }

    pub fn attributes(&self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::empty();
        if self.no_devices {
            attributes |= MountAttrFlags::MOUNT_ATTR_NODEV;
        }
        if self.upper.is_none() {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        attributes
    }
}

/// Mounts `spec` at the directory `target`, in the caller's mount namespace.
pub fn attach(spec: &OverlaySpec, target: &Path) -> Result<()> {
    spec.check()?;
    match attach_with_context(spec, target)? {
        Outcome::Mounted => Ok(()),
        Outcome::TooOld => attach_with_options(spec, target),
    }
}

enum Outcome {
    Mounted,
    /// The kernel has no mount API (before 5.2), or its overlayfs has no `lowerdir+` (before 6.5).
    TooOld,
}

fn attach_with_context(spec: &OverlaySpec, target: &Path) -> Result<Outcome> {
    let context = match FsContext::open("overlay") {
        Ok(context) => context,
        Err(Errno::NOSYS) => return Ok(Outcome::TooOld),
        Err(Errno::NODEV) => {
            return Err(Error::new(
                Kind::Denied,
                "this kernel does not support overlay file systems",
            )
            .hint("load it (`modprobe overlay`) or use --backend checkout"));
        }
        Err(errno) => return Err(Error::io("cannot open an overlay file system", errno)),
    };
    context.string("source", &spec.source)?;
    for (number, lower) in spec.lowers.iter().rev().enumerate() {
        let directory = open_directory(lower)?;
        match add_directory(&context, "lowerdir+", &directory) {
            Ok(()) => {}
            Err(Errno::INVAL) if number == 0 => return Ok(Outcome::TooOld),
            Err(errno) => {
                return Err(context
                    .error("lowerdir+", errno)
                    .context(format!("cannot use the snapshot {}", lower.display())));
            }
        }
    }
    if let Some(upper) = &spec.upper {
        for (key, path) in [("upperdir", &upper.directory), ("workdir", &upper.work)] {
            let directory = open_directory(path)?;
            add_directory(&context, key, &directory).map_err(|errno| {
                context.error(key, errno).context(format!("cannot use {} as {key}", path.display()))
            })?;
        }
    }
    for (key, value) in OverlaySpec::OPTIONS {
        context.string(key, value)?;
    }
    if spec.user_xattrs {
        context.flag("userxattr")?;
    }
    if spec.volatile && spec.upper.is_some() {
        context.flag("volatile")?;
    }
    context.mount(target, spec.attributes())?;
    Ok(Outcome::Mounted)
}

/// Adds a directory by descriptor where the kernel accepts one (6.13), otherwise by its name in
/// `/proc`. Neither form is subject to length limits, separators in names or races.
fn add_directory(
    context: &FsContext,
    key: &str,
    directory: &OwnedFd,
) -> std::result::Result<(), Errno> {
    match context.try_fd(key, directory) {
        Err(Errno::INVAL | Errno::BADF) => {
            context.try_string(key, &format!("/proc/self/fd/{}", directory.as_raw_fd()))
        }
        other => other,
    }
}

/// Mounts `spec` at `target` with `mount(2)`, on kernels before 6.5: one option string, which must fit
/// into a page. The kernel silently truncates a longer string and may mount the wrong directories, so
/// the length is checked here. Directories are passed as descriptor numbers relative to
/// `/proc/thread-self/fd`: four bytes each, and no path needs escaping.
fn attach_with_options(spec: &OverlaySpec, target: &Path) -> Result<()> {
    let target = std::path::absolute(target).path("find", target)?;
    // The working directory belongs to the process, but a thread can unshare its own.
    std::thread::scope(|scope| {
        scope
            .spawn(|| attach_on_this_thread(spec, &target))
            .join()
            .unwrap_or_else(|_| Err(Error::failed("the mounting thread has panicked")))
    })
}

fn attach_on_this_thread(spec: &OverlaySpec, target: &Path) -> Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS)
        .doing(|| "cannot give the mounting thread a working directory of its own".to_owned())?;
    let mut directories = Vec::new();
    for lower in spec.lowers.iter().rev() {
        directories.push(open_directory(lower)?);
    }
    let upper = match &spec.upper {
        Some(upper) => Some((open_directory(&upper.directory)?, open_directory(&upper.work)?)),
        None => None,
    };
    let options = option_string(spec, &directories, upper.as_ref())?;
    let descriptors = Path::new("/proc/thread-self/fd");
    rustix::process::chdir(descriptors).path("enter", descriptors)?;
    let mut flags = MountFlags::empty();
    if spec.no_devices {
        flags |= MountFlags::NODEV;
    }
    if spec.upper.is_none() {
        flags |= MountFlags::RDONLY;
    }
    mount(spec.source.as_str(), target, "overlay", flags, Some(options.as_c_str())).map_err(
        |errno| {
            Error::io(format!("cannot mount an overlay at {}", target.display()), errno)
                .hint("the kernel's reason is in `dmesg`")
        },
    )
}

fn option_string(
    spec: &OverlaySpec,
    lowers: &[OwnedFd],
    upper: Option<&(OwnedFd, OwnedFd)>,
) -> Result<CString> {
    let lowers: Vec<String> = lowers.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut options = format!("lowerdir={}", lowers.join(":"));
    if let Some((directory, work)) = upper {
        options.push_str(&format!(
            ",upperdir={},workdir={}",
            directory.as_raw_fd(),
            work.as_raw_fd()
        ));
    }
    for (key, value) in OverlaySpec::OPTIONS {
        options.push_str(&format!(",{key}={value}"));
    }
    if spec.user_xattrs {
        options.push_str(",userxattr");
    }
    if spec.volatile && spec.upper.is_some() {
        options.push_str(",volatile");
    }
    if options.len() > MAX_OPTIONS {
        return Err(Error::failed(format!(
            "cannot mount {} layers: the options are {} bytes and this kernel takes {MAX_OPTIONS}",
            lowers.len(),
            options.len()
        ))
        .hint("use --backend checkout, or a kernel of 6.5 or later"));
    }
    CString::new(options)
        .map_err(|error| Error::failed("a mount option has a NUL").caused_by(error))
}

/// Opens a directory so that it can be passed to the kernel.
pub fn open_directory(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .path("open", path)
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
pub mod tests;
