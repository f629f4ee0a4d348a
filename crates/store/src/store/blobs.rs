//! Blobs: content stored under its digest. Any process can write them at any time without a lock.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::store::Store;
use crate::store::layout::unique_name;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::space;
use imgctl_base::image::{Algorithm, Descriptor, Digest, Hasher};

/// Number of bytes after which their write-back starts, so that the final sync has little to do.
const WRITE_BACK: u64 = 8 << 20;
/// Size of the copy buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// A blob that is being written. If dropped uncommitted, it leaves nothing; if the process dies,
/// the next process removes it.
#[derive(Debug)]
pub struct Ingest {
    file: File,
    path: PathBuf,
    written: u64,
    write_back: WriteBack,
    /// Shows that this process is alive.
    _alive: Lock,
}

impl Ingest {
    /// Returns the number of bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// Starts the write-back of a file while it is written, so that its sync has little to do.
#[derive(Debug)]
pub(super) struct WriteBack {
    /// Number of bytes whose write-back has started; `None` if the file is not synced.
    flushed: Option<u64>,
}

impl WriteBack {
    /// Creates the state for a new file. Does nothing unless the file will be synced.
    pub(super) fn new(is_synced: bool) -> Self {
        Self { flushed: is_synced.then_some(0) }
    }

    /// Records that the file's first `written` bytes have been written.
    pub(super) fn wrote(&mut self, file: &File, written: u64) {
        let Some(flushed) = self.flushed else { return };
        let length = written.saturating_sub(flushed);
        if let Some(range) = std::num::NonZeroU64::new(length)
            && length >= WRITE_BACK
        {
            // Linux handles `DontNeed` by starting to write dirty pages to disk without waiting.
            let advice = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(file, flushed, Some(range), advice);
            self.flushed = Some(written);
        }
    }
}

impl Write for Ingest {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.file.write(buffer)?;
        self.written += count as u64;
        self.write_back.wrote(&self.file, self.written);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Store {
    /// Returns the size of an existing blob, in bytes. To rely on it later, hold the blob before
    /// the call.
    pub fn blob_size(&self, digest: &Digest) -> Result<Option<u64>> {
        let path = self.blob_path(digest);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
            Ok(_) => Err(Error::bad_content(format!("{} is not a file", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("cannot inspect {}", path.display()), error)),
        }
    }

    /// Returns the path of a blob, whether or not it exists.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        let mut path = self.path("blobs");
        path.push(digest.algorithm().as_str());
        path.push(digest.hex());
        path
    }

    /// Opens a blob; the error for a missing blob names it.
    pub fn open_blob(&self, digest: &Digest) -> Result<File> {
        let path = self.blob_path(digest);
        File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(digest),
            _ => Error::io(format!("cannot open {}", path.display()), error),
        })
    }

    /// Reads a small blob (manifest, config) and checks its digest. Rejects blobs of more than
    /// `limit` bytes.
    pub fn read_blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>> {
        let file = self.open_blob(digest)?;
        let path = self.blob_path(digest);
        let size = file.metadata().path("look at", &path)?.len();
        if size > limit {
            return Err(Error::bad_content(format!(
                "blob {digest} has {size} bytes; at most {limit} are allowed for a blob of this \
                 type"
            )));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.take(limit).read_to_end(&mut bytes).path("read", &path)?;
        let mut hasher = Hasher::with(digest.algorithm());
        hasher.update(&bytes);
        if hasher.finish() != *digest {
            return Err(damaged(digest));
        }
        Ok(bytes)
    }

    /// Starts a new blob.
    pub fn ingest(&self) -> Result<Ingest> {
        let path = self.path("ingest").join(unique_name());
        let alive = Lock::acquire(&path, Mode::Exclusive, &mut || {})?;
        let file = OpenOptions::new().write(true).open(&path).path("open", &path)?;
        Ok(Ingest {
            file,
            path,
            written: 0,
            write_back: WriteBack::new(self.is_synced()),
            _alive: alive,
        })
    }

    /// Like [`Store::ingest`], for a blob of `size` bytes that is made out of what is here: fails at once if
    /// the file system has no room for it.
    pub fn ingest_of(&self, size: u64) -> Result<Ingest> {
        self.check_room(size)?;
        self.ingest()
    }

    /// Fails if the file system has no room for those of `blobs` that are not here, beyond what their
    /// interrupted downloads have brought.
    pub fn check_room_for<'a>(
        &self,
        blobs: impl IntoIterator<Item = &'a Descriptor>,
    ) -> Result<()> {
        let mut needed: u64 = 0;
        for blob in blobs {
            if self.blob_size(&blob.digest)? != Some(blob.size) {
                let missing = blob.size.saturating_sub(self.partial_length(&blob.digest));
                needed = needed.saturating_add(missing);
            }
        }
        self.check_room(needed)
    }

    /// Fails if the file system has no room for `needed` more bytes.
    pub fn check_room(&self, needed: u64) -> Result<()> {
        let Some(free) = space::free(&self.path("ingest"))?.filter(|free| *free < needed) else {
            return Ok(());
        };
        Err(Error::new(
            Kind::NoSpace,
            format!(
                "{needed} more bytes do not fit into {}, where {free} bytes are free",
                self.layout().display()
            ),
        )
        .hint("free space there (`imgctl df`, `imgctl prune`), or use another store (--root)"))
    }

    /// Publishes a finished ingest under `digest`, which the caller has computed over exactly the
    /// bytes written. Keeps an existing blob.
    pub fn commit(&self, ingest: Ingest, digest: &Digest) -> Result<()> {
        self.hold([digest])?;
        // A blob of another size is torn (written with --no-sync) and is replaced.
        if self.blob_size(digest)? == Some(ingest.written) {
            return self.reuse_blob(digest);
        }
        let path = self.blob_path(digest);
        if digest.algorithm() != Algorithm::Sha256 {
            self.make_algorithm_directory(digest.algorithm())?;
        }
        self.publish(ingest, &path, 0o444)
    }

    /// Stores small content and returns its digest.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        self.hold([&digest])?;
        if self.blob_size(&digest)? == Some(bytes.len() as u64) {
            self.reuse_blob(&digest)?;
            return Ok(digest);
        }
        let mut ingest = self.ingest()?;
        ingest.write_all(bytes).doing(|| format!("cannot write blob {digest}"))?;
        self.commit(ingest, &digest)?;
        Ok(digest)
    }

    /// Stores a document of an image as JSON and returns its descriptor.
    pub fn put_document(&self, media_type: &str, document: &impl Serialize) -> Result<Descriptor> {
        let bytes = serde_json::to_vec(document)
            .map_err(|error| Error::failed("cannot write an image document").caused_by(error))?;
        Ok(Descriptor::new(media_type, self.put_blob(&bytes)?, bytes.len() as u64))
    }

    /// Imports a blob from a stream and checks size and digest; nothing is visible unless both
    /// match. Does not read `reader` if the blob already exists.
    pub fn import_blob(&self, reader: &mut dyn Read, digest: &Digest, size: u64) -> Result<()> {
        self.hold([digest])?;
        if self.blob_size(digest)? == Some(size) {
            return self.reuse_blob(digest);
        }
        let mut ingest = self.ingest()?;
        let mut hasher = Hasher::with(digest.algorithm());
        // One byte more than allowed distinguishes a longer stream from one of the right size.
        let mut limited = reader.take(size.saturating_add(1));
        copy_hashed(&mut limited, &mut hasher, &mut ingest)
            .map_err(|error| error.context(format!("cannot import blob {digest}")))?;
        let found = ingest.written();
        if found != size {
            let relation = if found > size { "more" } else { "fewer" };
            return Err(Error::bad_content(format!(
                "blob {digest} has {relation} bytes than the {size} its descriptor says"
            )));
        }
        let computed = hasher.finish();
        if computed != *digest {
            return Err(Error::bad_content(format!(
                "blob {digest} has other content: its digest is {computed}"
            )));
        }
        self.commit(ingest, digest)
    }

    /// Publishes a finished file at `path`, replacing any existing file.
    #[allow(clippy::needless_pass_by_value, reason = "the file is no longer to be written to")]
    pub(super) fn publish(&self, ingest: Ingest, path: &Path, mode: u32) -> Result<()> {
        self.publish_file(&ingest.file, &ingest.path, path, mode)
    }

    /// Like `publish`, for a file at `from`.
    pub(super) fn publish_file(
        &self,
        file: &File,
        from: &Path,
        to: &Path,
        mode: u32,
    ) -> Result<()> {
        file.set_permissions(Permissions::from_mode(mode)).path("set the mode of", from)?;
        if self.is_synced() {
            file.sync_data().path("sync", from)?;
        } else {
            self.mark_unsynced()?;
        }
        std::fs::rename(from, to).path("create", to)
    }

    /// Publishes a file that can be recreated if a power failure destroys it.
    #[allow(clippy::needless_pass_by_value, reason = "the file is no longer to be written to")]
    pub(super) fn publish_unsynced(&self, ingest: Ingest, path: &Path) -> Result<()> {
        std::fs::rename(&ingest.path, path).path("create", path)
    }

    /// Claims a blob and reports whether it exists, complete and durable. An image that is built
    /// from it can rely on that while this store value lives.
    pub fn claim_blob(&self, digest: &Digest, size: u64) -> Result<bool> {
        self.hold([digest])?;
        let is_here = self.blob_size(digest)? == Some(size);
        if is_here {
            self.reuse_blob(digest)?;
        }
        Ok(is_here)
    }

    /// Makes an existing blob durable: another process may have just written it, and it may not be
    /// on disk yet.
    fn reuse_blob(&self, digest: &Digest) -> Result<()> {
        if self.is_synced() {
            let path = self.blob_path(digest);
            self.open_blob(digest)?.sync_data().path("sync", path)?;
        }
        Ok(())
    }

    pub(super) fn make_algorithm_directory(&self, algorithm: Algorithm) -> Result<()> {
        let path = self.path("blobs").join(algorithm.as_str());
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.path("create the directory", &path),
        }
    }

    /// Reports whether the blob's content matches its digest.
    pub fn verify_blob(&self, digest: &Digest) -> Result<bool> {
        let mut file = self.open_blob(digest)?;
        let mut hasher = Hasher::with(digest.algorithm());
        copy_hashed(&mut file, &mut hasher, &mut io::sink())?;
        Ok(hasher.finish() == *digest)
    }

    /// Returns the digests of all existing blobs, sorted. Skips files with other names.
    pub fn blob_digests(&self) -> Result<Vec<Digest>> {
        let mut digests = Vec::new();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512] {
            let directory = self.path("blobs").join(algorithm.as_str());
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.path("list", &directory)?,
            };
            for entry in entries {
                let name = entry.path("list", &directory)?.file_name();
                let text = format!("{}:{}", algorithm.as_str(), name.to_string_lossy());
                digests.extend(Digest::parse(&text).ok());
            }
        }
        digests.sort();
        Ok(digests)
    }
}

/// Copies everything and hashes it.
pub fn copy_hashed(
    reader: &mut dyn Read,
    hasher: &mut Hasher,
    writer: &mut dyn Write,
) -> Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut total = 0;
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // An error from a registry's reader needs no additional text.
            Err(error) => {
                let told = error.downcast::<Error>();
                return Err(told.unwrap_or_else(|error| Error::io("cannot read", error)));
            }
        };
        hasher.update(&buffer[..count]);
        writer.write_all(&buffer[..count]).doing(|| "cannot write".to_owned())?;
        total += count as u64;
    }
}

pub(super) fn missing(digest: &Digest) -> Error {
    Error::new(Kind::NotFound, format!("blob {digest} is not in the store"))
        .hint("pull, load or build the image that it belongs to again")
}

fn damaged(digest: &Digest) -> Error {
    Error::bad_content(format!("blob {digest} is damaged: its content has another digest")).hint(
        "`imgctl scrub --repair` moves damaged blobs away; then load or build the image again",
    )
}
