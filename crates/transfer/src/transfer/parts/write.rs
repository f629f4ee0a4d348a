//! Writes an archive in parts. Each grows under a temporary name; all get their own when the
//! archive is complete, and then the list is written.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transfer::parts::list::{MAX_PARTS, Part, PartList, SUFFIX, part_name};
use crate::transfer::temporary::Temporary;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::sync_directory;
use imgctl_base::image::{Digest, Hasher};

/// Minimum size of a part, in bytes.
const MIN_SIZE: u64 = 64 << 10;

/// How an archive is split.
#[derive(Clone, Debug)]
pub struct Split {
    /// Size of each part but the last, in bytes.
    pub size: u64,
    /// Write only the parts with these digests.
    pub only: Option<BTreeSet<Digest>>,
}

/// A stream that becomes parts. Clones write to the same parts.
#[derive(Clone)]
pub(in crate::transfer) struct PartsWriter(Arc<Mutex<Writing>>);

struct Writing {
    /// Path of the whole archive, which is never written.
    path: PathBuf,
    /// Its file name.
    archive: String,
    split: Split,
    current: Option<Open>,
    /// Complete parts; those that are not wanted have no file.
    done: Vec<(Option<Temporary>, Part)>,
}

/// The part being written.
struct Open {
    file: File,
    temporary: Temporary,
    hasher: Hasher,
    written: u64,
}

impl PartsWriter {
    /// Starts the parts of the archive `path`.
    pub(in crate::transfer) fn create(path: &Path, split: &Split) -> Result<Self> {
        if split.size < MIN_SIZE {
            return Err(Error::usage(format!("parts of {} bytes are too small", split.size))
                .hint(format!("a part has at least {} KiB: --split 4GB", MIN_SIZE >> 10)));
        }
        let Some(archive) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::usage(format!(
                "parts cannot be named after {}: it is not a file name in UTF-8",
                path.display()
            )));
        };
        Ok(Self(Arc::new(Mutex::new(Writing {
            path: path.to_owned(),
            archive: archive.to_owned(),
            split: split.clone(),
            current: None,
            done: Vec::new(),
        }))))
    }

    /// Gives the parts their names and writes the list.
    pub(in crate::transfer) fn finish(self) -> Result<()> {
        self.state().finish()
    }

    fn state(&self) -> MutexGuard<'_, Writing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for PartsWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(self.state().write(buffer)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Writing {
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let limit = self.split.size;
        let part = match &mut self.current {
            Some(part) => part,
            None => {
                let open = self.open()?;
                self.current.insert(open)
            }
        };
        let room = usize::try_from(limit - part.written).unwrap_or(usize::MAX);
        let chunk = &buffer[..buffer.len().min(room)];
        part.file.write_all(chunk).path("write", part.temporary.path())?;
        part.hasher.update(chunk);
        part.written += chunk.len() as u64;
        if part.written == limit {
            self.close()?;
        }
        Ok(chunk.len())
    }

    fn open(&self) -> Result<Open> {
        let number = self.done.len() + 1;
        if number > MAX_PARTS {
            return Err(Error::usage(format!(
                "the archive needs more than {MAX_PARTS} parts of {} bytes",
                self.split.size
            ))
            .hint("choose a larger --split"));
        }
        let temporary = Temporary::beside(&self.place(&part_name(&self.archive, number)));
        let file = File::create_new(temporary.path()).path("create", temporary.path())?;
        Ok(Open { file, temporary, hasher: Hasher::new(), written: 0 })
    }

    fn close(&mut self) -> Result<()> {
        let Some(Open { file, temporary, hasher, written }) = self.current.take() else {
            return Ok(());
        };
        let digest = hasher.finish();
        let is_wanted = self.split.only.as_ref().is_none_or(|only| only.contains(&digest));
        if is_wanted {
            // Media are pulled out as soon as the command has ended.
            file.sync_all().path("sync", temporary.path())?;
        }
        let name = part_name(&self.archive, self.done.len() + 1);
        let part = Part { name, size: written, digest };
        self.done.push((is_wanted.then_some(temporary), part));
        Ok(())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.path.with_file_name(name)
    }

    fn finish(&mut self) -> Result<()> {
        self.close()?;
        let done = std::mem::take(&mut self.done);
        if let Some(only) = &self.split.only {
            let made: BTreeSet<&Digest> = done.iter().map(|(_, part)| &part.digest).collect();
            let other = only.iter().filter(|digest| !made.contains(digest)).count();
            if other > 0 {
                return Err(Error::new(
                    Kind::NotFound,
                    format!("{other} of the requested parts are not parts of this archive"),
                )
                .hint(
                    "parts are the same only from the same images with the same options, --split \
                     and version of imgctl; otherwise carry all parts again",
                ));
            }
        }
        let list_path = self.place(&format!("{}{SUFFIX}", self.archive));
        let former = PartList::read(&list_path).ok();
        // While a list is there, the parts are those that it names.
        match std::fs::remove_file(&list_path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.path("remove", &list_path)?,
        }
        let count = done.len();
        let mut parts = Vec::with_capacity(count);
        for (temporary, part) in done {
            if let Some(temporary) = temporary {
                let path = self.place(&part.name);
                std::fs::rename(temporary.path(), &path).path("create", &path)?;
            }
            parts.push(part);
        }
        // Otherwise `cat` would append what is left of a longer archive.
        let surplus = former.map_or(0, |former| former.parts.len());
        for number in count + 1..=surplus {
            let _ = std::fs::remove_file(self.place(&part_name(&self.archive, number)));
        }
        let list = PartList::new(self.archive.clone(), parts).encoded()?;
        let temporary = Temporary::beside(&list_path);
        let mut file = File::create_new(temporary.path()).path("create", &list_path)?;
        file.write_all(&list).path("write", &list_path)?;
        file.sync_all().path("sync", &list_path)?;
        std::fs::rename(temporary.path(), &list_path).path("create", &list_path)?;
        match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => sync_directory(directory),
            _ => sync_directory(Path::new(".")),
        }
    }
}
