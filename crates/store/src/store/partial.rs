//! Resumable blob downloads: received bytes survive a dropped connection, an error or a kill, and
//! the next download of the same blob continues from there.
//!
//! The bytes are in `ingest/<hex>.partial`, locked by the downloading process; a second process
//! waits and then finds the blob. The content of such a file is untrusted: it is read and hashed
//! again before the rest is requested. Must not know where the rest comes from.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::store::Store;
use crate::store::blobs::{self, WriteBack};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::{Algorithm, Digest, Hasher};

/// Extension of such files.
const PARTIAL: &str = "partial";
/// Number of bytes to read at once for hashing.
const HASHED_AT_ONCE: usize = 1 << 20;
/// Age since the last write after which a partial download is removed.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// A partially, completely or not yet downloaded blob. If dropped uncommitted, its bytes stay for
/// the next attempt.
#[derive(Debug)]
pub struct Partial {
    file: File,
    path: PathBuf,
    digest: Digest,
    size: u64,
    /// Number of bytes on disk.
    length: u64,
    /// The source of the rest has failed.
    is_cut: bool,
    write_back: WriteBack,
    /// Shows that this process is alive.
    _alive: Lock,
}

/// Opens the rest of a blob, starting at an offset.
pub(crate) type OpenRest<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'a>> + Sync + 'a;

impl Store {
    /// Claims the download of a blob of `size` bytes; waits while another process downloads it.
    /// Returns `None` if the blob exists.
    pub fn partial(&self, digest: &Digest, size: u64) -> Result<Option<Partial>> {
        if self.claim_blob(digest, size)? {
            return Ok(None);
        }
        let path = self.partial_path(digest);
        let alive = Lock::acquire(&path, Mode::Exclusive, &mut || {
            tracing::info!("waiting for another imgctl process that downloads blob {digest}");
        })?;
        let file = OpenOptions::new().read(true).write(true).open(&path).path("open", &path)?;
        let length = file.metadata().path("look at", &path)?.len();
        let mut partial = Partial {
            file,
            path,
            digest: digest.clone(),
            size,
            length,
            is_cut: false,
            write_back: WriteBack::new(self.is_synced()),
            _alive: alive,
        };
        // The previous holder may have finished the download.
        if self.claim_blob(digest, size)? {
            partial.restart()?;
            return Ok(None);
        }
        if length > size {
            partial.restart()?;
        }
        Ok(Some(partial))
    }

    fn partial_path(&self, digest: &Digest) -> PathBuf {
        self.path("ingest").join(digest.hex()).with_added_extension(PARTIAL)
    }

    /// Returns how many bytes of a blob interrupted downloads have brought.
    pub(super) fn partial_length(&self, digest: &Digest) -> u64 {
        std::fs::metadata(self.partial_path(digest)).map_or(0, |data| data.len())
    }

    /// Publishes a blob. The caller has read it completely through [`Partial::reader`] and verified
    /// its digest.
    pub fn commit_partial(&self, mut partial: Partial) -> Result<()> {
        if partial.length != partial.size {
            return Err(Error::failed(format!(
                "blob {} is not complete: {} of {} bytes",
                partial.digest, partial.length, partial.size
            )));
        }
        if partial.digest.algorithm() != Algorithm::Sha256 {
            self.make_algorithm_directory(partial.digest.algorithm())?;
        }
        let target = self.blob_path(&partial.digest);
        self.publish_file(&partial.file, &partial.path, &target, 0o444)?;
        // Nothing is left to remove.
        partial.length = 1;
        Ok(())
    }

    /// Downloads a blob and checks size and digest. Nothing is visible unless both match. Existing
    /// bytes are not requested again unless they turn out to be bad. Returns whether there was
    /// anything to do.
    pub fn complete_blob(&self, digest: &Digest, size: u64, rest: &OpenRest<'_>) -> Result<bool> {
        let Some(partial) = self.partial(digest, size)? else {
            return Ok(false);
        };
        self.finish_partial(partial, rest)?;
        Ok(true)
    }

    /// Like [`Store::complete_blob`], for a blob whose download is already claimed.
    pub fn finish_partial(&self, mut partial: Partial, rest: &OpenRest<'_>) -> Result<()> {
        let digest = partial.digest.clone();
        loop {
            let resumed = partial.length > 0;
            let mut hasher = Hasher::with(digest.algorithm());
            let mut reader = partial.reader(rest);
            blobs::copy_hashed(&mut reader, &mut hasher, &mut io::sink())
                .map_err(|error| error.context(format!("cannot download blob {digest}")))?;
            let computed = hasher.finish();
            if computed == digest {
                return self.commit_partial(partial);
            }
            partial.restart()?;
            if !resumed {
                return Err(Error::bad_content(format!(
                    "blob {digest} has other content: its digest is {computed}"
                ))
                .hint("the registry or a proxy in between sent other bytes than requested"));
            }
            tracing::warn!(
                "the partial download of blob {digest} was damaged; downloading it \
                            again"
            );
        }
    }
}

impl Partial {
    /// Returns the number of bytes on disk.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reports whether the last event was a failure of the source.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Hashes the bytes on disk.
    pub fn hash_here(&self, hasher: &mut Hasher) -> Result<()> {
        let mut buffer = vec![0; HASHED_AT_ONCE];
        let mut position = 0;
        while position < self.length {
            let left = usize::try_from(self.length - position).unwrap_or(usize::MAX);
            let wanted = left.min(HASHED_AT_ONCE);
            let part = buffer.get_mut(..wanted).unwrap_or_default();
            self.file.read_exact_at(part, position).path("read", &self.path)?;
            hasher.update(part);
            position += wanted as u64;
        }
        Ok(())
    }

    /// Appends bytes; fails if the blob would become larger than its size.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let length = self.length + bytes.len() as u64;
        if length > self.size {
            return Err(Error::bad_content(format!(
                "blob {} has more bytes than the {} its descriptor says",
                self.digest, self.size
            )));
        }
        self.file.write_all_at(bytes, self.length).path("write", &self.path)?;
        self.length = length;
        self.write_back.wrote(&self.file, length);
        Ok(())
    }

    /// Discards the bytes on disk.
    pub fn restart(&mut self) -> Result<()> {
        self.length = 0;
        self.file.set_len(0).path("truncate", &self.path)
    }

    /// Returns a reader of the whole blob: the bytes on disk, then those of `rest`, which are saved
    /// while they are read. More or fewer bytes than the blob's size are an error. Does not hash.
    pub fn reader<'a, 's>(&'a mut self, rest: &'a OpenRest<'s>) -> PartialReader<'a, 's> {
        PartialReader { partial: self, position: 0, open: rest, rest: None }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.length == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// See [`Partial::reader`].
pub struct PartialReader<'a, 's> {
    partial: &'a mut Partial,
    position: u64,
    open: &'a OpenRest<'s>,
    rest: Option<Box<dyn Read + Send + 's>>,
}

impl PartialReader<'_, '_> {
    fn read_here(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.partial.length - self.position).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let count = self.partial.file.read_at(&mut buffer[..wanted], self.position)?;
        if count == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }

    fn read_rest(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let partial = &mut *self.partial;
        let rest = match &mut self.rest {
            Some(rest) => rest,
            // A complete blob needs no request.
            None if self.position == partial.size && self.position > 0 => return Ok(0),
            none => {
                let opened = (self.open)(self.position);
                partial.is_cut = opened.is_err();
                none.insert(opened?)
            }
        };
        let read = rest.read(buffer);
        partial.is_cut = read.is_err();
        let count = read?;
        let length = partial.length + count as u64;
        if length > partial.size || (count == 0 && length < partial.size) {
            let relation = if count == 0 { "fewer" } else { "more" };
            return Err(Error::bad_content(format!(
                "blob {} has {relation} bytes than the {} its descriptor says",
                partial.digest, partial.size
            ))
            .into());
        }
        partial.file.write_all_at(&buffer[..count], partial.length).path("write", &partial.path)?;
        partial.length = length;
        partial.write_back.wrote(&partial.file, length);
        Ok(count)
    }
}

impl Read for PartialReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = if self.position < self.partial.length {
            self.read_here(buffer)?
        } else {
            self.read_rest(buffer)?
        };
        self.position += count as u64;
        Ok(count)
    }
}

/// Reports whether a file in `ingest/` is a download that can still be resumed.
pub(super) fn is_worth_keeping(path: &Path) -> bool {
    let age = || {
        let written = std::fs::metadata(path).ok()?.modified().ok()?;
        // A clock that was set back makes no file stale.
        Some(SystemTime::now().duration_since(written).unwrap_or_default())
    };
    path.extension().is_some_and(|ending| ending == PARTIAL) && age().is_none_or(|age| age < STALE)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::store::Options;
    use imgctl_base::error::Kind;

    struct Fixture {
        _directory: tempfile::TempDir,
        store: Store,
        content: Vec<u8>,
        digest: Digest,
        /// Offsets that were requested.
        asked: Mutex<Vec<u64>>,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let store = Store::open(directory.path(), Options { sync: false }).unwrap();
            let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
            Self {
                _directory: directory,
                store,
                digest: Digest::of(&content),
                content,
                asked: Mutex::new(Vec::new()),
            }
        }

        /// Downloads from a source that fails after `cut` bytes of the blob.
        fn complete(&self, content: &[u8], cut: usize) -> Result<bool> {
            let size = self.content.len() as u64;
            self.store.complete_blob(&self.digest, size, &|offset| {
                self.asked.lock().unwrap().push(offset);
                let offset = usize::try_from(offset).unwrap();
                let part = content[offset..cut.max(offset)].to_vec();
                if cut >= content.len() {
                    return Ok(Box::new(io::Cursor::new(part)));
                }
                let failing = Failing;
                Ok(Box::new(io::Cursor::new(part).chain(failing)))
            })
        }

        fn asked(&self) -> Vec<u64> {
            std::mem::take(&mut self.asked.lock().unwrap())
        }

        fn ingest(&self) -> usize {
            std::fs::read_dir(self.store.path("ingest")).unwrap().count()
        }
    }

    struct Failing;

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }

    #[test]
    fn a_cut_download_goes_on_where_it_stopped() {
        let fixture = Fixture::new();
        let content = fixture.content.clone();
        assert!(fixture.complete(&content, 400_000).is_err());
        assert_eq!(fixture.store.blob_size(&fixture.digest).unwrap(), None);
        // Reopening the store sweeps leftovers of dead processes, but not this file.
        fixture.store.sweep_ingest();
        assert!(fixture.complete(&content, 600_000).is_err());
        assert!(fixture.complete(&content, content.len()).unwrap());
        assert_eq!(fixture.asked(), [0, 400_000, 600_000]);
        let read = fixture.store.read_blob(&fixture.digest, 1 << 20).unwrap();
        assert_eq!(read, content);
        assert!(!fixture.complete(&content, 0).unwrap());
        assert!(fixture.asked().is_empty());
        assert_eq!(fixture.ingest(), 0);
    }

    #[test]
    fn damage_in_what_was_here_costs_a_new_download_and_no_more() {
        let fixture = Fixture::new();
        let content = fixture.content.clone();
        let mut damaged = content.clone();
        damaged[1000] ^= 1;
        assert!(fixture.complete(&damaged, 500_000).is_err());
        assert!(fixture.complete(&content, content.len()).unwrap());
        assert_eq!(fixture.asked(), [0, 500_000, 0]);
        assert!(fixture.store.verify_blob(&fixture.digest).unwrap());
    }

    #[test]
    fn wrong_content_and_wrong_lengths_are_refused_and_leave_nothing_visible() {
        let fixture = Fixture::new();
        let mut other = fixture.content.clone();
        other[7] ^= 1;
        let error = fixture.complete(&other, other.len()).unwrap_err();
        assert!(error.to_string().contains("other content"), "{error}");
        assert_eq!(fixture.ingest(), 0);
        let mut longer = fixture.content.clone();
        longer.push(0);
        let error = fixture.complete(&longer, longer.len()).unwrap_err();
        assert!(error.to_string().contains("more bytes"), "{error}");
        let fixture = Fixture::new();
        let shorter = fixture.content[..10].to_vec();
        let error = fixture.complete(&shorter, shorter.len()).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent);
        assert!(error.to_string().contains("fewer bytes"), "{error}");
        assert_eq!(fixture.store.blob_size(&fixture.digest).unwrap(), None);
    }

    #[test]
    fn two_downloads_of_one_blob_are_one() {
        let fixture = Fixture::new();
        let content = fixture.content.clone();
        let done = std::thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| fixture.complete(&content, content.len())));
            both.map(|one| one.join().unwrap().unwrap())
        });
        assert_eq!(done.iter().filter(|done| **done).count(), 1);
        assert_eq!(fixture.asked(), [0]);
        assert_eq!(fixture.ingest(), 0);
    }

    #[test]
    fn a_stale_download_is_swept() {
        let fixture = Fixture::new();
        assert!(fixture.complete(&fixture.content.clone(), 100).is_err());
        let path = fixture.store.path("ingest").join(fixture.digest.hex());
        let path = path.with_added_extension(PARTIAL);
        let long_ago = SystemTime::now() - STALE - Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        fixture.store.sweep_ingest();
        assert_eq!(fixture.ingest(), 0);
    }
}
