//! The agent: imgctl itself on a host, serving one controller over stdin and stdout.
//!
//! [`Agent`] is what the floors above know of a host; [`protocol`] is what goes over the wire.
//! Must not know clusters: paths and environments come with each request.

pub(crate) mod balancer;
mod blobs;
pub(crate) mod execution;
mod facts;
mod fetch;
mod files;
mod hosts_file;
pub(crate) mod install;
mod network;
mod offers;
pub(crate) mod protocol;
pub(crate) mod remote;
mod removal;
pub(crate) mod server;
pub(crate) mod tree;
pub(crate) mod tunnel;
mod wire;

use crate::error::{Error, Result};
use crate::image::{Descriptor, Digest};
use protocol::{
    CheckedOut, Checkout, Facts, FileToWrite, HostsBlock, Inventory, InventoryQuestion, Offer,
    Outcome, OutputLine, ReadPart, Run, SwitchTree, WritePart,
};
use tunnel::Tunnel;

/// Opens a blob at an offset, to send it from there.
pub(crate) type BlobOpener<'a> =
    dyn Fn(u64) -> Result<Box<dyn std::io::Read + Send + 'static>> + Sync + 'a;

/// One host in our hands. All calls block, may be made from several threads at once, and name the
/// host in their errors. A lost connection is made anew once per call where repeating is safe.
pub(crate) trait Agent: Send + Sync {
    /// The host as messages name it.
    fn host(&self) -> &str;

    /// What the host is; asked once, then remembered.
    fn facts(&self) -> Result<Facts>;

    /// What the host has of what we ask about: one round trip.
    fn inventory(&self, question: &InventoryQuestion) -> Result<Inventory>;

    /// Sends one blob into the host's store, from where an earlier attempt ended; `sent` gets the
    /// bytes as they go. The host checks the digest.
    fn send_blob(
        &self,
        blob: &Descriptor,
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()>;

    /// Serves its blobs to other hosts over TCP until [`Agent::withdraw`] or the agent's end.
    fn offer(&self) -> Result<Offer>;

    /// Ends what [`Agent::offer`] began.
    fn withdraw(&self) -> Result<()>;

    /// Fetches blobs from another host's offer; returns those that could not be had from there.
    fn fetch(
        &self,
        from: &Offer,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>>;

    /// Turns layers in the host's store into a rendered tree and makes it the current one.
    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut>;

    /// Makes a tree that [`Agent::checkout`] has staged the current one; returns what is to be said.
    fn switch_tree(&self, request: &SwitchTree) -> Result<Vec<String>> {
        Err(cannot(self.host(), &request.tree))
    }

    /// Runs a command detached from this connection and follows its output to the end. A key that
    /// has run before is not run again: its recorded outcome is returned; one still running is
    /// followed.
    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome>;

    /// Ends the command of a key with SIGTERM, then SIGKILL.
    fn cancel(&self, directory: &str, key: &str) -> Result<()>;

    /// Writes a file atomically; `true` when its content or mode changed.
    fn write_file(&self, file: &FileToWrite) -> Result<bool>;

    /// Reads a file of at most `limit` bytes; `None` when there is none.
    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>>;

    /// Reads a part of a file that must be there.
    fn read_part(&self, part: &ReadPart) -> Result<Vec<u8>> {
        Err(cannot(self.host(), &part.path))
    }

    /// Writes a part of a file, in order; the last puts it in its place.
    fn write_part(&self, part: &WritePart) -> Result<()> {
        Err(cannot(self.host(), &part.path))
    }

    /// Removes files and trees, never across a mount point; returns what is left and why.
    fn remove(&self, paths: &[String]) -> Result<Vec<String>>;

    /// Puts our marked block into the hosts file, or takes it out when it is empty; the rest stays
    /// byte for byte. `true` when the file changed.
    fn set_hosts(&self, block: &HostsBlock) -> Result<bool>;

    /// A connection to a TCP port as the host sees it; `address` is an IP address of the host
    /// itself, loopback among them.
    fn tunnel(&self, address: &str, port: u16) -> Result<Tunnel> {
        let to = format!("{}: there is no way to {address} port {port}", self.host());
        Err(Error::failed(to))
    }
}

/// For agents that are none, in tests and simulations.
fn cannot(host: &str, what: &str) -> Error {
    Error::failed(format!("{host}: cannot do that with {what}"))
}
