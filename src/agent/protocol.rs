//! What controller and agent say to each other: JSON over HTTP/2, `POST /imgctl/v1/<name>`.
//!
//! The agent that runs on a host is always of the controller's own version (it is uploaded by its
//! digest), so these types may change freely.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::image::{Descriptor, Digest};
use crate::render::Inputs;

/// What a host is and has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) hostname: String,
    /// OCI's word: `amd64`, `arm64`.
    pub(crate) architecture: String,
    /// `PRETTY_NAME` of os-release.
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    /// Global addresses of its interfaces.
    pub(crate) addresses: Vec<String>,
    /// Its clock, milliseconds since 1970; and for the skew, see `Agent::facts`.
    pub(crate) time_ms: i64,
    /// Its clock minus ours in milliseconds, as far as the round trip lets us tell.
    pub(crate) skew_ms: i64,
    /// Free bytes where the data root is, and whether it can be written.
    pub(crate) free_bytes: u64,
    pub(crate) writable: bool,
    /// Whether systemd is its first process.
    pub(crate) systemd: bool,
    /// Where bash is, if there is one.
    pub(crate) bash: Option<String>,
    pub(crate) cgroup_v2: bool,
    /// `/proc/sys/kernel/random/boot_id` and machine-id: two addresses of one machine are found by them.
    pub(crate) boot_id: String,
    pub(crate) machine_id: String,
    /// Programs of container runtimes that are on its PATH: `containerd`, `dockerd`, `crio`, `k3s`.
    pub(crate) runtimes: Vec<String>,
    /// TCP ports that something listens on.
    pub(crate) listening: Vec<u16>,
    /// Names of clusters that have a data directory here.
    pub(crate) clusters: Vec<String>,
}

/// Which blobs, tree and registry layers are asked about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InventoryQuestion {
    /// `<data>/<cluster>`.
    pub(crate) root: String,
    pub(crate) blobs: Vec<Digest>,
    /// Registry layers that should have been applied to `<root>/registry`.
    pub(crate) registry_layers: Vec<Digest>,
    /// Names of trees below `<root>`: `rootfs`, `applications/x/workdir`.
    pub(crate) trees: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Inventory {
    /// Those of the blobs that the store holds whole.
    pub(crate) blobs: Vec<Digest>,
    /// Those registry layers that are applied.
    pub(crate) registry_layers: Vec<Digest>,
    /// For each tree that is there, the `id` of the [`Checkout`] that made it.
    pub(crate) trees: BTreeMap<String, String>,
    /// For each tree, all that were made and are there, the current one among them.
    #[serde(default)]
    pub(crate) made: BTreeMap<String, Vec<String>>,
    /// For each current tree, the diff-ids of the layers that it was made from, where the host's
    /// store still knows them.
    #[serde(default)]
    pub(crate) layers: BTreeMap<String, Vec<Digest>>,
}

/// Where another host serves its blobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Addresses to try, in order.
    pub(crate) addresses: Vec<String>,
    pub(crate) port: u16,
    /// Good for this offer only.
    pub(crate) token: String,
}

/// One layer of a checkout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CheckoutLayer {
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    /// It holds `registry/` alone (the descriptor's layer kind says so).
    pub(crate) registry: bool,
    /// Which of [`Inputs::images`] it belongs to.
    pub(crate) image: usize,
}

/// Layers to one tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkout {
    /// `<data>/<cluster>`.
    pub(crate) root: String,
    /// `rootfs` or `applications/<name>/workdir`, below `root`: becomes a link to `<tree>.<id>`.
    pub(crate) tree: String,
    /// Names the content: a digest over layers and inputs, made by sync/.
    pub(crate) id: String,
    pub(crate) layers: Vec<CheckoutLayer>,
    /// Apply what lies under `registry/` to `<root>/registry`; else leave it out.
    pub(crate) registry: bool,
    pub(crate) inputs: Inputs,
    /// How many former trees to keep beside the current one.
    pub(crate) keep: u32,
    /// Only make the tree: what is current stays, until [`SwitchTree`].
    #[serde(default)]
    pub(crate) stage: bool,
}

/// Make a tree that lies there the current one; it may be it already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SwitchTree {
    /// As in [`Checkout`].
    pub(crate) root: String,
    pub(crate) tree: String,
    pub(crate) id: String,
}

/// A part of a file, for those that are too long for one answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadPart {
    pub(crate) path: String,
    pub(crate) offset: u64,
    /// At most so many bytes; fewer only at the file's end.
    pub(crate) length: u64,
}

/// A part of a file that is being written: it is in its place when the last part is.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct WritePart {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) offset: u64,
    #[serde(with = "crate::agent::wire::base64_bytes")]
    pub(crate) content: Vec<u8>,
    pub(crate) is_last: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CheckedOut {
    /// Whether anything was written.
    pub(crate) changed: bool,
    /// Files made from templates and changed by Config documents, relative to the tree.
    pub(crate) rendered: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// A command to run on a host.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Where logs and outcomes of keys are kept: `<root>/runs`.
    pub(crate) directory: String,
    /// Names this one execution; file-name safe.
    pub(crate) key: String,
    /// A line for `bash -e -c`.
    pub(crate) line: String,
    pub(crate) workdir: Option<String>,
    /// Added to the agent's minimal environment; values may hold any text.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) input: Option<String>,
    pub(crate) timeout_seconds: Option<u64>,
    /// Forget what an earlier run of the key left and run it anew.
    pub(crate) again: bool,
}

impl std::fmt::Debug for Run {
    // Environment and input hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("key", &self.key)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

/// A line a command wrote (cut at 64 KiB; not UTF-8 is replaced).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutputLine {
    pub(crate) text: String,
    pub(crate) error_stream: bool,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Exit code; `None` when a signal, a timeout or a reboot ended it.
    pub(crate) code: Option<i32>,
    /// In words when it was no exit code: `killed by signal 9`, `timed out after 600 s`,
    /// `the host was rebooted while it ran`.
    pub(crate) reason: Option<String>,
    pub(crate) duration_ms: u64,
    /// It had run before and was not run again.
    pub(crate) recalled: bool,
    /// Where the whole output is on the host.
    pub(crate) log: String,
}

/// A file to write on a host.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct FileToWrite {
    pub(crate) path: String,
    pub(crate) mode: u32,
    #[serde(with = "crate::agent::wire::base64_bytes")]
    pub(crate) content: Vec<u8>,
}

impl std::fmt::Debug for FileToWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FileToWrite({}, {} bytes)",
            self.path,
            self.content.len()
        )
    }
}

/// Our lines in the hosts file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HostsBlock {
    /// Names the block: one per cluster.
    pub(crate) cluster: String,
    /// Address and name, in order.
    pub(crate) entries: Vec<(String, String)>,
}
