//! Archives as users name them: a file, a directory, or parts of one archive, by any of the parts,
//! their list or the directories in which they lie. Must not know what is in an archive.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::transfer::parts::list::{PartList, SUFFIX, archive_of};
use crate::transfer::parts::set::{Fault, PartSet};
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::progress::{Silent, Task};

/// One archive that can be read.
#[derive(Clone, Debug)]
pub struct Archive(Shape);

#[derive(Clone, Debug)]
enum Shape {
    File(PathBuf),
    Directory(PathBuf),
    Parts(PartSet),
}

/// What the paths of a command line are, before parts are looked for.
#[derive(Default)]
struct Named {
    /// Files that are no lists.
    files: Vec<PathBuf>,
    /// Image layouts.
    layouts: Vec<PathBuf>,
    /// Directories in which parts may lie.
    directories: Vec<PathBuf>,
    /// Directories that hold neither a layout nor a list.
    others: Vec<PathBuf>,
    lists: Vec<PartList>,
}

impl Archive {
    /// Returns the archives that `paths` name: those in parts first, directories last.
    pub fn find(paths: &[impl AsRef<Path>]) -> Result<Vec<Self>> {
        let mut named = Named::default();
        for path in paths {
            named.add(path.as_ref())?;
        }
        if named.lists.is_empty() {
            named.layouts.append(&mut named.others);
        } else {
            named.directories.append(&mut named.others);
        }
        let Named { mut files, layouts, directories, lists, .. } = named;
        let mut archives = Vec::new();
        for list in lists {
            archives.push(Self(Shape::Parts(PartSet::locate(list, &directories, &mut files)?)));
        }
        archives.extend(files.into_iter().map(|path| Self(Shape::File(path))));
        archives.extend(layouts.into_iter().map(|path| Self(Shape::Directory(path))));
        Ok(archives)
    }

    /// Returns the one archive that `paths` name.
    pub fn one(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let mut found = Self::find(paths)?;
        match (found.pop(), found.is_empty()) {
            (Some(archive), true) => Ok(archive),
            (Some(archive), false) => Err(Error::usage(format!(
                "{} and {} are different archives",
                found.iter().map(Self::describe).collect::<Vec<_>>().join(", "),
                archive.describe()
            ))
            .hint("name one archive; of an archive in parts, any part or their directories")),
            (None, _) => Err(Error::usage("no archive is named")),
        }
    }

    /// Returns the path if the archive is a directory.
    pub fn directory(&self) -> Option<&Path> {
        match &self.0 {
            Shape::Directory(path) => Some(path),
            Shape::File(_) | Shape::Parts(_) => None,
        }
    }

    /// Returns the path of the file, the directory or the list of parts.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.0 {
            Shape::File(path) | Shape::Directory(path) => Some(path),
            Shape::Parts(_) => None,
        }
    }

    /// Returns the parts, if the archive has them.
    pub fn parts(&self) -> Option<&PartSet> {
        match &self.0 {
            Shape::Parts(set) => Some(set),
            Shape::File(_) | Shape::Directory(_) => None,
        }
    }

    /// Returns the name for messages.
    pub fn describe(&self) -> String {
        match &self.0 {
            Shape::File(path) | Shape::Directory(path) => path.display().to_string(),
            Shape::Parts(set) => set.list().archive.clone(),
        }
    }

    /// Returns the file name of the whole archive.
    pub(super) fn file_name(&self) -> Option<&str> {
        match &self.0 {
            Shape::File(path) | Shape::Directory(path) => path.file_name()?.to_str(),
            Shape::Parts(set) => Some(&set.list().archive),
        }
    }

    /// Returns the size of a file or of all parts, in bytes.
    pub fn size(&self) -> Result<Option<u64>> {
        Ok(match &self.0 {
            Shape::File(path) => Some(looked_at(path)?).filter(Metadata::is_file).map(|m| m.len()),
            Shape::Directory(_) => None,
            Shape::Parts(set) => Some(set.list().size),
        })
    }

    /// Opens a file or the parts as one stream.
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match &self.0 {
            Shape::File(path) => Ok(Box::new(File::open(path).path("open", path)?)),
            Shape::Directory(path) => {
                Err(Error::usage(format!("{} is a directory", path.display())))
            }
            Shape::Parts(set) => Ok(Box::new(set.open())),
        }
    }

    /// Reads all parts and returns those that are unusable; none of an archive in one piece.
    pub fn faults(&self, task: &dyn Task) -> Result<Vec<Fault>> {
        self.parts().map_or_else(|| Ok(Vec::new()), |set| set.faults(task))
    }

    /// Fails if a part is known to be unusable without reading any.
    pub fn check_present(&self) -> Result<()> {
        let Some(set) = self.parts() else {
            return Ok(());
        };
        let absent = set.absent();
        if absent.is_empty() { Ok(()) } else { Err(set.asks_for(&absent)) }
    }

    /// Returns why the archive could not be read, given what its reader says: a damaged part has
    /// all kinds of consequences, and the part is what the user can replace.
    pub fn blamed(&self, error: Error) -> Error {
        if !matches!(error.kind(), Kind::BadContent | Kind::NotFound) {
            return error;
        }
        match &self.0 {
            Shape::Parts(set) => match set.faults(&Silent) {
                Ok(faults) if !faults.is_empty() => set.asks_for(&faults),
                _ => error,
            },
            Shape::File(path) => match path.file_name().and_then(|n| archive_of(n.to_str()?)) {
                Some(archive) => error.hint(format!(
                    "a part of a split archive needs its list {archive}{SUFFIX} beside it; without \
                     it, join the parts: cat {archive}.[0-9]* | imgctl load"
                )),
                None => error,
            },
            Shape::Directory(_) => error,
        }
    }
}

impl Named {
    fn add(&mut self, path: &Path) -> Result<()> {
        let metadata = match std::fs::metadata(path) {
            // Of an archive in parts there is no file with its name, and a part may be missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.add_beside(path)? {
                    return Ok(());
                }
                return Err(Error::not_found(format!("{} does not exist", path.display())));
            }
            metadata => metadata.path("look at", path)?,
        };
        if metadata.is_dir() {
            return self.add_directory(path);
        }
        if is_list(path) {
            return self.add_list(path);
        }
        self.add_beside(path)?;
        self.files.push(path.to_owned());
        Ok(())
    }

    /// Adds the list beside an archive or a part. Returns whether there is one.
    fn add_beside(&mut self, path: &Path) -> Result<bool> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Ok(false);
        };
        // An archive that is there in one piece is read as such.
        let whole = (!path.exists()).then_some(name);
        for archive in archive_of(name).into_iter().chain(whole) {
            let list = path.with_file_name(format!("{archive}{SUFFIX}"));
            if list.is_file() {
                self.add_list(&list)?;
                return Ok(true);
            }
        }
        self.directories.extend(archive_of(name).map(|_| parent_of(path)));
        Ok(false)
    }

    fn add_directory(&mut self, path: &Path) -> Result<()> {
        if path.join("index.json").exists() || path.join("manifest.json").exists() {
            self.layouts.push(path.to_owned());
            return Ok(());
        }
        let mut lists = Vec::new();
        for entry in std::fs::read_dir(path).path("read", path)? {
            let entry = entry.path("read", path)?.path();
            if is_list(&entry) {
                lists.push(entry);
            }
        }
        lists.sort();
        match &lists[..] {
            [] => self.others.push(path.to_owned()),
            [list] => self.add_list(list)?,
            [first, second, ..] => {
                return Err(Error::usage(format!(
                    "{} holds the parts of several archives",
                    path.display()
                ))
                .hint(format!(
                    "name one, such as {} or {}",
                    first.display(),
                    second.display()
                )));
            }
        }
        Ok(())
    }

    /// Adds a list; each medium may have a copy of it.
    fn add_list(&mut self, path: &Path) -> Result<()> {
        let list = PartList::read(path)?;
        if !self.lists.contains(&list) {
            self.lists.push(list);
        }
        let directory = parent_of(path);
        if !self.directories.contains(&directory) {
            self.directories.push(directory);
        }
        Ok(())
    }
}

fn is_list(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(SUFFIX))
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn looked_at(path: &Path) -> Result<Metadata> {
    std::fs::metadata(path).path("look at", path)
}
