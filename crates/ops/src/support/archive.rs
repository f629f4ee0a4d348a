//! The archive itself: one directory, files that only their owner can read, complete or not there.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

use imgctl_base::error::{Error, IoContext as _, Result};

/// A gzip-compressed tar archive in the making. Without [`Archive::finish`], nothing is left of it.
pub(super) struct Archive {
    builder: tar::Builder<GzEncoder<File>>,
    /// Name of the only directory.
    root: String,
    path: PathBuf,
    partial: PathBuf,
    is_finished: bool,
}

impl Archive {
    /// Creates the archive that will be at `path`.
    ///
    /// # Errors
    /// If something is there already.
    pub(super) fn create(path: &Path) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::usage(format!("{} exists", path.display()))
                .hint("name another file with --output"));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| {
            Error::usage(format!("{} names no file", path.display())).hint("--output FILE.tar.gz")
        })?;
        let partial = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)
            .path("create", &partial)?;
        let root = name.strip_suffix(".tar.gz").or(name.strip_suffix(".tgz")).unwrap_or(&name);
        Ok(Self {
            builder: tar::Builder::new(GzEncoder::new(file, Compression::default())),
            root: root.to_owned(),
            path: path.to_owned(),
            partial,
            is_finished: false,
        })
    }

    /// Adds a file at `path` below the directory.
    pub(super) fn add(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(content.len() as u64);
        header.set_mtime(u64::try_from(Timestamp::now().as_second()).unwrap_or_default());
        let path = format!("{}/{path}", self.root);
        self.builder.append_data(&mut header, path, content).path("write", &self.path)
    }

    /// Completes the archive: it gets its name.
    pub(super) fn finish(mut self) -> Result<()> {
        self.builder.finish().path("write", &self.path)?;
        let encoder = self.builder.get_mut();
        encoder.try_finish().path("write", &self.path)?;
        encoder.get_ref().sync_all().path("write", &self.path)?;
        std::fs::rename(&self.partial, &self.path).path("rename", &self.partial)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if !self.is_finished && std::fs::remove_file(&self.partial).is_err() {
            tracing::debug!("{} could not be removed", self.partial.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn an_archive_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar.gz");
        let mut archive = Archive::create(&path).unwrap();
        archive.add("x/y.txt", b"hello").unwrap();
        drop(archive);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        let mut archive = Archive::create(&path).unwrap();
        archive.add("x/y.txt", b"hello").unwrap();
        archive.finish().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let file = flate2::read::GzDecoder::new(File::open(&path).unwrap());
        let mut read = tar::Archive::new(file);
        let names: Vec<String> = read
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["a/x/y.txt"]);
        let again = Archive::create(&path).err().unwrap();
        assert!(again.to_string().contains("exists"), "{again}");
    }
}
