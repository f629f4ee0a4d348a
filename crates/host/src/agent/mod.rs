//! The agent: imgctl itself on a host, serving one controller over stdin and stdout.
//!
//! [`Agent`] is the interface of a host for higher layers; [`protocol`] defines what is sent over
//! the wire. Must not depend on clusters: paths and environments come with each request.

pub mod assembly;
pub mod balancer;
pub mod execution;
mod facts;
mod files;
pub mod here;
mod hosts_file;
pub mod install;
mod network;
pub mod part;
pub mod peers;
pub mod protocol;
mod pull;
pub mod remote;
mod removal;
pub mod server;
pub mod tree;
pub mod tunnel;
mod wire;

use std::sync::atomic::AtomicBool;

use crate::containerd::rehash::{Rehash, Rehashed};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest};
use protocol::{
    Assemble, CheckedOut, Checkout, Claim, Claimed, Facts, FileToWrite, HostsBlock, Inventory,
    InventoryQuestion, Outcome, OutputLine, PeerSource, ReadPart, RegistryPull, Run, SwitchTree,
    WritePart,
};
use tunnel::Tunnel;

pub use imgctl_registry::client::sending::BlobOpener;

/// Access to one host. All calls block, may be made from several threads at once, and name the host
/// in their errors. A lost connection is re-established once per call where repeating the call is
/// safe.
pub trait Agent: Send + Sync {
    /// Returns the host's name for messages.
    fn host(&self) -> &str;

    /// Returns the agent for the calls that this one leaves to another; by default, those fail.
    fn inner(&self) -> Result<&dyn Agent> {
        Err(Error::failed(format!("{}: this is not supported", self.host())))
    }

    /// Returns the facts about the host, which are requested once and then cached.
    fn facts(&self) -> Result<Facts> {
        self.inner()?.facts()
    }

    /// Requests the facts again. An agent without a connection has no others than [`Agent::facts`].
    fn current_facts(&self) -> Result<Facts> {
        self.facts()
    }

    /// Returns which of the requested items the host has, in one round trip.
    fn inventory(&self, question: &InventoryQuestion) -> Result<Inventory> {
        self.inner()?.inventory(question)
    }

    /// Sends one blob to the host's store, resuming where an earlier attempt ended; `sent` receives
    /// the number of bytes as they are sent. The host verifies the digest.
    fn send_blob(
        &self,
        blob: &Descriptor,
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.inner()?.send_blob(blob, open, sent)
    }

    /// Serves the host's blobs to other hosts over TCP until [`Agent::withdraw`] or the end of the
    /// agent.
    fn offer(&self) -> Result<PeerSource> {
        self.inner()?.offer()
    }

    /// Stops serving what [`Agent::offer`] offered.
    fn withdraw(&self) -> Result<()> {
        self.inner()?.withdraw()
    }

    /// Fetches blobs from another host's offer; returns those that the other host could not
    /// deliver.
    fn fetch(
        &self,
        from: &PeerSource,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        self.inner()?.fetch(from, blobs, fetched)
    }

    /// Has the host bring a layer from a registry to its store, resuming where an earlier attempt
    /// ended; `fetched` receives the number of bytes that come from there. The host verifies the
    /// digest. Once `cancel` is true, the host stops, and this is an error.
    fn pull(
        &self,
        request: &RegistryPull,
        fetched: &(dyn Fn(u64) + Sync),
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.inner()?.pull(request, fetched, cancel)
    }

    /// Makes a layer out of a recipe, which is in the host's store as a blob, and of what the host
    /// has. The host verifies the digest and removes the recipe.
    fn assemble(&self, request: &Assemble) -> Result<()> {
        self.inner()?.assemble(request)
    }

    /// Unpacks layers from the host's store into a rendered tree and makes it the current one.
    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        self.inner()?.checkout(request, done)
    }

    /// Makes a tree that [`Agent::checkout`] has staged the current one; returns notes for the
    /// user.
    fn switch_tree(&self, request: &SwitchTree) -> Result<Vec<String>> {
        self.inner()?.switch_tree(request)
    }

    /// Runs a command detached from this connection and follows its output to the end. A key that
    /// has run before does not run again: its recorded outcome is returned. A running command is
    /// followed.
    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        self.inner()?.run(request, output)
    }

    /// Ends the command of `key` with SIGTERM, then SIGKILL.
    fn cancel(&self, directory: &str, key: &str) -> Result<()> {
        self.inner()?.cancel(directory, key)
    }

    /// Writes a file atomically; returns `true` if its content or mode changed.
    fn write_file(&self, file: &FileToWrite) -> Result<bool> {
        self.inner()?.write_file(file)
    }

    /// Reads a file of at most `limit` bytes; returns `None` if it is missing.
    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        self.inner()?.read_file(path, limit)
    }

    /// Reads a part of a file, which must exist; compressed as [`part`] does if requested.
    fn read_part(&self, part: &ReadPart) -> Result<Vec<u8>> {
        self.inner()?.read_part(part)
    }

    /// Makes the host one of a cluster, unless another cluster has claimed it since it was asked.
    fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.inner()?.claim(claim)
    }

    /// Returns the SHA-256 digest of a file, which must exist.
    fn file_digest(&self, path: &str) -> Result<Digest> {
        self.inner()?.file_digest(path)
    }

    /// Writes a part of a file. Parts are written in order; the last one moves the file into place.
    fn write_part(&self, part: &WritePart) -> Result<()> {
        self.inner()?.write_part(part)
    }

    /// Removes files and trees, but never across a mount point; returns what remains and why.
    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        self.inner()?.remove(paths)
    }

    /// Writes the marked block to the hosts file, or removes it if it is empty. All other content
    /// stays byte for byte. Returns `true` if the file changed.
    fn set_hosts(&self, block: &HostsBlock) -> Result<bool> {
        self.inner()?.set_hosts(block)
    }

    /// Reads or changes the hashes of containers in containerd's records; see
    /// [`crate::containerd::rehash`]. May be repeated.
    fn rehash(&self, request: &Rehash) -> Result<Rehashed> {
        self.inner()?.rehash(request)
    }

    /// Opens a connection to a TCP port as the host sees it. `address` is an IP address of the host
    /// itself, possibly a loopback address.
    fn tunnel(&self, address: &str, port: u16) -> Result<Tunnel> {
        self.inner()?.tunnel(address, port)
    }
}
