//! Applies a layer's entries to a directory: as an overlay lower directory (whiteouts become 0/0
//! devices or xattrs) or flat (whiteouts delete). This is the only module that creates files from
//! foreign content.
//!
//! By construction, nothing is written outside the directory: every call names one component
//! relative to a directory that was itself reached from the root through directories only
//! (`parents.rs`), and never follows a symlink. An entry below a non-directory replaces it with a
//! directory, as the union of the layers would show it.
//!
//! The rules are those of the OCI image layer specification. Where it does not define a case, the
//! result is the tree that overlayfs shows. Must not depend on archives, blobs or the store.

mod attributes;
mod hidden;
mod parents;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::whiteout::{self, Marker};
use crate::{Entry, EntryKind, LayerPath};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::atomic::remove_at;
use imgctl_base::fs::directory;
use imgctl_base::fs::metadata::{FileKind, Metadata};

pub use crate::entry::is_left_out;
use attributes::{Attributes, Target};
use hidden::Hidden;
use parents::{Missing, Parents, Reach};

/// Form of the unpacked directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One layer for overlayfs, with `trusted.overlay.*` xattrs and 0/0 devices as root, or with
    /// `user.overlay.*` xattrs (mount option `userxattr`).
    Overlay { user_xattrs: bool },
    /// The merged tree of all layers applied so far: whiteouts delete.
    Flat,
}

impl Form {
    /// Returns the xattr name space that overlayfs uses in trees of this form, with the final dot.
    fn overlay_prefix(self) -> Option<&'static [u8]> {
        match self {
            Self::Overlay { user_xattrs: false } => Some(b"trusted.overlay."),
            Self::Overlay { user_xattrs: true } => Some(b"user.overlay."),
            Self::Flat => None,
        }
    }
}

/// Handling of ownership, devices and privileged xattrs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Sets everything and fails if that is not possible. (In a user namespace, which does not
    /// permit creating devices, they are left out with a note.)
    Root,
    /// Owners are not set and devices are left out with a note, as for an ordinary user.
    User,
}

/// Finds hard link targets in lower layers (overlay form only).
pub trait LowerFiles {
    /// Returns the file `path` (not a directory) in the lower layers, or `None` if there is none.
    fn find(&self, path: &LayerPath) -> Result<Option<LowerFile>>;
}

/// A file of a lower layer, on the same file system as the directory being unpacked into.
pub struct LowerFile {
    pub directory: OwnedFd,
    pub name: Vec<u8>,
}

/// Whether an entry had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Yes,
    /// An opaque marker for a directory that its own layer has since replaced: markers affect the
    /// layers below, so the layer's own entry remains.
    Ignored,
}

/// No lower layers: a link to a file that the layer does not contain is an error.
pub struct NoLowerFiles;

impl LowerFiles for NoLowerFiles {
    fn find(&self, _path: &LayerPath) -> Result<Option<LowerFile>> {
        Ok(None)
    }
}

/// Applies entries one after another inside one directory.
pub struct Unpacker {
    parents: Parents,
    attributes: Attributes,
    hidden: Hidden,
}

impl Unpacker {
    /// Creates an unpacker for `root`, a directory open for reading. It is empty for an overlay
    /// layer; for a flat tree, its content counts as that of lower layers. An empty directory
    /// starts with mode 0755 and time 0, which a layer's own root entry may change.
    pub fn new(root: OwnedFd, form: Form, privilege: Privilege) -> Result<Self> {
        let attributes = Attributes::new(form, privilege);
        let mut parents = Parents::new(root, attributes.identity())
            .doing(|| "cannot examine the directory to unpack into".to_owned())?;
        let is_empty = directory::names(parents.top())
            .doing(|| "cannot list the directory to unpack into".to_owned())?
            .is_empty();
        if is_empty {
            parents.set_times(attributes::EPOCH);
            fs::fchmod(parents.top(), Mode::from_raw_mode(0o755))
                .doing(|| "cannot set the mode of the directory to unpack into".to_owned())?;
        }
        Ok(Self { parents, attributes, hidden: Hidden::new(form, !is_empty) })
    }

    /// Applies one entry with its content. After an error the tree is incomplete, and the caller
    /// must discard it.
    pub fn apply(
        &mut self,
        entry: &Entry,
        content: &mut dyn BufRead,
        lower: &dyn LowerFiles,
    ) -> Result<Applied> {
        self.apply_entry(entry, content, lower).context(|| format!("cannot unpack {}", entry.path))
    }

    /// Makes `path` another name of a file that was unpacked before.
    pub fn link(&mut self, path: &LayerPath, file: &LowerFile) -> Result<()> {
        let name = path.file_name().unwrap_or_default();
        self.enter(path.parent().unwrap_or_default().as_bytes())?;
        self.link_from(path, name, file).context(|| format!("cannot link {path}"))?;
        self.hidden.wrote(path.as_bytes());
        Ok(())
    }

    /// Starts the next layer (flat form): its whiteouts may delete what has been written so far.
    pub fn next_layer(&mut self) {
        self.hidden.next_layer();
    }

    /// Sets the times of directories and returns notes about metadata that could not be preserved
    /// (an ordinary user's devices and owners, `user.*` xattrs that the file system does not
    /// support).
    pub fn finish(mut self) -> Result<Vec<String>> {
        self.parents
            .leave_all()
            .doing(|| "cannot set the times of the unpacked directories".to_owned())?;
        for (path, mode) in self.attributes.postponed_modes() {
            if let Ok(Reach::Directory(fd)) = self.parents.reach(&path) {
                fs::fchmod(&fd, mode).path("set the mode of", display(&path))?;
            }
        }
        Ok(self.attributes.into_notes())
    }

    fn apply_entry(
        &mut self,
        entry: &Entry,
        content: &mut dyn BufRead,
        lower: &dyn LowerFiles,
    ) -> Result<Applied> {
        let path = entry.path.as_bytes();
        match whiteout::marker(&entry.path)? {
            Marker::Whiteout(path) => {
                let renewed = self.hidden.whiteout(&mut self.parents, &path)?;
                return self.renew(renewed);
            }
            Marker::Opaque(directory) => return self.opaque(directory.as_bytes()),
            Marker::Leftover => return Ok(Applied::Ignored),
            Marker::None => {}
        }
        let Some(name) = entry.path.file_name() else {
            self.apply_root(entry)?;
            return Ok(Applied::Yes);
        };
        let parent = path.get(..path.len() - name.len()).unwrap_or_default();
        self.enter(parent.strip_suffix(b"/").unwrap_or(parent))?;
        match &entry.kind {
            EntryKind::File { .. } => self.file(entry, name, content)?,
            EntryKind::Directory => self.directory(entry, name)?,
            EntryKind::Symlink { target } => self.symlink(entry, name, target)?,
            EntryKind::HardLink { target } => self.hard_link(entry, name, target, lower)?,
            EntryKind::CharDevice { major: 0, minor: 0 } => {
                return Err(whiteout::device_refused(&entry.path));
            }
            EntryKind::CharDevice { major, minor } => {
                self.node(entry, name, FileType::CharacterDevice, (*major, *minor))?;
            }
            EntryKind::BlockDevice { major, minor } => {
                self.node(entry, name, FileType::BlockDevice, (*major, *minor))?;
            }
            EntryKind::Fifo => self.node(entry, name, FileType::Fifo, (0, 0))?,
        }
        self.hidden.wrote(path);
        Ok(Applied::Yes)
    }

    fn opaque(&mut self, directory: &[u8]) -> Result<Applied> {
        if self.hidden.is_settled(&mut self.parents, directory)? {
            return Ok(Applied::Ignored);
        }
        // The marker also implies the directory.
        self.enter(directory)?;
        self.hidden.marked(directory);
        let renewed = self.hidden.opaque(&mut self.parents, directory)?;
        self.renew(renewed)
    }

    /// Flat form: resets directories to the metadata of unlisted ones. They belonged to a lower
    /// layer, and a marker deleted them after something had been added to them.
    fn renew(&mut self, directories: Vec<Vec<u8>>) -> Result<Applied> {
        for path in directories {
            let entry = Entry::new(LayerPath::parse(&path)?, EntryKind::Directory, 0o755);
            self.enter(&path)?;
            let inherited = self.parents.gid();
            self.attributes.reset(self.parents.top())?;
            self.attributes.apply(&entry, Target::Open(self.parents.top()), inherited)?;
            self.parents.describe(&entry);
        }
        Ok(Applied::Yes)
    }

    /// Enters the directory `path`, creating missing directories and replacing non-directories.
    fn enter(&mut self, path: &[u8]) -> Result<()> {
        let entered = self
            .parents
            .enter(path, Missing::Create)
            .path("open or create the directory", display(path))?;
        match entered.replaced {
            Some(end) => {
                let replaced = path.get(..end).unwrap_or(path);
                self.hidden.replacing(replaced);
                self.forget(replaced);
                self.hidden.replaced(&self.parents, replaced)
            }
            None => Ok(()),
        }
    }

    fn apply_root(&mut self, entry: &Entry) -> Result<()> {
        if !entry.is_directory() {
            return Err(Error::bad_content("the image's root is not a directory"));
        }
        // The root entry need not come first: the directory of the preceding entry may still be
        // open.
        self.enter(b"")?;
        let inherited = self.parents.gid();
        self.attributes.reset(self.parents.top())?;
        self.attributes.apply(entry, Target::Open(self.parents.top()), inherited)?;
        self.parents.describe(entry);
        Ok(())
    }

    fn file(&mut self, entry: &Entry, name: &[u8], content: &mut dyn BufRead) -> Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd =
            self.place(&entry.path, name, |directory| fs::openat(directory, name, flags, mode))?;
        let file = File::from(fd);
        copy(content, entry.size(), &file)?;
        let target = Target::Open(file.as_fd());
        self.attributes.apply(entry, target, self.parents.gid())
    }

    fn directory(&mut self, entry: &Entry, name: &[u8]) -> Result<()> {
        let parent = self.parents.top();
        let inherited = self.parents.gid();
        // Whether something of this name existed, and whether it was a directory.
        let existed = match fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => None,
            Err(Errno::EXIST) => Some(directory::open(parent, name)),
            Err(error) => return Err(error).doing(|| "cannot create the directory".to_owned()),
        };
        let (fd, replaced) = match existed {
            None => (directory::open(parent, name), false),
            Some(Err(Errno::NOTDIR | Errno::LOOP)) => {
                self.hidden.replacing(entry.path.as_bytes());
                self.clear(&entry.path, name)?;
                let fd = fs::mkdirat(self.parents.top(), name, Mode::RWXU)
                    .and_then(|()| directory::open(self.parents.top(), name));
                (fd, true)
            }
            Some(Ok(fd)) => {
                self.attributes.reset(fd.as_fd())?;
                (Ok(fd), false)
            }
            Some(error) => (error, false),
        };
        let fd = fd.doing(|| "cannot open the directory".to_owned())?;
        self.parents.push(name, fd, entry);
        let target = Target::Open(self.parents.top());
        self.attributes.apply(entry, target, inherited)?;
        if replaced {
            self.hidden.replaced(&self.parents, entry.path.as_bytes())?;
        }
        Ok(())
    }

    fn symlink(&mut self, entry: &Entry, name: &[u8], target: &[u8]) -> Result<()> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::bad_content("its target is empty or contains a NUL"));
        }
        self.place(&entry.path, name, |directory| fs::symlinkat(target, directory, name))?;
        let link = Target::Symlink(self.parents.top(), name);
        self.attributes.apply(entry, link, self.parents.gid())
    }

    fn node(
        &mut self,
        entry: &Entry,
        name: &[u8],
        kind: FileType,
        (major, minor): (u32, u32),
    ) -> Result<()> {
        if kind != FileType::Fifo && !self.attributes.may_make_devices() {
            self.attributes.note(attributes::DEVICES, &entry.path);
            // The layer still replaces what was there.
            return self.clear(&entry.path, name);
        }
        let device = fs::makedev(major, minor);
        self.place(&entry.path, name, |directory| {
            fs::mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)
        })?;
        let node = Target::Node(self.parents.top(), name);
        self.attributes.apply(entry, node, self.parents.gid())
    }

    /// Links to a file of this tree or of the lower layers (never through a symlink; a link to a
    /// symlink is another name of the symlink).
    fn hard_link(
        &mut self,
        entry: &Entry,
        name: &[u8],
        target: &LayerPath,
        lower: &dyn LowerFiles,
    ) -> Result<()> {
        whiteout::check_link(&entry.path, target)?;
        let place = self.target(target)?;
        let is_itself = matches!(place, LinkTarget::Here(_)) && *target == entry.path;
        let found = match place {
            LinkTarget::Here(found) => Some(found),
            LinkTarget::Below => lower.find(target)?,
            LinkTarget::Nowhere => None,
        };
        let Some(found) = found else {
            return Err(Error::bad_content(format!(
                "it is a hard link to {target}, which does not exist"
            )));
        };
        self.attributes.check_link(entry, &found)?;
        if is_itself {
            return Ok(());
        }
        self.link_from(&entry.path, name, &found)
    }

    fn link_from(&mut self, path: &LayerPath, name: &[u8], file: &LowerFile) -> Result<()> {
        self.place(path, name, |directory| {
            let from = file.name.as_slice();
            fs::linkat(&file.directory, from, directory, name, AtFlags::empty())
        })
    }

    fn target(&self, target: &LayerPath) -> Result<LinkTarget> {
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Error::bad_content("it is a hard link to the image's root"));
        };
        let parent = parent.as_bytes();
        let reached = self
            .parents
            .reach(parent)
            .doing(|| format!("cannot open the directory of {target}"))?;
        let below = if self.hidden.is_below_opaque(parent) {
            LinkTarget::Nowhere
        } else {
            LinkTarget::Below
        };
        let directory = match reached {
            Reach::Directory(directory) => directory,
            Reach::Absent => return Ok(below),
            Reach::Blocked => return Ok(LinkTarget::Nowhere),
        };
        if self.hidden.is_whiteout(target.as_bytes()) {
            return Ok(LinkTarget::Nowhere);
        }
        match Metadata::at(&directory, name) {
            Ok(found) if found.kind == FileKind::Directory => {
                Err(Error::bad_content(format!("it is a hard link to the directory {target}")))
            }
            Ok(_) => Ok(LinkTarget::Here(LowerFile { directory, name: name.to_vec() })),
            Err(Errno::NOENT) => Ok(below),
            Err(error) => Err(error).doing(|| format!("cannot examine {target}")),
        }
    }

    /// Creates a new file and removes what is in its place first.
    fn place<T>(
        &mut self,
        path: &LayerPath,
        name: &[u8],
        mut create: impl FnMut(std::os::fd::BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Result<T> {
        let created = match create(self.parents.top()) {
            Err(Errno::EXIST) => {
                self.clear(path, name)?;
                create(self.parents.top())
            }
            created => created,
        };
        created.doing(|| "cannot create it".to_owned())
    }

    /// Removes what is at `name`, even a tree, and the recorded state about it.
    fn clear(&mut self, path: &LayerPath, name: &[u8]) -> Result<()> {
        remove_at(self.parents.top(), name)
            .doing(|| "cannot remove what was there before".to_owned())?;
        self.forget(path.as_bytes());
        Ok(())
    }

    /// Discards the recorded state of `path` and everything below it after their removal.
    fn forget(&mut self, path: &[u8]) {
        self.hidden.forget(path);
        self.attributes.forget(path);
    }
}

/// Copies exactly `size` bytes, directly from where they lie.
fn copy(content: &mut dyn BufRead, size: u64, mut file: &File) -> Result<()> {
    let mut left = size;
    while left > 0 {
        let reading = || format!("cannot read its content ({left} of {size} bytes missing)");
        let here = match content.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            here => here.doing(reading)?,
        };
        if here.is_empty() {
            return Err(io::Error::from(ErrorKind::UnexpectedEof)).doing(reading);
        }
        let wanted = usize::try_from(left).map_or(here.len(), |left| here.len().min(left));
        file.write_all(&here[..wanted]).doing(|| "cannot write its content".to_owned())?;
        content.consume(wanted);
        left -= wanted as u64;
    }
    Ok(())
}

/// Location of a hard link's target.
enum LinkTarget {
    Here(LowerFile),
    /// In the lower layers, if it exists.
    Below,
    /// Hidden by this layer.
    Nowhere,
}

/// Formats a path inside the image for messages.
fn display(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}
