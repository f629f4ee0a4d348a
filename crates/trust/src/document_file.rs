//! A document about an image while it has no other place: in a file, since an SBOM may be larger than
//! memory. Must not know what it says.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::image::{Descriptor, Digest, digest::Hasher};
use imgctl_store::store::Store;

/// A document in a file without a name, which is gone with the last clone.
#[derive(Clone, Debug)]
pub struct DocumentFile {
    file: Arc<File>,
    digest: Digest,
    /// In bytes.
    size: u64,
}

impl DocumentFile {
    /// Keeps what `write` writes.
    pub fn write(store: &Store, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Self> {
        let out = BufWriter::with_capacity(64 << 10, store.scratch_file()?);
        let mut out = Hashed { out, hasher: Hasher::new(), size: 0 };
        write(&mut out)?;
        let Hashed { out, hasher, size } = out;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error).doing(doing)?;
        Ok(Self { file: Arc::new(file), digest: hasher.finish(), size })
    }

    /// Returns the document as a blob.
    pub fn descriptor(&self, media_type: &str) -> Descriptor {
        Descriptor::new(media_type, self.digest.clone(), self.size)
    }

    /// Returns the bytes from `offset` on.
    pub fn reader(&self, offset: u64) -> impl Read + Send + use<> {
        Reader { file: Arc::clone(&self.file), at: offset }
    }

    /// Writes the document to `out`.
    pub fn copy_to(&self, out: &mut dyn Write) -> Result<()> {
        io::copy(&mut self.reader(0), out).doing(doing).map(drop)
    }
}

fn doing() -> String {
    "cannot write a document about an image".to_owned()
}

struct Hashed {
    out: BufWriter<File>,
    hasher: Hasher,
    size: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Several may read one file.
struct Reader {
    file: Arc<File>,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
