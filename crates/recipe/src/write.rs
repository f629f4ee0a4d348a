//! Puts files into a folder: all of them, or none. What is there already and differs is never replaced, unless it is what
//! was written there before.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability, remove_tree};

use crate::File;

/// Holds the new files until all of them are written.
const STAGE: &str = ".imgctl-init";

/// The lock file of a build: without one, nothing is recorded.
pub(crate) const LOCK: &str = "imgctl.lock";

/// Maximum number of files that an error names.
const MOST_NAMED: usize = 5;

/// What a folder has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Paths of new and replaced files.
    pub written: Vec<String>,
    /// Files that were there with the same content.
    pub kept: Vec<String>,
}

/// Writes `files` into `folder`, which is made if it does not exist. `former` are the files that `imgctl init` wrote before: they
/// may be replaced.
///
/// # Errors
/// If a file exists and is another one; nothing is changed then.
pub fn write(folder: &Path, files: &[File], former: &[File]) -> Result<Written> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::usage(format!("{} is not a directory", folder.display()))
            .hint("name a directory, which is made if it does not exist"));
    }
    let mut result = Written::default();
    let mut new = Vec::new();
    let mut others = Vec::new();
    for file in files {
        let path = folder.join(&file.path);
        match existing(&path)? {
            Existing::Nothing if is_free(folder, &file.path) => {
                new.push((Cow::Borrowed(file), None));
            }
            Existing::File(bytes) if bytes == file.bytes => result.kept.push(file.path.clone()),
            // Builds add to it, and so do charts that come later.
            Existing::File(bytes) if file.path == LOCK => match with_charts(&bytes, &file.bytes) {
                Some(more) => {
                    new.push((Cow::Owned(File { bytes: more, ..file.clone() }), Some(bytes)));
                }
                None => result.kept.push(file.path.clone()),
            },
            Existing::File(bytes)
                if former.iter().any(|old| old.path == file.path && old.bytes == bytes) =>
            {
                new.push((Cow::Borrowed(file), Some(bytes)));
            }
            _ => others.push(file.path.clone()),
        }
    }
    if !others.is_empty() {
        let hint = if former.is_empty() {
            "move them away, or name another folder"
        } else {
            "they were changed since: make the new folder elsewhere, and take over what it has"
        };
        let message = format!("{} already contains other files", folder.display());
        let more = others.len().saturating_sub(MOST_NAMED);
        others.truncate(MOST_NAMED);
        if more > 0 {
            others.push(format!("and {more} more"));
        }
        return Err(Error::usage(message).lines(others).hint(hint));
    }
    let mut placing = Placing::default();
    placing.directory(folder)?;
    let stage = folder.join(STAGE);
    // Of a command that was killed.
    remove_tree(&stage)?;
    fs::create_dir(&stage).path("make", &stage)?;
    placing.stage = Some(stage.clone());
    for (number, (file, _)) in new.iter().enumerate() {
        let path = stage.join(number.to_string());
        atomic::write(&path, &file.bytes, file.mode, Durability::Atomic)?;
    }
    for (number, (file, old)) in new.into_iter().enumerate() {
        let path = folder.join(&file.path);
        if let Some(parent) = path.parent() {
            placing.directory(parent)?;
        }
        fs::rename(stage.join(number.to_string()), &path).path("write", &path)?;
        placing.files.push((path, old));
        result.written.push(file.path.clone());
    }
    placing.keep();
    Ok(result)
}

/// Returns a lock file with the charts of another one that it lacks; `None` if it lacks none.
fn with_charts(there: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    let (mut text, wanted) =
        (String::from_utf8_lossy(there).into_owned(), String::from_utf8_lossy(wanted));
    let before = text.len();
    for entry in wanted.split("\n[[chart]]\n").skip(1) {
        let file = entry.lines().next().unwrap_or_default();
        if !text.lines().any(|line| line == file) {
            text.push_str("\n[[chart]]\n");
            text.push_str(entry);
        }
    }
    (text.len() > before).then(|| text.into_bytes())
}

enum Existing {
    Nothing,
    File(Vec<u8>),
    Other,
}

fn existing(path: &Path) -> Result<Existing> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Existing::Nothing),
        // A file where a folder has to be.
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Ok(Existing::Other),
        found if found.as_ref().is_ok_and(fs::Metadata::is_file) => {
            Ok(Existing::File(fs::read(path).path("read", path)?))
        }
        found => found.path("read", path).map(|_| Existing::Other),
    }
}

/// Returns whether nothing but folders is above the file.
fn is_free(folder: &Path, path: &str) -> bool {
    let mut above = Path::new(path).ancestors().skip(1).filter(|part| !part.as_os_str().is_empty());
    above.all(|part| fs::symlink_metadata(folder.join(part)).map_or(true, |found| found.is_dir()))
}

/// The changes so far. They are rolled back on drop unless kept.
#[derive(Default)]
struct Placing {
    directories: Vec<PathBuf>,
    stage: Option<PathBuf>,
    /// With what was there before.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
}

impl Placing {
    /// Makes a directory and what is missing above it.
    fn directory(&mut self, path: &Path) -> Result<()> {
        let missing: BTreeSet<&Path> = path
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
            .take_while(|part| !part.exists())
            .collect();
        for part in missing {
            fs::create_dir(part).path("make", part)?;
            self.directories.push(part.to_owned());
        }
        Ok(())
    }

    fn keep(mut self) {
        self.directories.clear();
        self.files.clear();
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        // Whatever fails here, an error is on its way already.
        for (path, old) in self.files.iter().rev() {
            let _ = match old {
                None => fs::remove_file(path).path("remove", path),
                Some(bytes) => atomic::write(path, bytes, 0o644, Durability::Atomic),
            };
        }
        if let Some(stage) = &self.stage {
            let _ = remove_tree(stage);
        }
        for path in self.directories.iter().rev() {
            let _ = fs::remove_dir(path);
        }
    }
}
