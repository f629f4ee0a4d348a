//! The agent: imgctl itself on a host, serving one controller over stdin and stdout.
//!
//! [`Agent`] is the interface of a host for higher layers; [`protocol`] defines what is sent over
//! the wire. Must not depend on clusters: paths and environments come with each request.

pub mod balancer;
pub mod execution;
mod facts;
mod files;
mod hosts_file;
pub mod install;
mod network;
pub mod protocol;
pub mod remote;
mod removal;
pub mod server;
pub mod tree;
pub mod tunnel;
mod wire;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest};
use protocol::{
    CheckedOut, Checkout, Facts, FileToWrite, HostsBlock, Inventory, InventoryQuestion, Outcome,
    OutputLine, PeerSource, ReadPart, Run, SwitchTree, WritePart,
};
use tunnel::Tunnel;

pub use imgctl_registry::client::sending::BlobOpener;

/// Access to one host. All calls block, may be made from several threads at once, and name the host
/// in their errors. A lost connection is re-established once per call where repeating the call is
/// safe.
pub trait Agent: Send + Sync {
    /// Returns the host's name for messages.
    fn host(&self) -> &str;

    /// Returns the facts about the host, which are requested once and then cached.
    fn facts(&self) -> Result<Facts>;

    /// Returns which of the requested items the host has, in one round trip.
    fn inventory(&self, question: &InventoryQuestion) -> Result<Inventory>;

    /// Sends one blob to the host's store, resuming where an earlier attempt ended; `sent` receives
    /// the number of bytes as they are sent. The host verifies the digest.
    fn send_blob(
        &self,
        blob: &Descriptor,
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()>;

    /// Serves the host's blobs to other hosts over TCP until [`Agent::withdraw`] or the end of the
    /// agent.
    fn offer(&self) -> Result<PeerSource>;

    /// Stops serving what [`Agent::offer`] offered.
    fn withdraw(&self) -> Result<()>;

    /// Fetches blobs from another host's offer; returns those that the other host could not
    /// deliver.
    fn fetch(
        &self,
        from: &PeerSource,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>>;

    /// Unpacks layers from the host's store into a rendered tree and makes it the current one.
    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut>;

    /// Makes a tree that [`Agent::checkout`] has staged the current one; returns notes for the
    /// user.
    fn switch_tree(&self, request: &SwitchTree) -> Result<Vec<String>> {
        Err(cannot(self.host(), &request.tree))
    }

    /// Runs a command detached from this connection and follows its output to the end. A key that
    /// has run before does not run again: its recorded outcome is returned. A running command is
    /// followed.
    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome>;

    /// Ends the command of `key` with SIGTERM, then SIGKILL.
    fn cancel(&self, directory: &str, key: &str) -> Result<()>;

    /// Writes a file atomically; returns `true` if its content or mode changed.
    fn write_file(&self, file: &FileToWrite) -> Result<bool>;

    /// Reads a file of at most `limit` bytes; returns `None` if it is missing.
    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>>;

    /// Reads a part of a file, which must exist.
    fn read_part(&self, part: &ReadPart) -> Result<Vec<u8>> {
        Err(cannot(self.host(), &part.path))
    }

    /// Writes a part of a file. Parts are written in order; the last one moves the file into place.
    fn write_part(&self, part: &WritePart) -> Result<()> {
        Err(cannot(self.host(), &part.path))
    }

    /// Removes files and trees, but never across a mount point; returns what remains and why.
    fn remove(&self, paths: &[String]) -> Result<Vec<String>>;

    /// Writes the marked block to the hosts file, or removes it if it is empty. All other content
    /// stays byte for byte. Returns `true` if the file changed.
    fn set_hosts(&self, block: &HostsBlock) -> Result<bool>;

    /// Opens a connection to a TCP port as the host sees it. `address` is an IP address of the host
    /// itself, possibly a loopback address.
    fn tunnel(&self, address: &str, port: u16) -> Result<Tunnel> {
        let to = format!("{}: cannot reach {address} port {port}", self.host());
        Err(Error::failed(to))
    }
}

/// Error of agents without the capability, in tests and simulations.
fn cannot(host: &str, what: &str) -> Error {
    Error::failed(format!("{host}: this is not supported for {what}"))
}
