//! The protocol between controller and agent: JSON over HTTP/2, `POST /imgctl/v1/<name>`.
//!
//! The agent on a host always has the controller's version (it is uploaded by its digest), so these
//! types may change freely.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::image::{Descriptor, Digest};
use crate::render::Inputs;

/// Facts about a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) hostname: String,
    /// OCI architecture: `amd64`, `arm64`.
    pub(crate) architecture: String,
    /// `PRETTY_NAME` of os-release.
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    /// Global addresses of the host's interfaces.
    pub(crate) addresses: Vec<String>,
    /// The host's clock, in milliseconds since 1970. For the skew, see `Agent::facts`.
    pub(crate) time_ms: i64,
    /// The host's clock minus the controller's, in milliseconds, as precisely as the round trip
    /// allows.
    pub(crate) skew_ms: i64,
    /// Free bytes on the file system of the data root, and whether it is writable.
    pub(crate) free_bytes: u64,
    pub(crate) writable: bool,
    /// Whether systemd runs the host.
    pub(crate) systemd: bool,
    /// Path of bash, if it is installed.
    pub(crate) bash: Option<String>,
    pub(crate) cgroup_v2: bool,
    /// `/proc/sys/kernel/random/boot_id` and machine-id: used to detect two addresses of one
    /// machine.
    pub(crate) boot_id: String,
    pub(crate) machine_id: String,
    /// Container runtimes found on the host's search path: `containerd`, `dockerd`, `crio`, `k3s`.
    pub(crate) runtimes: Vec<String>,
    /// TCP ports with a listener.
    pub(crate) listening: Vec<u16>,
    /// Names of clusters that have a data directory on the host.
    pub(crate) clusters: Vec<String>,
}

/// Asks which of these blobs, trees and registry layers the host has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InventoryQuestion {
    /// `<data>/<cluster>`.
    pub(crate) root: String,
    pub(crate) blobs: Vec<Digest>,
    /// Registry layers that are expected to be applied to `<root>/registry`.
    pub(crate) registry_layers: Vec<Digest>,
    /// Names of trees below `<root>`: `rootfs`, `applications/x/workdir`.
    pub(crate) trees: Vec<String>,
}

/// Answer to [`InventoryQuestion`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Inventory {
    /// The requested blobs that the store holds completely.
    pub(crate) blobs: Vec<Digest>,
    /// The requested registry layers that are applied.
    pub(crate) registry_layers: Vec<Digest>,
    /// For each tree, the ID of the current one: the `id` of the [`Checkout`] that made it.
    pub(crate) trees: BTreeMap<String, String>,
    /// For each tree, the ids of all complete trees on the host, including the current one.
    #[serde(default)]
    pub(crate) made: BTreeMap<String, Vec<String>>,
    /// For each current tree, the diff IDs of the layers that it was made from, if the host's store
    /// still records them.
    #[serde(default)]
    pub(crate) layers: BTreeMap<String, Vec<Digest>>,
}

/// Address at which another host serves its blobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Addresses to try, in order.
    pub(crate) addresses: Vec<String>,
    pub(crate) port: u16,
    /// Valid for this offer only.
    pub(crate) token: String,
}

/// One layer of a checkout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CheckoutLayer {
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    /// Whether the layer holds only `registry/` (according to the descriptor's layer kind).
    pub(crate) registry: bool,
    /// Index of its image in [`Inputs::images`].
    pub(crate) image: usize,
}

/// Request to turn layers into a tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkout {
    /// `<data>/<cluster>`.
    pub(crate) root: String,
    /// `rootfs` or `applications/<name>/workdir`, below `root`. Becomes a link to `<tree>.<id>`.
    pub(crate) tree: String,
    /// Identifies the content: a digest over layers and inputs, computed by sync/.
    pub(crate) id: String,
    pub(crate) layers: Vec<CheckoutLayer>,
    /// Whether to apply the content of `registry/` to `<root>/registry`; otherwise it is skipped.
    pub(crate) registry: bool,
    pub(crate) inputs: Inputs,
    /// Number of former trees to keep beside the current one.
    pub(crate) keep: u32,
    /// Only makes the tree; the current one stays until [`SwitchTree`].
    #[serde(default)]
    pub(crate) stage: bool,
}

/// Request to make an existing tree the current one, which it may already be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SwitchTree {
    /// As in [`Checkout`].
    pub(crate) root: String,
    pub(crate) tree: String,
    pub(crate) id: String,
}

/// Request for a part of a file, for files that are too long for one answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadPart {
    pub(crate) path: String,
    pub(crate) offset: u64,
    /// Maximum number of bytes to read; fewer are returned only at the end of the file.
    pub(crate) length: u64,
}

/// A part of a file to write; the file is moved into place with the last part.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct WritePart {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) offset: u64,
    #[serde(with = "crate::agent::wire::base64_bytes")]
    pub(crate) content: Vec<u8>,
    pub(crate) is_last: bool,
}

/// Result of a checkout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CheckedOut {
    /// Whether anything was written.
    pub(crate) changed: bool,
    /// Files rendered from templates or changed by Config documents, relative to the tree.
    pub(crate) rendered: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// A command to run on a host.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Directory for the logs and outcomes of all keys: `<root>/runs`.
    pub(crate) directory: String,
    /// Identifies this execution; safe as a file name.
    pub(crate) key: String,
    /// A line for `bash -e -c`.
    pub(crate) line: String,
    pub(crate) workdir: Option<String>,
    /// Added to the agent's minimal environment; values may hold any text.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) input: Option<String>,
    pub(crate) timeout_seconds: Option<u64>,
    /// Discards the results of an earlier run of the key, and runs it again.
    pub(crate) again: bool,
}

impl std::fmt::Debug for Run {
    // Environment and input may contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("key", &self.key)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

/// A line of output (cut at 64 KiB; bytes that are not UTF-8 are replaced).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutputLine {
    pub(crate) text: String,
    pub(crate) error_stream: bool,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Exit code, or `None` if a signal, a timeout or a reboot ended the command.
    pub(crate) code: Option<i32>,
    /// Description if there is no exit code: `the host was rebooted while it ran`, `killed by
    /// signal 9`, `timed out after 600 s`.
    pub(crate) reason: Option<String>,
    pub(crate) duration_ms: u64,
    /// Whether the command had run before and was not run again.
    pub(crate) recalled: bool,
    /// Path of the log on the host.
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

/// The cluster's lines in the hosts file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HostsBlock {
    /// Identifies the block: one per cluster.
    pub(crate) cluster: String,
    /// Pairs of address and name, in order.
    pub(crate) entries: Vec<(String, String)>,
}
