//! Overlay mounts for kernels before 6.5: one option string, which must fit into a page.
//!
//! The kernel silently truncates a longer string and may mount the wrong directories, so the length
//! is checked here. Directories are passed as descriptor numbers relative to
//! `/proc/thread-self/fd`: four bytes each, and no path needs escaping.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use crate::mount::overlay::{OverlaySpec, open_directory};
use imgctl_base::error::{Error, IoContext, Result};

/// Size of a page minus the terminating NUL.
const MAX_OPTIONS: usize = 4095;

/// Mounts `spec` at `target` with `mount(2)`.
pub(super) fn attach(spec: &OverlaySpec, target: &Path) -> Result<()> {
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
