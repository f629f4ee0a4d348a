//! Input and output of the sandbox for a `RUN` step: plain values that our processes exchange as
//! JSON. Does not know how a sandbox is made.

use imgctl_store::mount::OverlaySpec;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of names or content: paths, arguments, variables, secrets. In JSON, each byte becomes the
/// character with its value (U+0000 to U+00FF), so that names which are not UTF-8 need no escaping.
/// `Debug` shows only the length, so that secrets do not end up in logs.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Returns the bytes as an operating system string.
    pub fn as_os(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Returns the bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_os())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<OsString> for Bytes {
    fn from(name: OsString) -> Self {
        Self(name.into_vec())
    }
}

impl From<PathBuf> for Bytes {
    fn from(path: PathBuf) -> Self {
        path.into_os_string().into()
    }
}

impl From<&Path> for Bytes {
    fn from(path: &Path) -> Self {
        path.to_path_buf().into()
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|&byte| char::from(byte)).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.chars()
            .map(|c| u8::try_from(u32::from(c)))
            .collect::<Result<Vec<u8>, _>>()
            .map(Self)
            .map_err(|_| D::Error::custom("a byte string has a character above U+00FF"))
    }
}

/// Complete description of one sandboxed command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunSpec {
    /// The directory that becomes `/`; an absolute path without symbolic links.
    pub rootfs: Bytes,
    /// Overlay attached at `rootfs`, in the sandbox's own mount namespace, before it becomes `/`.
    #[serde(default)]
    pub overlay: Option<OverlaySpec>,
    /// The command. `argv[0]` without a slash is looked up in the `PATH` of `env`.
    pub argv: Vec<Bytes>,
    /// The complete environment: nothing is inherited. A later pair takes precedence.
    pub env: Vec<(Bytes, Bytes)>,
    /// The working directory, inside the root; it must exist.
    pub cwd: Bytes,
    /// User that runs the command, in IDs of the image.
    pub user: Identity,
    /// Network that the command sees.
    pub network: Network,
    /// Additional mounts, made in this order.
    pub mounts: Vec<SandboxMount>,
    /// Host name inside. `/etc/hostname` is the image's.
    pub hostname: String,
    /// Content of `/etc/resolv.conf`, bound read-only; `None` keeps the image's own. A network
    /// helper with its own name server replaces the `nameserver` lines.
    pub resolv_conf: Option<Bytes>,
    /// Content of `/etc/hosts`, bound read-only; `None` keeps the image's own.
    pub hosts: Option<Bytes>,
    /// Resource limits in addition to the defaults.
    pub limits: Vec<Limit>,
    /// Degree of confinement.
    pub security: Security,
    /// Content of standard input; `None` means `/dev/null`.
    pub stdin: Option<Bytes>,
}

/// User, group and supplementary groups, as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user ID.
    pub uid: u32,
    /// The primary group ID.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// Network of a command (`RUN --network`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Only a loopback interface.
    None,
    /// The network of this machine, including everything that listens on it.
    Host,
    /// A private network, connected through a user-mode helper if one is installed.
    Default,
}

/// Confinement of a command (`RUN --security`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Security {
    /// Docker's default capabilities and seccomp profile, masked `/proc`, no devices, and
    /// `no_new_privs`.
    Sandbox,
    /// All capabilities, no filter, nothing masked. Must have been allowed on the command line.
    Insecure,
}

/// A mount inside the sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxMount {
    /// Mount point inside the root; created if it is missing, and removed afterwards.
    pub target: Bytes,
    /// Type and source of the mount.
    pub kind: MountKind,
}

/// Type of a mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MountKind {
    /// A file, directory or socket of this machine.
    Bind {
        /// Absolute path without symbolic links, not below `rootfs`.
        source: Bytes,
        /// Whether the mount is read-only.
        read_only: bool,
        /// Device and inode that the caller checked; any others are an error.
        inode: Option<(u64, u64)>,
    },
    /// An empty tmpfs.
    Tmpfs {
        /// Maximum size in bytes; `None` is the kernel's default, half of the memory.
        size: Option<u64>,
        /// Permission bits of its root directory.
        mode: u32,
        #[serde(default)]
        read_only: bool,
    },
    /// A read-only file with this content, kept only in memory: a secret.
    File {
        /// Content of the file.
        content: Bytes,
        /// Permission bits of the file.
        mode: u32,
        /// Owner of the file.
        uid: u32,
        /// Group of the file.
        gid: u32,
    },
}

/// One resource limit (`--ulimit`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The limited resource.
    pub resource: Resource,
    /// The soft limit; `None` means unlimited.
    pub soft: Option<u64>,
    /// The hard limit; `None` means unlimited.
    pub hard: Option<u64>,
}

/// Resources that can be limited, in the units of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    /// Address space, bytes.
    AddressSpace,
    /// Core dump size, bytes.
    Core,
    /// CPU time, seconds.
    Cpu,
    /// Data segment, bytes.
    Data,
    /// File size, bytes.
    FileSize,
    /// Locked memory, bytes.
    LockedMemory,
    /// Open files.
    OpenFiles,
    /// Processes of the user.
    Processes,
    /// Stack, bytes.
    Stack,
}

/// How a command ended, and messages of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitOutcome {
    /// The exit status.
    pub exit: Exit,
    /// Why the command could not be started, if it could not (exit code 126 or 127).
    pub message: Option<String>,
    /// Notes for the user, for example that there was no network.
    pub notes: Vec<String>,
    /// Mount points that were missing in the root. They have been removed again. Their parent
    /// directories may remain in an overlay's upper directory with unchanged metadata, and do not
    /// count as changes by the step.
    pub created_stubs: Vec<Stub>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The command exited with this code.
    Code(i32),
    /// The command was killed by this signal.
    Signal(i32),
}

/// A mount point that the sandbox created in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    /// Path below the root, without a leading slash and without symbolic links.
    pub path: Bytes,
    /// Whether it is a directory; otherwise it is an empty file.
    pub directory: bool,
    /// Inode number of a file; 0 for directories, because overlayfs does not keep their numbers.
    pub inode: u64,
    /// Modification time of the parent directory before the stub was created (seconds,
    /// nanoseconds).
    pub parent_before: (i64, i64),
    /// Modification time right after that. If it is unchanged when the stub is removed, no other
    /// process has changed the directory.
    pub parent_after: (i64, i64),
}

/// Source of a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_json_and_debug_hides_it() {
        let all = Bytes((0..=255).collect());
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap(), all);
        assert_eq!(format!("{all:?}"), "256 bytes");
        assert!(serde_json::from_str::<Bytes>("\"\u{100}\"").is_err());
    }
}
