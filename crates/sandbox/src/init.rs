//! `__sandbox-init`: pid 1 of the sandbox until it becomes the command. Creates the root, enters
//! it, drops privileges and executes the command. Security depends on the order of these steps.

use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::unistd::{Gid, Uid};
use rustix::fs::{Access, AtFlags, FileType, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::process::{Rlimit, setrlimit};

use super::emulator::{self, Emulator};
use super::spec::{Bytes, Limit, Resource, RunSpec, Security, Stub};
use super::wire::{self, Event, Go};
use super::{process, root, seccomp};
use imgctl_base::error::{Error, IoContext, Result};

/// Value of `PATH` if the image sets none (same as Docker's).
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Becomes the command of the spec read from standard input.
pub(super) fn main() -> Result<()> {
    let mut supervisor = process::start()?;
    let Some(spec) = wire::receive::<RunSpec>(&mut supervisor)? else {
        return Ok(());
    };
    let mut stubs = Vec::new();
    let prepared = prepare(&spec, &mut stubs);
    if let Err(error) = &prepared {
        return wire::send(&mut supervisor, &Event::Failed { failure: error.into(), stubs });
    }
    wire::send(&mut supervisor, &Event::Ready { stubs })?;
    if wire::receive::<Go>(&mut supervisor)?.is_none() {
        return Ok(());
    }
    let emulators = prepared.unwrap_or_default();
    execute(&spec, emulators.as_deref(), supervisor)
}

/// Prepares the process; returns the emulators that the kernel knows.
fn prepare(spec: &RunSpec, stubs: &mut Vec<Stub>) -> Result<Option<Vec<Emulator>>> {
    // Without a controlling terminal, nothing can be typed into the host's shell (TIOCSTI).
    nix::unistd::setsid().doing(|| "cannot start a session".to_owned())?;
    let emulators = emulator::registered();
    root::enter(spec, stubs)?;
    let stdin = stdin_of(spec)?;
    rustix::system::sethostname(spec.hostname.as_bytes())
        .doing(|| format!("cannot set the host name {}", spec.hostname))?;
    limit(&spec.limits)?;
    change_directory(&spec.cwd)?;
    process::put_stdin(&stdin)?;
    become_user(spec)?;
    process::die_with_parent()?;
    Ok(emulators)
}

/// Returns the command's standard input: a memory-backed file, so that no process has to feed it.
fn stdin_of(spec: &RunSpec) -> Result<OwnedFd> {
    let Some(content) = &spec.stdin else {
        let null = std::fs::File::open("/dev/null").path("open", "/dev/null")?;
        return Ok(null.into());
    };
    let doing = || "cannot store the script of the RUN step in memory".to_owned();
    let fd = rustix::fs::memfd_create("stdin", MemfdFlags::CLOEXEC).doing(doing)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(&content.0).doing(doing)?;
    file.rewind().doing(doing)?;
    Ok(file.into())
}

/// Sets resource limits. The defaults are those of containerd: a high hard limit of open files for
/// programs that raise it, a low soft limit for programs that iterate over all descriptors; no core
/// dumps in layers.
fn limit(limits: &[Limit]) -> Result<()> {
    let inherited = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let most = inherited.map_or(524_288, |hard| hard.min(524_288));
    let defaults = [
        Limit { resource: Resource::OpenFiles, soft: Some(most.min(1024)), hard: Some(most) },
        Limit { resource: Resource::Core, soft: Some(0), hard: None },
    ];
    for (index, limit) in defaults.iter().chain(limits).enumerate() {
        let resource = native(limit.resource);
        let mut wanted = Rlimit { current: limit.soft, maximum: limit.hard };
        if index < defaults.len() && wanted.maximum.is_none() {
            wanted.maximum = rustix::process::getrlimit(resource).maximum;
        }
        setrlimit(resource, wanted)
            .doing(|| format!("cannot set the limit {:?} of the RUN step", limit.resource))?;
    }
    Ok(())
}

fn native(resource: Resource) -> rustix::process::Resource {
    use rustix::process::Resource as Native;
    match resource {
        Resource::AddressSpace => Native::As,
        Resource::Core => Native::Core,
        Resource::Cpu => Native::Cpu,
        Resource::Data => Native::Data,
        Resource::FileSize => Native::Fsize,
        Resource::LockedMemory => Native::Memlock,
        Resource::OpenFiles => Native::Nofile,
        Resource::Processes => Native::Nproc,
        Resource::Stack => Native::Stack,
    }
}

/// Enters the working directory. Magic links are rejected: through `/proc/self/fd/N`, a directory
/// name can lead out of the root (CVE-2024-21626).
fn change_directory(cwd: &Bytes) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT;
    let path = if cwd.0.is_empty() { Bytes::from("/") } else { cwd.clone() };
    let shown = path.as_path().display().to_string();
    let root = rustix::fs::open("/", flags, Mode::empty()).path("open", "/")?;
    rustix::fs::openat2(&root, path.as_path(), flags, Mode::empty(), resolve)
        .and_then(|directory| rustix::process::fchdir(&directory))
        .doing(|| format!("cannot enter the working directory {shown} of the RUN step"))
}

/// Changes user, groups and capabilities permanently.
fn become_user(spec: &RunSpec) -> Result<()> {
    let user = &spec.user;
    let insecure = spec.security == Security::Insecure;
    if !insecure {
        seccomp::bound()?;
    }
    let doing = || format!("cannot become user {}:{}", user.uid, user.gid);
    let with_hint = |error: Error| {
        error.hint(
            "as an ordinary user, IDs other than 0 need ranges in /etc/subuid and \
                    /etc/subgid and the newuidmap program (Debian: uidmap)",
        )
    };
    own_standard_streams(user.uid);
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // The primary group is among the supplementary ones: otherwise a set-group-ID program would drop
    // it, and with it a permission that denies this group something (CVE-2023-25173).
    let mut groups: Vec<Gid> = vec![gid];
    groups.extend(user.groups.iter().copied().map(Gid::from_raw).filter(|group| *group != gid));
    // Where the kernel denies setgroups (a user namespace with a single ID), the supplementary
    // groups are the invoking user's own.
    let forbidden =
        std::fs::read("/proc/self/setgroups").is_ok_and(|text| text.starts_with(b"deny"));
    if !(forbidden && groups.len() == 1) {
        nix::unistd::setgroups(&groups).doing(doing).map_err(with_hint)?;
    }
    nix::unistd::setresgid(gid, gid, gid).doing(doing).map_err(with_hint)?;
    nix::unistd::setresuid(uid, uid, uid).doing(doing).map_err(with_hint)?;
    seccomp::set(user.uid == 0, insecure)
}

/// Changes the owner of the pipes and the script behind descriptors 0 to 2 to the command's user,
/// who could not reopen them as `/dev/stdout` otherwise. Never changes a device, which belongs to
/// the host.
#[expect(clippy::disallowed_methods, reason = "the descriptors, nothing is written")]
fn own_standard_streams(uid: u32) {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    for stream in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
        let ours = rustix::fs::fstat(stream).is_ok_and(|stat| {
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => true,
                // A memory-backed file has no name.
                FileType::RegularFile => stat.st_nlink == 0,
                _ => false,
            }
        });
        if ours {
            // If the ID is not mapped, changing to it fails next and reports the error.
            let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None);
        }
    }
}

/// Replaces this process with the command. Returns only if that fails, after reporting why. The
/// exit codes are those of a shell: 127 for a missing command, 126 for one that cannot run. As in a
/// shell, a file in a format unknown to the kernel is run by `/bin/sh`.
fn execute(
    spec: &RunSpec,
    emulators: Option<&[Emulator]>,
    mut supervisor: UnixStream,
) -> Result<()> {
    let found = find(spec).and_then(|program| match emulator::check(&program, emulators) {
        Some(why) => Err((126, why)),
        None => Ok(program),
    });
    let (code, why) = match found {
        Err(refusal) => refusal,
        Ok(program) => {
            if spec.security == Security::Sandbox
                && let Err(error) = seccomp::install()
            {
                let failure = (&error).into();
                return wire::send(&mut supervisor, &Event::Failed { failure, stubs: Vec::new() });
            }
            let mut command = Command::new(&program);
            if let Some((first, rest)) = spec.argv.split_first() {
                command.arg0(first.as_os()).args(rest.iter().map(Bytes::as_os));
            }
            command.env_clear();
            command.envs(spec.env.iter().map(|(name, value)| (name.as_os(), value.as_os())));
            explain(&program.display().to_string(), &command.exec())
        }
    };
    wire::send(&mut supervisor, &Event::NotStarted(why))?;
    end(code)
}

/// Exits with a code that [`super::entry`] does not use.
#[expect(
    clippy::exit,
    reason = "this is the command's exit code, not ours; there is nothing to unwind"
)]
fn end(code: i32) -> Result<()> {
    std::process::exit(code)
}

/// Resolves `argv[0]` to a program inside the root.
fn find(spec: &RunSpec) -> Result<PathBuf, (i32, String)> {
    let name = spec.argv.first().filter(|name| !name.0.is_empty());
    let name = name.ok_or((127, "there is no command to run".to_owned()))?;
    if name.0.contains(&b'/') {
        return Ok(name.as_path().to_path_buf());
    }
    let path = spec.env.iter().rev().find(|(key, _)| key.0 == b"PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| &value.0);
    let mut forbidden = None;
    for directory in path.split(|&byte| byte == b':') {
        let directory = if directory.is_empty() { b".".as_slice() } else { directory };
        let candidate = PathBuf::from(std::ffi::OsStr::from_bytes(directory)).join(name.as_path());
        if !is_file(&candidate) {
            continue;
        }
        if rustix::fs::accessat(rustix::fs::CWD, &candidate, Access::EXEC_OK, AtFlags::empty())
            .is_ok()
        {
            return Ok(candidate);
        }
        forbidden.get_or_insert(candidate);
    }
    let shown = name.as_path().display();
    Err(match forbidden {
        Some(file) => (126, format!("cannot run {}: it is not executable", file.display())),
        None => (
            127,
            format!(
                "command not found: {shown} (PATH in the image is {})",
                String::from_utf8_lossy(path)
            ),
        ),
    })
}

fn is_file(path: &std::path::Path) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

fn explain(program: &str, error: &io::Error) -> (i32, String) {
    match error.kind() {
        io::ErrorKind::NotFound if is_file(program.as_ref()) => (
            127,
            format!("cannot run {program}: its interpreter or dynamic loader is not in the image"),
        ),
        io::ErrorKind::NotFound if program == "/bin/sh" => {
            (127, "the image has no /bin/sh: RUN with a JSON array needs no shell".to_owned())
        }
        io::ErrorKind::NotFound => (127, format!("command not found: {program}")),
        _ => (126, format!("cannot run {program}: {error}")),
    }
}
