//! An open journal: many threads append, and one sync covers their records.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;

use crate::{past, record::Chain};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{make_private, sync_directory};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::text::hex;

/// Called after each record that is on disk, with the number of records in this run.
type Told = dyn Fn(u64) + Send + Sync;

/// An open journal, exclusive to one process. Records are on disk when `append` returns.
pub struct Journal {
    id: String,
    path: PathBuf,
    file: File,
    queue: Mutex<Queue>,
    turned: Condvar,
    sync: bool,
    told: Option<Box<Told>>,
    _lock: Lock,
}

#[derive(Default)]
struct Queue {
    chain: Chain,
    bytes: Vec<u8>,
    /// Number of records handed in, and number of records on disk.
    taken: u64,
    safe: u64,
    /// A thread is writing.
    busy: bool,
    broken: Option<String>,
}

impl Journal {
    /// Creates a journal `<time>-<verb>-<random>` in `directory`.
    pub fn create(directory: &Path, verb: &str, sync: bool) -> Result<Self> {
        let mut random = [0; 4];
        aws_lc_rs::rand::fill(&mut random)
            .map_err(|_| Error::failed("cannot read random numbers from the system"))?;
        let random = hex(&random);
        let now = Timestamp::now();
        let time = now.strftime("%Y%m%dT%H%M%S");
        let id = format!("{time}.{:03}Z-{verb}-{random}", now.subsec_millisecond());
        Self::create_as(directory, &id, sync)
    }

    fn create_as(directory: &Path, id: &str, sync: bool) -> Result<Self> {
        make_private(directory)?;
        let path = past::path_of(directory, id);
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .path("create the journal", &path)?;
        if sync {
            sync_directory(directory)?;
        }
        let lock = lock(id, &path)?;
        Ok(Self::over(id, path, file, sync, Chain::default(), lock))
    }

    /// Opens the journal `id`, new or existing.
    pub fn open(directory: &Path, id: &str, sync: bool) -> Result<Self> {
        if past::path_of(directory, id).exists() {
            Self::reopen(directory, id, sync)
        } else {
            Self::create_as(directory, id, sync)
        }
    }

    /// Reopens a journal and removes a partial line left by a crash.
    pub fn reopen(directory: &Path, id: &str, sync: bool) -> Result<Self> {
        let path = past::path_of(directory, id);
        let lock = lock(id, &path)?;
        let (whole, chain) = past::whole_length(&path)?;
        let file = OpenOptions::new().append(true).open(&path).path("open the journal", &path)?;
        file.set_len(whole).path("cut a torn line off", &path)?;
        Ok(Self::over(id, path, file, sync, chain, lock))
    }

    fn over(id: &str, path: PathBuf, file: File, sync: bool, chain: Chain, lock: Lock) -> Self {
        Self {
            id: id.to_owned(),
            path,
            file,
            queue: Mutex::new(Queue { chain, ..Queue::default() }),
            turned: Condvar::new(),
            sync,
            told: None,
            _lock: lock,
        }
    }

    /// Calls `told` for each record once it is on disk.
    #[cfg(any(test, feature = "testing"))]
    pub fn telling(mut self, told: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(told));
        self
    }

    /// Returns the journal's name, which its logs and the commands on hosts also use.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a record and syncs it, as [`Journal::append_all`] does.
    pub fn append(&self, record: &impl Serialize) -> Result<()> {
        self.append_all(std::slice::from_ref(record))
    }

    /// Writes records. If several threads call this at once, one of them writes and syncs for all.
    pub fn append_all(&self, records: &[impl Serialize]) -> Result<()> {
        let mut lines = Vec::new();
        for record in records {
            let line =
                serde_json::to_vec(record).doing(|| "cannot write a record as JSON".to_owned())?;
            lines.push(line);
        }
        let mut queue = self.queue();
        for mut line in lines {
            queue.chain.seal(&mut line);
            line.push(b'\n');
            queue.bytes.extend_from_slice(&line);
        }
        queue.taken += records.len() as u64;
        let mine = queue.taken;
        loop {
            if queue.safe >= mine {
                drop(queue);
                if let Some(told) = &self.told {
                    told(mine);
                }
                return Ok(());
            }
            if let Some(broken) = &queue.broken {
                return Err(self.lost(broken));
            }
            if queue.busy {
                queue = self.turned.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.busy = true;
            let bytes = std::mem::take(&mut queue.bytes);
            let upto = queue.taken;
            drop(queue);
            let written = self.write(&bytes);
            queue = self.queue();
            queue.busy = false;
            match written {
                Ok(()) => queue.safe = upto,
                Err(error) => queue.broken = Some(error.to_string()),
            }
            self.turned.notify_all();
        }
    }

    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = &self.file;
        file.write_all(bytes)?;
        if self.sync {
            file.sync_data()?;
        }
        Ok(())
    }

    fn lost(&self, why: &str) -> Error {
        Error::failed(format!("cannot write the journal {}: {why}", self.path.display())).hint(
            "no new steps start without a journal; free space there and run the same command again",
        )
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(id: &str, path: &Path) -> Result<Lock> {
    Lock::try_acquire(path, Mode::Exclusive)?
        .ok_or_else(|| Error::busy(format!("run {id} is active in another process")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Outcome;
    use crate::past::Past;
    use crate::record::Record;
    use imgctl_base::error::Kind;

    fn begin(step: &str) -> Record {
        Record::Begin {
            time: Timestamp::UNIX_EPOCH,
            step: step.to_owned(),
            fingerprint: "f".to_owned(),
            attempt: 1,
        }
    }

    #[test]
    fn many_threads_append_whole_lines() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::create(directory.path(), "run", true).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let journal = &journal;
                scope.spawn(move || {
                    for number in 0..25 {
                        journal.append(&begin(&format!("a/{thread}/{number}"))).unwrap();
                    }
                });
            }
        });
        let past = Past::read(journal.path()).unwrap();
        assert_eq!(past.steps.len(), 200);
    }

    #[test]
    fn a_torn_line_is_cut_and_a_broken_one_in_the_middle_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::create(directory.path(), "run", true).unwrap();
        journal.append(&begin("a")).unwrap();
        let (path, id) = (journal.path().to_owned(), journal.id().to_owned());
        drop(journal);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"{\"record\":\"beg");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Past::read(&path).unwrap().steps.len(), 1);
        let journal = Journal::reopen(directory.path(), &id, true).unwrap();
        let error = Journal::open(directory.path(), &id, true).err().unwrap();
        assert_eq!(error.kind(), Kind::Busy, "two at once");
        journal
            .append(&Record::Finish { time: Timestamp::UNIX_EPOCH, outcome: Outcome::Done })
            .unwrap();
        let past = Past::read(&path).unwrap();
        assert_eq!((past.steps.len(), past.finished), (1, Some(Outcome::Done)));
        std::fs::write(&path, b"not json\n{}\n").unwrap();
        let error = Past::read(&path).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
