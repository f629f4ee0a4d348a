//! The file system that a command sees: the given root plus `/proc`, `/sys`, `/dev`, the step's own
//! mounts and a few files in `/etc`. Ends with `pivot_root` into it. Runs in a private mount
//! namespace. Does not know about users and capabilities.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, FileType, Gid, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, UnmountFlags};

use super::below;
use super::spec::{Bytes, MountKind, Network, RunSpec, SandboxMount, Security, Stub};
use super::target::{self, Place, Want, fd_path, open_path};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_store::mount::mountinfo::MountPoint;

/// Paths hidden from commands, as in Docker: they expose or affect the whole machine.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// The processors; the directory `thermal_throttle` of each is hidden as well.
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// Read-only paths, as in Docker: writing there configures the whole machine.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Name, major and minor number (Linux's Documentation/admin-guide/devices.txt).
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Links that programs expect, by name and target.
const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];

/// Creates the root and enters it. Mount points that had to be created are pushed to `stubs`, even
/// if a later step fails.
pub(super) fn enter(spec: &RunSpec, stubs: &mut Vec<Stub>) -> Result<()> {
    let mut tree = Tree::new(spec, stubs)?;
    tree.proc_and_sys(spec)?;
    mount_devices(&mut tree, spec.security)?;
    tree.etc(spec)?;
    for (index, wanted) in spec.mounts.iter().enumerate() {
        tree.add(wanted, index)?;
    }
    if spec.security == Security::Sandbox {
        for path in MASKED {
            tree.mask(path)?;
        }
        for path in tree.throttles()? {
            tree.mask(&path)?;
        }
        for path in READ_ONLY {
            tree.make_read_only(path)?;
        }
    }
    tree.pivot()
}

/// The tree under construction.
pub(super) struct Tree<'a> {
    /// The directory that becomes `/`.
    root: OwnedFd,
    /// A tmpfs that only this process sees, with the content of files that are bind-mounted.
    scratch: OwnedFd,
    /// `/dev/null` on a read-only mount, in the place of what is hidden.
    null: OwnedFd,
    /// Paths of mounts: mount points created below them are not created in the root.
    covered: Vec<Vec<Vec<u8>>>,
    stubs: &'a mut Vec<Stub>,
}

impl<'a> Tree<'a> {
    /// Mounts the scratch file system over the root's own path, which is the only directory that
    /// certainly exists and is no longer needed; the root is bound inside it.
    fn new(spec: &RunSpec, stubs: &'a mut Vec<Stub>) -> Result<Self> {
        let path = spec.rootfs.as_path();
        let doing = || format!("cannot use {} as the root of RUN", path.display());
        if let Some(overlay) = &spec.overlay {
            imgctl_store::mount::attach(overlay, path)?;
        }
        let original = open_path(path).doing(doing)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount::mount("tmpfs", fd_path(&original), "tmpfs", flags, Some(c"mode=0700"))
            .doing(doing)?;
        let scratch = open_path(path).doing(doing)?;
        fs::mkdirat(&scratch, "root", Mode::from_raw_mode(0o755)).doing(doing)?;
        let root = path.join("root");
        mount::mount_bind(fd_path(&original), &root).doing(doing)?;
        // Devices work only below the sandbox's `/dev`: there is no device cgroup here, and with
        // CAP_MKNOD a command could otherwise create a node for the host's disk and open it.
        if spec.security == Security::Sandbox {
            restrict(&root, MountFlags::NODEV).doing(doing)?;
        }
        let root = open_path(&root).doing(doing)?;
        let null = null_in(&scratch)?;
        Ok(Self { root, scratch, null, covered: Vec::new(), stubs })
    }

    /// Finds or creates a mount point.
    pub(super) fn place(&mut self, target: &[u8], want: Want) -> Result<Place> {
        let mut made = Vec::new();
        let place = target::place(self.root.as_fd(), target, want, &mut made);
        made.retain(|stub| !self.is_covered(&stub.path));
        self.stubs.append(&mut made);
        place
    }

    /// Like [`Self::place`], for a directory that must not be reached through a symlink: a `/proc`
    /// mounted elsewhere would escape the masks.
    pub(super) fn place_exactly(&mut self, target: &str) -> Result<Place> {
        let place = self.place(target.as_bytes(), Want::Directory)?;
        if place.components.join(&b'/') != target.as_bytes()[1..] {
            return Err(Error::bad_content(format!(
                "{target} is a symbolic link in the image; RUN needs a directory there"
            )));
        }
        Ok(place)
    }

    fn is_covered(&self, path: &Bytes) -> bool {
        let components: Vec<&[u8]> = path.0.split(|&byte| byte == b'/').collect();
        self.covered.iter().any(|mounted| {
            mounted.len() < components.len() && mounted.iter().zip(&components).all(|(a, b)| a == b)
        })
    }

    /// Mounts a kernel file system.
    pub(super) fn mount(
        &mut self,
        place: &Place,
        kind: &str,
        flags: MountFlags,
        data: &str,
    ) -> Result<(), Errno> {
        let data = std::ffi::CString::new(data).map_err(|_| Errno::INVAL)?;
        mount::mount(kind, fd_path(&place.fd), kind, flags, Some(data.as_c_str()))?;
        self.covered.push(place.components.clone());
        Ok(())
    }

    /// Binds a file to a mount point, with `flags` in addition to those of the source.
    pub(super) fn bind(
        &mut self,
        source: &OwnedFd,
        place: &Place,
        flags: MountFlags,
    ) -> Result<(), Errno> {
        mount::mount_bind(fd_path(source), fd_path(&place.fd))?;
        self.covered.push(place.components.clone());
        self.restrict(place, flags).map(drop)
    }

    /// Binds a file or directory to a mount point together with the mounts below it, as every user
    /// sees them, if they are among those that `stay`. The flags are for the source itself; nothing can
    /// be written below.
    fn bind_all(
        &mut self,
        source: &OwnedFd,
        place: &Place,
        flags: MountFlags,
        stay: fn(&MountPoint) -> bool,
    ) -> Result<()> {
        let doing = || "cannot bind it".to_owned();
        mount::mount_bind_recursive(fd_path(source), fd_path(&place.fd)).doing(doing)?;
        self.covered.push(place.components.clone());
        below::seal(&self.restrict(place, flags).doing(doing)?, stay, &self.null)
    }

    /// Adds flags to the topmost mount at a place, which is returned.
    fn restrict(&self, place: &Place, flags: MountFlags) -> Result<OwnedFd, Errno> {
        let top = target::reopen(self.root.as_fd(), &place.components)?;
        restrict(Path::new(&fd_path(&top)), flags)?;
        Ok(top)
    }

    fn proc_and_sys(&mut self, spec: &RunSpec) -> Result<()> {
        let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let proc = self.place_exactly("/proc")?;
        self.mount(&proc, "proc", inert, "").map_err(|errno| {
            Error::io("cannot mount /proc for RUN", errno)
                .hint("inside another container, its /proc must not be masked (docker: --security-opt systempaths=unconfined)")
        })?;
        let sys = self.place_exactly("/sys")?;
        let flags = match spec.security {
            Security::Sandbox => inert | MountFlags::RDONLY,
            Security::Insecure => inert,
        };
        let doing = || "cannot mount /sys for RUN".to_owned();
        match self.mount(&sys, "sysfs", flags, "") {
            // sysfs belongs to a network namespace, and this one is the host's, not that of our
            // user namespace. What is mounted below it (cgroups, debugfs) is covered.
            Err(Errno::PERM) if spec.network == Network::Host => {
                let host = open_path(Path::new("/sys")).path("open", "/sys")?;
                self.bind_all(&host, &sys, flags, |_| false).context(doing)
            }
            other => other.doing(doing),
        }
    }

    fn etc(&mut self, spec: &RunSpec) -> Result<()> {
        let files = [("resolv.conf", spec.resolv_conf.as_ref()), ("hosts", spec.hosts.as_ref())];
        for (name, content) in files {
            let Some(content) = content else { continue };
            let source = keep(&self.scratch, name, &content.0, 0o644)?;
            self.bind_file(&source, format!("/etc/{name}").as_bytes(), false)?;
        }
        Ok(())
    }

    fn bind_file(&mut self, source: &OwnedFd, target: &[u8], runs: bool) -> Result<()> {
        let mut flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        // A heredoc with its own `#!` line is executable.
        if !runs {
            flags |= MountFlags::NOEXEC;
        }
        let place = self.place(target, Want::File)?;
        self.bind(source, &place, flags)
            .doing(|| format!("cannot create a file at {}", String::from_utf8_lossy(target)))
    }

    fn add(&mut self, wanted: &SandboxMount, index: usize) -> Result<()> {
        let target = &wanted.target.0;
        let shown = wanted.target.as_path().display();
        let doing = || format!("cannot mount {shown} for RUN");
        match &wanted.kind {
            MountKind::Bind { source, read_only, inode } => {
                let (source, want) = open_source(source, *inode)?;
                let place = self.place_outside_kernel(target, want)?;
                let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
                flags.set(MountFlags::RDONLY, *read_only);
                self.bind_all(&source, &place, flags, below::holds_files).context(doing)
            }
            MountKind::Tmpfs { size, mode, read_only } => {
                let place = self.place_outside_kernel(target, Want::Directory)?;
                let mut data = format!("mode={:o}", mode & 0o7777);
                if let Some(size) = size {
                    data.push_str(&format!(",size={size}"));
                }
                let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
                flags.set(MountFlags::RDONLY, *read_only);
                self.mount(&place, "tmpfs", flags, &data).doing(doing)
            }
            MountKind::File { content, mode, uid, gid } => {
                let source = keep(&self.scratch, &format!("file-{index}"), &content.0, *mode)?;
                let owner = (Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)));
                fs::chownat(&source, "", owner.0, owner.1, fs::AtFlags::EMPTY_PATH).map_err(
                    |errno| {
                        Error::io(
                            format!("cannot change the owner of {shown} to {uid}:{gid}"),
                            errno,
                        )
                        .hint(
                            "as an ordinary user, IDs other than 0 need ranges in \
                                   /etc/subuid and /etc/subgid",
                        )
                    },
                )?;
                self.place_outside_kernel(target, Want::File)?;
                self.bind_file(&source, target, mode & 0o111 != 0)
            }
        }
    }

    /// Finds a place for one of the step's own mounts, which must not replace /proc or /sys.
    fn place_outside_kernel(&mut self, target: &[u8], want: Want) -> Result<Place> {
        let place = self.place(target, want)?;
        if matches!(place.components[0].as_slice(), b"proc" | b"sys") {
            return Err(Error::usage(format!(
                "cannot mount on {}: /proc and /sys belong to the kernel",
                String::from_utf8_lossy(target)
            )));
        }
        Ok(place)
    }

    /// Opens a path in a kernel file system; returns `None` if this kernel does not provide it.
    fn kernel_place(&self, path: &str) -> Result<Option<Place>> {
        let components: Vec<Vec<u8>> =
            path.split('/').skip(1).map(|name| name.as_bytes().to_vec()).collect();
        match target::reopen(self.root.as_fd(), &components) {
            Ok(fd) => Ok(Some(Place { fd, components })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(Error::io(format!("cannot open {path} to mask it"), errno)),
        }
    }

    fn mask(&self, path: &str) -> Result<()> {
        let Some(place) = self.kernel_place(path)? else {
            return Ok(());
        };
        below::cover(&place.fd, &self.null).context(|| format!("cannot mask {path} for RUN"))
    }

    /// Returns the paths that tell how hot each processor is, where there are such.
    fn throttles(&self) -> Result<Vec<String>> {
        let Some(place) = self.kernel_place(PROCESSORS)? else {
            return Ok(Vec::new());
        };
        let doing = || format!("cannot list {PROCESSORS} for RUN");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::openat(&place.fd, ".", flags, Mode::empty()).doing(doing)?;
        let mut paths = Vec::new();
        for entry in fs::Dir::read_from(&directory).doing(doing)? {
            let entry = entry.doing(doing)?;
            let name = entry.file_name().to_string_lossy();
            let number = name.strip_prefix("cpu").unwrap_or_default();
            if !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()) {
                paths.push(format!("{PROCESSORS}/{name}/thermal_throttle"));
            }
        }
        Ok(paths)
    }

    fn make_read_only(&mut self, path: &str) -> Result<()> {
        let Some(place) = self.kernel_place(path)? else {
            return Ok(());
        };
        let doing = || format!("cannot make {path} read-only for RUN");
        mount::mount_bind_recursive(fd_path(&place.fd), fd_path(&place.fd)).doing(doing)?;
        self.restrict(&place, MountFlags::RDONLY).doing(doing).map(drop)
    }

    /// Makes the tree `/` and detaches everything else.
    fn pivot(self) -> Result<()> {
        let doing = || "cannot enter the root of the RUN step".to_owned();
        rustix::process::fchdir(&self.root).doing(doing)?;
        // Uses the same place for the old and the new root: the old one ends up on top, where it
        // can be unmounted without a directory to hold it.
        rustix::process::pivot_root(".", ".").doing(doing)?;
        mount::unmount(".", UnmountFlags::DETACH).doing(doing)?;
        rustix::process::chdir("/").doing(doing)
    }
}

/// Mounts `/dev` and its submounts: a small tmpfs with the harmless devices, each bind-mounted from
/// the host. No other file in the sandbox can be opened as a device, unless the step is insecure: then all
/// devices of the host are there, and nodes that the command makes work (BuildKit).
fn mount_devices(tree: &mut Tree<'_>, security: Security) -> Result<()> {
    let doing = || "cannot create /dev for RUN".to_owned();
    let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let dev = tree.place_exactly("/dev")?;
    // NODEV does not affect the devices bound below: they keep the flags of the host's /dev.
    let mut flags = MountFlags::NOSUID;
    flags.set(MountFlags::NODEV, security == Security::Sandbox);
    tree.mount(&dev, "tmpfs", flags, "mode=755,size=64m").doing(doing)?;
    for (name, _, _) in DEVICES {
        let source = open_device(name)?;
        let place = tree.place(format!("/dev/{name}").as_bytes(), Want::File)?;
        // Read-only affects the node, which belongs to the host: chmod fails, but writing to the
        // device still works.
        tree.bind(&source, &place, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC)
            .doing(doing)?;
    }
    if security == Security::Insecure {
        for name in other_devices()? {
            let path = Path::new("/dev").join(&name);
            let source = open_path(&path).path("open", &path)?;
            let place = tree.place(path.as_os_str().as_encoded_bytes(), Want::File)?;
            tree.bind(&source, &place, MountFlags::NOSUID | MountFlags::NOEXEC).doing(doing)?;
        }
    }
    let pts = tree.place_exactly("/dev/pts")?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    // Group 5 is `tty` by convention; a user namespace may not have it.
    match tree.mount(&pts, "devpts", flags, &format!("{options},gid=5")) {
        Err(Errno::INVAL) => tree.mount(&pts, "devpts", flags, options),
        other => other,
    }
    .doing(|| "cannot mount /dev/pts for RUN".to_owned())?;
    let shm = tree.place_exactly("/dev/shm")?;
    tree.mount(&shm, "tmpfs", inert, "mode=1777,size=64m")
        .doing(|| "cannot mount /dev/shm for RUN".to_owned())?;
    let mqueue = tree.place_exactly("/dev/mqueue")?;
    match tree.mount(&mqueue, "mqueue", inert, "") {
        // The kernel does not support POSIX message queues.
        Err(Errno::NODEV) => {}
        other => other.doing(|| "cannot mount /dev/mqueue for RUN".to_owned())?,
    }
    let dev = tree.place_exactly("/dev")?;
    for (name, target) in LINKS {
        fs::symlinkat(target, &dev.fd, name).doing(doing)?;
    }
    Ok(())
}

/// Returns the names of the host's devices beside those that every command sees.
fn other_devices() -> Result<Vec<std::ffi::OsString>> {
    use std::os::unix::fs::FileTypeExt as _;
    let mut names = Vec::new();
    for entry in std::fs::read_dir("/dev").path("list", "/dev")? {
        let entry = entry.path("list", "/dev")?;
        let name = entry.file_name();
        let is_device =
            entry.file_type().is_ok_and(|kind| kind.is_char_device() || kind.is_block_device());
        let is_known = DEVICES.iter().any(|(known, ..)| name == *known)
            || LINKS.iter().any(|(known, _)| name == *known);
        if is_device && !is_known {
            names.push(name);
        }
    }
    Ok(names)
}

/// Creates a file in the scratch file system.
fn keep(scratch: &OwnedFd, name: &str, content: &[u8], mode: u32) -> Result<OwnedFd> {
    let doing = || format!("cannot store {name} in memory for RUN");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = fs::openat(scratch, name, flags, Mode::empty()).doing(doing)?;
    let mut file = std::fs::File::from(file);
    std::io::Write::write_all(&mut file, content).doing(doing)?;
    fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777)).doing(doing)?;
    fs::openat(scratch, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).doing(doing)
}

/// Makes [`Tree::null`]. Read-only affects the node, which belongs to the host: chmod fails.
fn null_in(scratch: &OwnedFd) -> Result<OwnedFd> {
    let doing = || "cannot prepare /dev/null for RUN".to_owned();
    let place = keep(scratch, "null", b"", 0)?;
    mount::mount_bind(fd_path(&open_device("null")?), fd_path(&place)).doing(doing)?;
    let null = target::reopen(scratch.as_fd(), ["null"]).doing(doing)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    restrict(Path::new(&fd_path(&null)), flags).doing(doing)?;
    Ok(null)
}

/// Opens one of the host's devices and verifies that it is the device that its name says.
fn open_device(name: &str) -> Result<OwnedFd> {
    let path = Path::new("/dev").join(name);
    let fd = open_path(&path).path("open", &path)?;
    let stat = fs::fstat(&fd).path("look at", &path)?;
    let numbers = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    let right = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && DEVICES.iter().any(|&(known, major, minor)| known == name && numbers == (major, minor));
    if !right {
        return Err(Error::failed(format!(
            "{} on this machine is not the expected device",
            path.display()
        )));
    }
    Ok(fd)
}

/// Adds flags to a bind mount and keeps the existing ones, which cannot be cleared in a user
/// namespace.
pub(super) fn restrict(path: &Path, flags: MountFlags) -> Result<(), Errno> {
    let has = fs::statvfs(path)?.f_flag;
    let mut all = flags | MountFlags::BIND;
    for (theirs, ours) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        if has.contains(theirs) {
            all |= ours;
        }
    }
    mount::mount_remount(path, all, c"")
}

/// Opens the source of a bind mount. No symlink is followed in any component, so that none can be
/// swapped in after the caller's check (CVE-2024-1753, CVE-2024-23651).
fn open_source(source: &Bytes, inode: Option<(u64, u64)>) -> Result<(OwnedFd, Want)> {
    let shown = source.as_path().display();
    let doing = || format!("cannot open {shown} to mount it for RUN");
    if !source.0.starts_with(b"/") {
        return Err(Error::usage(format!(
            "the source of a mount must be an absolute path, not {shown}"
        )));
    }
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = fs::openat2(fs::CWD, source.as_path(), flags, Mode::empty(), resolve).doing(doing)?;
    let stat = fs::fstat(&fd).doing(doing)?;
    if inode.is_some_and(|checked| checked != (stat.st_dev, stat.st_ino)) {
        return Err(Error::failed(format!("{shown} was replaced while RUN was being prepared")));
    }
    let want = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Want::Directory,
        _ => Want::File,
    };
    Ok((fd, want))
}
