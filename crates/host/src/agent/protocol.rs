//! The protocol between controller and agent: JSON over HTTP/2, `POST /imgctl/v1/<name>`.
//!
//! The agent on a host always has the controller's version (it is uploaded by its digest), so these
//! types may change freely.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::render::{Inputs, Mentions};
use imgctl_base::error::{IoContext, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_registry::client::access::Access;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub hostname: String,
    /// OCI architecture: `amd64`, `arm64`.
    pub architecture: String,
    /// `PRETTY_NAME` of os-release.
    pub system: String,
    pub kernel: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Global addresses of the host's interfaces.
    pub addresses: Vec<String>,
    /// The host's clock, in milliseconds since 1970. For the skew, see `Agent::facts`.
    pub time_ms: i64,
    /// The host's clock minus the controller's, in milliseconds, as precisely as the round trip
    /// allows.
    pub skew_ms: i64,
    /// Free bytes on the file system of the data root, and whether it is writable.
    pub free_bytes: u64,
    pub writable: bool,
    /// What keeps files from being written where a cluster needs them, each as a sentence.
    #[serde(default)]
    pub obstacles: Vec<String>,
    /// Whether systemd runs the host.
    pub systemd: bool,
    /// Path of bash, if it is installed.
    pub bash: Option<String>,
    pub cgroup_v2: bool,
    /// `/proc/sys/kernel/random/boot_id` and machine-id: used to detect two addresses of one
    /// machine.
    pub boot_id: String,
    pub machine_id: String,
    /// Container runtimes found on the host's search path: `containerd`, `dockerd`, `crio`, `k3s`.
    pub runtimes: Vec<String>,
    /// TCP ports with a listener.
    pub listening: Vec<u16>,
    /// Names of clusters that have a data directory on the host.
    pub clusters: Vec<String>,
    /// UIDs of the clusters that the host belongs to, by name: what [`UID_FILE`] says.
    #[serde(default)]
    pub cluster_uids: BTreeMap<String, String>,
    /// machine-ids that the host had when it joined these clusters, by name: what [`MACHINE_FILE`] says.
    #[serde(default)]
    pub cluster_machines: BTreeMap<String, String>,
    /// Names of clusters whose rootfs is on the host.
    #[serde(default)]
    pub cluster_trees: Vec<String>,
    /// Blocks of the hosts file by the names of clusters, see [`HostsBlock`]; `None` if the file cannot
    /// be read.
    #[serde(default)]
    pub hosts_blocks: Option<BTreeMap<String, Vec<HostsEntry>>>,
}

/// File below a cluster's data directory with the cluster's UID.
pub const UID_FILE: &str = "uid";
/// File beside it with the machine-id of the host, because data can outlive the system that wrote it.
pub const MACHINE_FILE: &str = "machine-id";

/// Asks which of these blobs, trees and registry layers the host has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InventoryQuestion {
    /// `<data>/<cluster>`.
    pub root: String,
    pub blobs: Vec<Digest>,
    /// Registry layers that are expected to be applied to `<root>/registry`.
    pub registry_layers: Vec<Digest>,
    /// Names of trees below `<root>`: `rootfs`, `applications/x/workdir`.
    pub trees: Vec<String>,
    /// Blobs that `<root>/registry` may have.
    #[serde(default)]
    pub registry_files: Vec<Digest>,
}

/// Answer to [`InventoryQuestion`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// The requested blobs that the store holds completely.
    pub blobs: Vec<Digest>,
    /// The requested registry layers that are applied.
    pub registry_layers: Vec<Digest>,
    /// For each tree, the ID of the current one: the `id` of the [`Checkout`] that made it.
    pub trees: BTreeMap<String, String>,
    /// For each tree, the ids of all complete trees on the host, including the current one.
    #[serde(default)]
    pub made: BTreeMap<String, Vec<String>>,
    /// For each current tree, what it was made from.
    #[serde(default)]
    pub made_from: BTreeMap<String, MadeFrom>,
    /// For each current tree, the diff IDs of the layers that it was made from, if the host's store
    /// still records them.
    #[serde(default)]
    pub layers: BTreeMap<String, Vec<Digest>>,
    /// The layers of the current trees that the host's store still has.
    #[serde(default)]
    pub held: Vec<HeldLayer>,
    /// The requested blobs that `<root>/registry` has.
    #[serde(default)]
    pub registry_files: Vec<Digest>,
}

/// What a tree was made from, as far as it affects the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeFrom {
    /// What the templates of the tree can see of the inputs.
    pub mentions: Mentions,
    /// Digest of the layers and of those inputs: see [`MadeFrom::digest_of`].
    pub digest: String,
}

impl MadeFrom {
    /// Describes the tree of `request`, whose templates have these `mentions`.
    pub fn of(request: &Checkout, mentions: Mentions) -> Result<Self> {
        let digest = Self::digest_of(request, &mentions)?;
        Ok(Self { mentions, digest })
    }

    /// Reports whether `request` would make the same tree again, whatever its ID.
    pub fn is_same(&self, request: &Checkout) -> Result<bool> {
        Ok(Self::digest_of(request, &self.mentions)? == self.digest)
    }

    fn digest_of(request: &Checkout, mentions: &Mentions) -> Result<String> {
        let layers = request.layers.iter().filter(|layer| !layer.registry);
        let layers: Vec<(&Digest, usize)> =
            layers.map(|layer| (&layer.diff_id, layer.image)).collect();
        let seen = mentions.restrict(&request.inputs);
        let parts = (MADE_FROM_FORMAT, &request.tree, layers, request.registry, seen);
        let text = serde_json::to_vec(&parts).doing(|| "cannot describe a tree".to_owned())?;
        Ok(Digest::of(&text).hex().to_owned())
    }
}

/// Part of every digest: a new format recreates trees.
const MADE_FROM_FORMAT: u32 = 1;

/// A layer in a host's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLayer {
    pub descriptor: Descriptor,
    pub diff_id: Digest,
}

/// Request to make a layer out of what the host has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assemble {
    /// The layer to make.
    pub blob: Descriptor,
    /// The recipe, a blob in the host's store.
    pub recipe: Descriptor,
    /// `<data>/<cluster>`, whose registry the recipe may refer to.
    pub root: String,
}

/// Request to bring a layer from a registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistryPull {
    /// Repositories that may have it, in order. They contain credentials, which the host keeps in
    /// memory until the call ends.
    pub from: Vec<Access>,
    pub blob: Descriptor,
    /// Layers on the host that may share parts with it.
    pub held: Vec<Descriptor>,
}

/// Address at which another host serves its blobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerSource {
    /// Addresses to try, in order.
    pub addresses: Vec<String>,
    pub port: u16,
    /// Valid for this offer only.
    pub token: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckoutLayer {
    pub descriptor: Descriptor,
    pub diff_id: Digest,
    /// Whether the layer holds only `registry/` (according to the descriptor's layer kind).
    pub registry: bool,
    /// Index of its image in [`Inputs::images`].
    pub image: usize,
}

/// Request to turn layers into a tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkout {
    /// `<data>/<cluster>`.
    pub root: String,
    /// `rootfs` or `applications/<name>/workdir`, below `root`. Becomes a link to `<tree>.<id>`.
    pub tree: String,
    /// Identifies the content: a digest over layers and inputs, computed by sync/.
    pub id: String,
    pub layers: Vec<CheckoutLayer>,
    /// Whether to apply the content of `registry/` to `<root>/registry`; otherwise it is skipped.
    pub registry: bool,
    pub inputs: Inputs,
    /// Number of former trees to keep beside the current one.
    pub keep: u32,
    /// Only makes the tree; the current one stays until [`SwitchTree`].
    #[serde(default)]
    pub stage: bool,
}

/// Request to make an existing tree the current one, which it may already be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchTree {
    /// As in [`Checkout`].
    pub root: String,
    pub tree: String,
    pub id: String,
}

/// Request for a part of a file, for files that are too long for one answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadPart {
    pub path: String,
    pub offset: u64,
    /// Maximum number of bytes to read; fewer are returned only at the end of the file.
    pub length: u64,
    /// Return the part as a zstd frame; behind the end of the file, return nothing.
    pub compress: bool,
}

/// Claim of a host for a cluster. Of several at the same time, one succeeds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Directory with a directory for each cluster that has files on the host.
    pub data: String,
    pub cluster: String,
    /// UID of the cluster.
    pub uid: String,
    /// Clusters and UIDs that the host may have: those that it had when it was asked.
    pub known: BTreeMap<String, String>,
}

/// Answer to a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claimed {
    Ours,
    /// Another cluster was faster: its name and UID.
    Taken(String, String),
}

/// Request for the SHA-256 digest of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileDigest {
    pub path: String,
}

/// A part of a file to write; the file is moved into place with the last part.
#[derive(Clone, Serialize, Deserialize)]
pub struct WritePart {
    pub path: String,
    pub mode: u32,
    pub offset: u64,
    /// Sent behind the JSON of the call.
    #[serde(skip)]
    pub content: Vec<u8>,
    /// Whether the content is a zstd frame.
    pub compressed: bool,
    pub is_last: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckedOut {
    /// Whether anything was written.
    pub changed: bool,
    /// Files rendered from templates or changed by Config documents, relative to the tree.
    pub rendered: Vec<String>,
    pub notes: Vec<String>,
}

/// A command to run on a host.
#[derive(Clone, Serialize, Deserialize)]
pub struct Run {
    /// Directory for the logs and outcomes of all keys: `<root>/runs`.
    pub directory: String,
    /// Identifies this execution; safe as a file name.
    pub key: String,
    /// A line for `bash -e -c`.
    pub line: String,
    pub workdir: Option<String>,
    /// Added to the agent's minimal environment; values may hold any text.
    pub environment: BTreeMap<String, String>,
    pub input: Option<String>,
    pub timeout_seconds: Option<u64>,
    /// Discards the results of an earlier run of the key, and runs it again.
    pub again: bool,
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
pub struct OutputLine {
    pub text: String,
    pub error_stream: bool,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exit code, or `None` if a signal, a timeout or a reboot ended the command.
    pub code: Option<i32>,
    /// Description if there is no exit code: `the host was rebooted while it ran`, `killed by
    /// signal 9`, `timed out after 600 s`.
    pub reason: Option<String>,
    pub duration_ms: u64,
    /// Whether the command had run before and was not run again.
    pub recalled: bool,
    /// Path of the log on the host.
    pub log: String,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct FileToWrite {
    pub path: String,
    pub mode: u32,
    #[serde(with = "crate::agent::wire::base64_bytes")]
    pub content: Vec<u8>,
}

impl std::fmt::Debug for FileToWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileToWrite({}, {} bytes)", self.path, self.content.len())
    }
}

/// A line of the hosts file: address and name.
pub type HostsEntry = (String, String);

/// The cluster's lines in the hosts file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostsBlock {
    /// Identifies the block: one per cluster.
    pub cluster: String,
    pub entries: Vec<HostsEntry>,
}
