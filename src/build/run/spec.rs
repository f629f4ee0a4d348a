//! What a `RUN` step asks of the sandbox and what it gets back: plain values that travel between
//! our processes as JSON. Knows nothing of how a sandbox is made.

use crate::mount::OverlaySpec;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that name something or are content: paths, arguments, variables, secrets. In JSON each
/// byte is the character of its value (U+0000 to U+00FF), which needs no escape scheme for names
/// that are not UTF-8. `Debug` shows only the length, so that a secret does not land in a log.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    /// The bytes as a name for the operating system.
    pub(crate) fn as_os(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// The bytes as a path.
    pub(crate) fn as_path(&self) -> &Path {
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

/// Everything that one sandboxed command needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    /// The directory that becomes `/`; an absolute path without symbolic links.
    pub(crate) rootfs: Bytes,
    /// What is attached at `rootfs`, in the sandbox's own mount namespace, before it becomes `/`.
    #[serde(default)]
    pub(crate) overlay: Option<OverlaySpec>,
    /// The command. `argv[0]` without a slash is looked up in the `PATH` of `env`.
    pub(crate) argv: Vec<Bytes>,
    /// The whole environment: nothing of ours is inherited. A later pair wins.
    pub(crate) env: Vec<(Bytes, Bytes)>,
    /// The working directory, inside the root; it must exist.
    pub(crate) cwd: Bytes,
    /// Whom the command runs as, in ids of the image.
    pub(crate) user: Identity,
    /// Which network it sees.
    pub(crate) network: Network,
    /// Further mounts, made in this order.
    pub(crate) mounts: Vec<SandboxMount>,
    /// The host name inside; also the content of `/etc/hostname`.
    pub(crate) hostname: String,
    /// Content of `/etc/resolv.conf`, bound read-only; `None` leaves the image's own. A network
    /// helper that brings its own name server replaces the `nameserver` lines.
    pub(crate) resolv_conf: Option<Bytes>,
    /// Content of `/etc/hosts`, bound read-only; `None` leaves the image's own.
    pub(crate) hosts: Option<Bytes>,
    /// Resource limits on top of the defaults.
    pub(crate) limits: Vec<Limit>,
    /// How far the command is confined.
    pub(crate) security: Security,
    /// What the command reads on its standard input; `None` is `/dev/null`.
    pub(crate) stdin: Option<Bytes>,
}

/// User, group and supplementary groups, as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The user id.
    pub(crate) uid: u32,
    /// The primary group id.
    pub(crate) gid: u32,
    /// The supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// Which network a command sees (`RUN --network`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Network {
    /// A loopback interface and nothing else.
    None,
    /// The network of this machine, with everything that listens on it.
    Host,
    /// A network of its own, connected through a user-mode helper when one is installed.
    Default,
}

/// How far a command is confined (`RUN --security`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Security {
    /// Docker's default capabilities and seccomp profile, masked `/proc`, no devices, and
    /// `no_new_privs`.
    Sandbox,
    /// All capabilities, no filter, nothing masked. Only for those who were granted it on the
    /// command line.
    Insecure,
}

/// A mount inside the sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxMount {
    /// Where, inside the root; made if it is missing, and then unmade afterwards.
    pub(crate) target: Bytes,
    /// What.
    pub(crate) kind: MountKind,
}

/// What is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum MountKind {
    /// A file, directory or socket of this machine.
    Bind {
        /// An absolute path in which no component is a symbolic link, and not below `rootfs`.
        source: Bytes,
        /// Whether writing is refused.
        read_only: bool,
        /// Device and inode that the caller checked: something else there is an error.
        inode: Option<(u64, u64)>,
    },
    /// An empty file system in memory.
    Tmpfs {
        /// Its greatest size in bytes; `None` is the kernel's default, half of the memory.
        size: Option<u64>,
        /// The permission bits of its root.
        mode: u32,
    },
    /// A read-only file with this content, kept in memory only: a secret.
    File {
        /// What the file holds.
        content: Bytes,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// One resource limit (`--ulimit`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// Which.
    pub(crate) resource: Resource,
    /// The soft limit; `None` is unlimited.
    pub(crate) soft: Option<u64>,
    /// The hard limit; `None` is unlimited.
    pub(crate) hard: Option<u64>,
}

/// The resources that can be limited, in the units of setrlimit(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Resource {
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

/// How a command ended and what the sandbox has to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitOutcome {
    /// The exit status.
    pub(crate) exit: Exit,
    /// Why the command could not be started, when that is what happened (exit code 126 or 127).
    pub(crate) message: Option<String>,
    /// What a user should know, such as that there was no network.
    pub(crate) notes: Vec<String>,
    /// Mount points that were missing in the root. They have been removed again; the
    /// directories above them may still be in an overlay's upper directory, with the metadata
    /// they had, and are no change of the step's.
    pub(crate) created_stubs: Vec<Stub>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

/// A mount point that the sandbox made in the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stub {
    /// The path below the root, without a leading slash and without symbolic links.
    pub(crate) path: Bytes,
    /// A directory, else an empty file.
    pub(crate) directory: bool,
    /// The inode number of a file; 0 for directories, whose numbers overlayfs does not keep.
    pub(crate) inode: u64,
    /// Modification time of the parent directory before (seconds, nanoseconds).
    pub(crate) parent_before: (i64, i64),
    /// And right after the stub was made: if it is still this when the stub is removed, then
    /// nobody else has changed the directory.
    pub(crate) parent_after: (i64, i64),
}

/// Where a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
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
