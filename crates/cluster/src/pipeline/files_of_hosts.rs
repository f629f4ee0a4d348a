//! Large files between the controller and hosts, part by part. Must not know what is in them.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use crate::cluster::state_files::StateFiles;
use crate::runtime::Action;
use imgctl_base::error::{Context as _, Error, IoContext, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{ReadPart, WritePart};

/// Bytes per transferred part.
pub(crate) const PART: u64 = 4 << 20;
/// Parts that are on their way while one is used.
const AHEAD: usize = 2;

/// Returns the action that sends a file from the controller to `there` on the host.
pub(crate) fn bring(name: &str, file: &Path, there: &str) -> Action {
    let (file, there) = (file.to_owned(), there.to_owned());
    let says = format!("send {} to {there}", file.display());
    Action::new(name, says, move |site| send(site.agent, site.state(), &file, &there))
}

/// Sends a file from the controller to `path` on a host; one that is encrypted arrives decrypted.
fn send(agent: &dyn Agent, state: &StateFiles, file: &Path, path: &str) -> Result<()> {
    let doing = || format!("cannot send {}", file.display());
    let missing = || Error::not_found(format!("the file {} does not exist", file.display()));
    let mut source = state.open_opaque(file)?.ok_or_else(missing).context(doing)?;
    // The size of the content is not that of the file: the end is where nothing follows.
    write_parts(agent, path, &mut *source, u64::MAX).context(doing)
}

/// Writes `size` bytes of `content` to `path` on a host, part by part.
pub(crate) fn write_parts(
    agent: &dyn Agent,
    path: &str,
    content: &mut dyn Read,
    size: u64,
) -> Result<()> {
    let (path, mut offset) = (path.to_owned(), 0);
    loop {
        let mut part = Vec::new();
        Read::take(&mut *content, PART)
            .read_to_end(&mut part)
            .doing(|| "cannot read it".to_owned())?;
        let end = offset + part.len() as u64;
        let (path, is_last) = (path.clone(), end >= size || part.is_empty());
        agent.write_part(&WritePart { path, mode: 0o600, offset, content: part, is_last })?;
        if is_last {
            return Ok(());
        }
        offset = end;
    }
}

/// Reads a file of a host; parts arrive while earlier ones are used.
pub(crate) struct HostFile {
    parts: Receiver<io::Result<Vec<u8>>>,
    part: io::Cursor<Vec<u8>>,
}

impl HostFile {
    pub(crate) fn open(agent: Arc<dyn Agent>, path: String, size: u64) -> Self {
        let (sender, parts) = sync_channel(AHEAD);
        // It ends with the file, or when the reader is gone.
        std::thread::spawn(move || {
            let mut offset = 0;
            while offset < size {
                let part = ReadPart { path: path.clone(), offset, length: PART };
                let read = agent.read_part(&part).map_err(io::Error::other);
                let length = read.as_ref().map_or(0, Vec::len) as u64;
                if sender.send(read).is_err() || length == 0 {
                    return;
                }
                offset += length;
            }
        });
        Self { parts, part: io::Cursor::default() }
    }
}

impl Read for HostFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.part.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            match self.parts.recv() {
                Ok(part) => self.part = io::Cursor::new(part?),
                Err(_) => return Ok(0),
            }
            if self.part.get_ref().is_empty() {
                return Ok(0);
            }
        }
    }
}
