//! Large files between the controller and hosts, part by part. Must not know what is in them.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::part::{self, Part};
use imgctl_host::agent::protocol::{ReadPart, WritePart};
use imgctl_model::state_files::StateFiles;
use imgctl_runtime::Action;

/// Bytes per transferred part.
pub const PART: u64 = 4 << 20;
/// Number of parts to request at the same time, so that the link is busy while a part is compressed or used.
const LANES: u64 = 2;
/// Number of parts per lane that wait to be used.
const AHEAD: usize = 1;

/// How the controller stores a file.
#[derive(Clone, Copy)]
enum Stored {
    Plain,
    /// As zstd frames.
    Compressed,
}

/// Returns the action that sends a file from the controller to `there` on the host.
pub fn bring(name: &str, file: &Path, there: &str) -> Action {
    sending(name, file, Stored::Plain, there)
}

/// Like [`bring`], for a file of zstd frames; the host gets their content.
pub(crate) fn bring_content(name: &str, file: &Path, there: &str) -> Action {
    sending(name, file, Stored::Compressed, there)
}

fn sending(name: &str, file: &Path, stored: Stored, there: &str) -> Action {
    let (file, there) = (file.to_owned(), there.to_owned());
    let says = format!("send {} to {there}", file.display());
    Action::new(name, says, move |site| send(site.agent, site.state(), &file, stored, &there))
}

/// Sends a file from the controller to `path` on a host; one that is encrypted arrives decrypted. Frames
/// are sent unchanged if they are small enough.
fn send(
    agent: &dyn Agent,
    state: &StateFiles,
    file: &Path,
    stored: Stored,
    path: &str,
) -> Result<()> {
    let doing = || format!("cannot send {}", file.display());
    let missing = || Error::not_found(format!("the file {} does not exist", file.display()));
    let mut source = state.open_opaque(file)?.ok_or_else(missing).context(doing)?;
    match stored {
        Stored::Compressed => write_parts(agent, path, part::Parts::new(source, PART)),
        Stored::Plain => write_content(agent, path, &mut *source),
    }
    .context(doing)
}

/// Writes `content` to `path` on a host.
pub fn write_content(agent: &dyn Agent, path: &str, content: &mut (dyn Read + Send)) -> Result<()> {
    let mut next = || -> Result<Option<Part>> {
        let mut bytes = Vec::new();
        (&mut *content).take(PART).read_to_end(&mut bytes).doing(|| "cannot read it".to_owned())?;
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some((bytes.len() as u64, part::compress(&bytes)?)))
    };
    write_parts(agent, path, std::iter::from_fn(move || next().transpose()))
}

/// Writes a file on a host, part by part. The next part is read and compressed while one is being sent.
fn write_parts(
    agent: &dyn Agent,
    path: &str,
    parts: impl Iterator<Item = Result<Part>> + Send,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (sender, ready) = sync_channel(AHEAD);
        scope.spawn(move || {
            // The end is a message as well: a thread that panics does not send it.
            for part in parts.map(|part| part.map(Some)).chain([Ok(None)]) {
                if sender.send(part).is_err() {
                    return;
                }
            }
        });
        let next = || {
            let died = |_| Err(Error::failed("the thread that reads it has died"));
            ready.recv().unwrap_or_else(died)
        };
        let Some(mut part) = next()? else {
            return write_part(agent, path, 0, part::compress(&[])?, true);
        };
        let mut offset = 0;
        loop {
            let (length, content) = part;
            let following = next()?;
            write_part(agent, path, offset, content, following.is_none())?;
            match following {
                Some(following) => part = following,
                None => return Ok(()),
            }
            offset += length;
        }
    })
}

fn write_part(
    agent: &dyn Agent,
    path: &str,
    offset: u64,
    content: Vec<u8>,
    is_last: bool,
) -> Result<()> {
    let path = path.to_owned();
    agent.write_part(&WritePart { path, mode: 0o600, offset, content, compressed: true, is_last })
}

/// The parts of a file on a host, as zstd frames with at most [`PART`] bytes of content each. Parts arrive while
/// earlier ones are used.
pub(crate) struct HostFile {
    /// The parts, in turn.
    lanes: Vec<Receiver<io::Result<Vec<u8>>>>,
    /// Number of parts that were taken.
    taken: usize,
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
                    let path = path.clone();
                    let part = ReadPart { path, offset, length: PART, compress: true };
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
        Self { lanes: (0..LANES).map(lane).collect(), taken: 0 }
    }
}

impl Iterator for HostFile {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let lane = self.taken % self.lanes.len();
        self.taken += 1;
        let part = self.lanes[lane].recv().ok()?;
        // The file may have become shorter.
        part.map_or_else(|error| Some(Err(error)), |part| (!part.is_empty()).then_some(Ok(part)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

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
            let bytes = &self.0[start..end];
            if bytes.is_empty() { Ok(Vec::new()) } else { part::compress(bytes) }
        }
    }

    #[test]
    fn parts_come_in_the_order_of_the_file() {
        let part = usize::try_from(PART).unwrap();
        for size in [0, 1, part, part + 1, 5 * part, 5 * part + 7] {
            let content: Vec<u8> = (0..size).map(|at| (at / 1000 % 251) as u8).collect();
            let agent: Arc<dyn Agent> = Arc::new(OneFile(content.clone()));
            // One that became shorter ends where it ends.
            for size in [size as u64, size as u64 + 3 * PART] {
                let frames = HostFile::open(&agent, "/f", size);
                let parts = frames.map(|frame| part::decompress(&frame.unwrap(), PART).unwrap());
                let read = parts.collect::<Vec<_>>().concat();
                assert!(read == content, "{size}: {}", read.len());
            }
            assert!(HostFile::open(&agent, "/g", 1).next().unwrap().is_err());
            assert!(HostFile::open(&agent, "/g", 0).next().is_none());
        }
    }

    /// A host that gets one file.
    #[derive(Default)]
    struct Receiving {
        content: Mutex<Vec<u8>>,
        is_whole: AtomicBool,
    }

    impl Agent for Receiving {
        fn host(&self) -> &str {
            "h"
        }

        fn write_part(&self, part: &WritePart) -> Result<()> {
            let mut content = self.content.lock().unwrap();
            assert!(!self.is_whole.load(SeqCst) && part.offset == content.len() as u64);
            content.extend(part::decompress(&part.content, PART)?);
            self.is_whole.store(part.is_last, SeqCst);
            Ok(())
        }
    }

    #[test]
    fn a_file_is_in_place_with_its_last_part() {
        let part = usize::try_from(PART).unwrap();
        for size in [0, 1, part, part + 1, 2 * part] {
            let content: Vec<u8> = (0..size).map(|at| (at / 1000 % 251) as u8).collect();
            let host = Receiving::default();
            write_content(&host, "/f", &mut &*content).unwrap();
            assert!(*host.content.lock().unwrap() == content && host.is_whole.load(SeqCst));
        }
        // One whose parts end with an error is not.
        let host = Receiving::default();
        let frame = part::compress(b"one").unwrap();
        let parts = [Ok((3, frame)), Err(Error::failed("it is damaged"))];
        write_parts(&host, "/f", parts.into_iter()).unwrap_err();
        assert!(!host.is_whole.load(SeqCst));
        // Nor is one whose reader panics.
        let host = Receiving::default();
        let panics = std::iter::once_with(|| panic!("of the test"));
        let sent = std::panic::catch_unwind(|| write_parts(&host, "/f", panics));
        assert!(!matches!(sent, Ok(Ok(()))) && !host.is_whole.load(SeqCst));
    }
}
