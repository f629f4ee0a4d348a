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
/// Parts that are requested at once, so that the line is busy while a part is decoded.
const LANES: u64 = 2;
/// Parts of each lane that wait to be used.
const AHEAD: usize = 1;

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
    /// The parts, in turn.
    lanes: Vec<Receiver<io::Result<Vec<u8>>>>,
    /// Number of parts that were taken.
    taken: usize,
    part: io::Cursor<Vec<u8>>,
}

impl HostFile {
    pub(crate) fn open(agent: &Arc<dyn Agent>, path: &str, size: u64) -> Self {
        let lane = |number: u64| {
            let (sender, parts) = sync_channel(AHEAD);
            let (agent, path) = (Arc::clone(agent), path.to_owned());
            // It ends with the file, or when the reader is gone.
            std::thread::spawn(move || {
                let mut offset = number * PART;
                while offset < size {
                    let part = ReadPart { path: path.clone(), offset, length: PART };
                    let read = agent.read_part(&part).map_err(io::Error::other);
                    let length = read.as_ref().map_or(0, Vec::len) as u64;
                    if sender.send(read).is_err() || length == 0 {
                        return;
                    }
                    offset += PART * LANES;
                }
            });
            parts
        };
        Self { lanes: (0..LANES).map(lane).collect(), taken: 0, part: io::Cursor::default() }
    }
}

impl Read for HostFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.part.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let lane = self.taken % self.lanes.len();
            match self.lanes[lane].recv() {
                Ok(part) => self.part = io::Cursor::new(part?),
                Err(_) => return Ok(0),
            }
            if self.part.get_ref().is_empty() {
                return Ok(0);
            }
            self.taken += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with one file.
    struct OneFile(Vec<u8>);

    impl Agent for OneFile {
        fn host(&self) -> &str {
            "h"
        }

        fn read_part(&self, part: &ReadPart) -> Result<Vec<u8>> {
            if part.path != "/f" {
                return Err(Error::not_found("no such file"));
            }
            let start = usize::try_from(part.offset).unwrap().min(self.0.len());
            let end = usize::try_from(part.offset + part.length).unwrap().min(self.0.len());
            Ok(self.0[start..end].to_vec())
        }
    }

    #[test]
    fn parts_come_in_the_order_of_the_file() {
        let part = usize::try_from(PART).unwrap();
        for size in [0, 1, part, part + 1, 5 * part, 5 * part + 7] {
            let content: Vec<u8> = (0..size).map(|at| (at / 1000 % 251) as u8).collect();
            let agent: Arc<dyn Agent> = Arc::new(OneFile(content.clone()));
            let mut read = Vec::new();
            let mut file = HostFile::open(&agent, "/f", size as u64);
            file.read_to_end(&mut read).unwrap();
            assert!(read == content, "{size}: {}", read.len());
            // One that became shorter ends where it ends.
            read.clear();
            let mut file = HostFile::open(&agent, "/f", size as u64 + 3 * PART);
            file.read_to_end(&mut read).unwrap();
            assert!(read == content, "{size}: {}", read.len());
            let mut missing = HostFile::open(&agent, "/g", 1);
            assert!(missing.read_to_end(&mut read).is_err());
        }
    }
}
