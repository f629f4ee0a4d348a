//! Destinations of saved images: a tar in a file or stream, or a directory. A path appears complete
//! or not at all; the same content always gives the same bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::transfer::parts::write::{PartsWriter, Split};
use crate::transfer::temporary::Temporary;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::output;
use imgctl_layer::tar_writer::{self, append_header, padding};
use imgctl_layer::{BlockWriter, Compression, Entry, EntryKind, LayerPath};

/// Levels of the outer compression; most of the content is already compressed.
const GZIP: Compression = Compression::Gzip { level: 6 };
const ZSTD: Compression = Compression::Zstd { level: 3 };

/// Size of the buffer between a blob and a stream, in bytes.
const COPY_BUFFER: usize = 256 << 10;

/// Compression of the whole archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OuterCompression {
    #[default]
    None,
    Gzip,
    Zstd,
}

/// A member's content.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Bytes(&'a [u8]),
    /// This many bytes of a file, read from its current position.
    File(&'a File, u64),
}

impl Content<'_> {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, size) => *size,
        }
    }
}

/// Receives the members of an archive in order.
pub(super) enum Target {
    Tar(Box<Tar>),
    Directory(Directory),
}

impl Target {
    pub(super) fn directory(&mut self, path: &str) -> Result<()> {
        match self {
            Self::Tar(tar) => tar.directory(path),
            Self::Directory(directory) => directory.directory(path),
        }
    }

    pub(super) fn file(&mut self, path: &str, content: Content<'_>) -> Result<()> {
        match self {
            Self::Tar(tar) => tar.file(path, content),
            Self::Directory(directory) => directory.file(path, content),
        }
    }

    /// Completes the output and makes it visible.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Self::Tar(tar) => tar.finish(),
            Self::Directory(directory) => directory.finish(),
        }
    }
}

/// A tar being written.
pub(super) struct Tar {
    sink: Sink,
    ending: Ending,
}

/// What makes a complete tar visible.
enum Ending {
    /// It is where it was written to.
    InPlace,
    /// The temporary file gets its final name.
    Rename(Temporary, PathBuf),
    Parts(PartsWriter),
}

/// Files take content without a copy through process memory; other sinks are written to.
enum Sink {
    File(File),
    Stream(Box<dyn Write + Send>),
    /// Blocks are compressed in parallel; blocks of already compressed blobs are stored.
    Compressed(Box<BlockWriter<Box<dyn Write + Send>>>),
}

impl Tar {
    /// Writes to a stream.
    pub(super) fn to_stream(
        stream: Box<dyn Write + Send>,
        compression: OuterCompression,
    ) -> Result<Self> {
        Ok(Self { sink: Sink::new(stream, compression)?, ending: Ending::InPlace })
    }

    /// Writes a file, which appears at `path` when finished, or to the pipe or device that is there.
    pub(super) fn to_path(path: &Path, compression: OuterCompression) -> Result<Self> {
        let path = &match output::target(path)? {
            output::Target::Through(file) => return Self::to_stream(Box::new(file), compression),
            output::Target::Replace(path) => path,
        };
        let temporary = Temporary::beside(path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(temporary.path())
            .path("create", path)?;
        let sink = match compression {
            OuterCompression::None => Sink::File(file),
            _ => Sink::new(Box::new(file), compression)?,
        };
        Ok(Self { sink, ending: Ending::Rename(temporary, path.to_owned()) })
    }

    /// Writes parts, which appear when all of them are complete.
    pub(super) fn to_parts(
        path: &Path,
        split: &Split,
        compression: OuterCompression,
    ) -> Result<Self> {
        let parts = PartsWriter::create(path, split)?;
        let sink = Sink::new(Box::new(parts.clone()), compression)?;
        Ok(Self { sink, ending: Ending::Parts(parts) })
    }

    fn directory(&mut self, path: &str) -> Result<()> {
        self.header(path, EntryKind::Directory, 0o755)
    }

    fn file(&mut self, path: &str, content: Content<'_>) -> Result<()> {
        let size = content.size();
        self.header(path, EntryKind::File { size }, 0o644)?;
        let doing = || format!("cannot write {path} to the archive");
        self.sink.copy(content).doing(doing)?;
        self.sink.write_all(&[0; 512][..padding(size)]).doing(doing)
    }

    fn header(&mut self, path: &str, kind: EntryKind, mode: u32) -> Result<()> {
        let entry = Entry::new(LayerPath::parse(path.as_bytes())?, kind, mode);
        let mut header = Vec::with_capacity(512);
        append_header(&entry, &mut header)?;
        self.sink.write_all(&header).doing(|| format!("cannot write {path} to the archive"))
    }

    fn finish(mut self) -> Result<()> {
        let doing = || "cannot finish the archive".to_owned();
        self.sink.write_all(&tar_writer::END).doing(doing)?;
        self.sink.finish().doing(doing)?;
        match self.ending {
            Ending::Rename(temporary, path) => {
                std::fs::rename(temporary.path(), &path).path("create", &path)
            }
            Ending::Parts(parts) => parts.finish(),
            Ending::InPlace => Ok(()),
        }
    }
}

impl Sink {
    fn new(stream: Box<dyn Write + Send>, compression: OuterCompression) -> Result<Self> {
        Ok(match compression {
            OuterCompression::None => Self::Stream(stream),
            OuterCompression::Gzip => Self::compressed(stream, GZIP)?,
            OuterCompression::Zstd => Self::compressed(stream, ZSTD)?,
        })
    }

    fn compressed(stream: Box<dyn Write + Send>, compression: Compression) -> Result<Self> {
        let blocks = BlockWriter::compressing(stream, compression)?;
        Ok(Self::Compressed(Box::new(blocks)))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Stream(stream) => stream.write_all(bytes),
            Self::Compressed(blocks) => blocks.write_all(bytes),
        }
    }

    fn copy(&mut self, content: Content<'_>) -> io::Result<()> {
        match content {
            Content::Bytes(bytes) => self.write_all(bytes),
            Content::File(file, size) => {
                let mut limited = file.take(size);
                // Between two files, the standard library lets the kernel copy (or share) the data.
                let copied = match self {
                    Self::File(target) => io::copy(&mut limited, target)?,
                    Self::Stream(target) => {
                        // A box hides what it is, so the library would copy in small pieces.
                        let mut limited = io::BufReader::with_capacity(COPY_BUFFER, limited);
                        io::copy(&mut limited, target)?
                    }
                    Self::Compressed(blocks) => blocks.read_from(&mut limited)?,
                };
                if copied == size {
                    return Ok(());
                }
                Err(Error::bad_content(format!("it has {copied} bytes instead of {size}")).into())
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::File(_) => Ok(()),
            Self::Stream(mut stream) => stream.flush(),
            Self::Compressed(blocks) => blocks.finish()?.flush(),
        }
    }
}

/// A directory being written under a temporary name.
pub(super) struct Directory {
    temporary: Temporary,
    path: PathBuf,
}

impl Directory {
    /// Starts a directory with the final name `path`, which must be missing or empty.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let occupied = match std::fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => std::fs::symlink_metadata(path).is_ok(),
        };
        if occupied {
            return Err(Error::new(Kind::Usage, format!("{} exists", path.display()))
                .hint("remove it, or save to another directory"));
        }
        let temporary = Temporary::beside(path);
        std::fs::create_dir(temporary.path()).path("create", path)?;
        Ok(Self { temporary, path: path.to_owned() })
    }

    fn directory(&mut self, path: &str) -> Result<()> {
        let path = self.temporary.path().join(path);
        std::fs::create_dir(&path).path("create", &path)
    }

    fn file(&mut self, path: &str, content: Content<'_>) -> Result<()> {
        let path = self.temporary.path().join(path);
        let file = File::create_new(&path).path("create", &path)?;
        Sink::File(file).copy(content).path("write", &path)
    }

    fn finish(self) -> Result<()> {
        // Replaces `path` only if it is an empty directory.
        std::fs::rename(self.temporary.path(), &self.path).path("create", &self.path)
    }
}
