//! Looks up files of lower layers in their snapshots: the targets of hard links into lower layers
//! (which foreign layers contain, but those written by imgctl never do).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::xattr;
use imgctl_layer::LayerPath;
use imgctl_layer::unpack::{LowerFile, LowerFiles};
use imgctl_layer::whiteout::is_overlay_whiteout;

/// For a layer unpacked on its own: records whether the lower layers would have been needed.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    needed: AtomicBool,
}

impl Alone {
    /// Returns whether the layer asked for a lower file.
    pub(crate) fn was_not_enough(&self) -> bool {
        self.needed.load(Ordering::Relaxed)
    }
}

impl LowerFiles for Alone {
    fn find(&self, path: &LayerPath) -> Result<Option<LowerFile>> {
        self.needed.store(true, Ordering::Relaxed);
        Err(Error::failed(format!("{path} is in a layer below")))
    }
}

/// The snapshots of the layers below.
#[derive(Debug)]
pub(crate) struct LowerSnapshots {
    /// Lowest first.
    snapshots: Vec<PathBuf>,
}

impl LowerSnapshots {
    /// Creates the value; `snapshots` are the `fs` directories of the lower layers, lowest first.
    pub(super) fn new(snapshots: Vec<PathBuf>) -> Self {
        Self { snapshots }
    }
}

/// Another name of a file in its snapshot is the same file in every mount of both layers.
impl LowerFiles for LowerSnapshots {
    fn find(&self, path: &LayerPath) -> Result<Option<LowerFile>> {
        for fs in self.snapshots.iter().rev() {
            let root = Root::open(fs)?;
            match look(&root, path)? {
                Look::Absent => {}
                Look::Hidden => return Ok(None),
                Look::File => return at(&root, path).map(Some),
            }
        }
        Ok(None)
    }
}

enum Look {
    Absent,
    Hidden,
    File,
}

/// Looks up one component after another: a path through a symlink of the same name leads to another
/// file.
fn look(root: &Root, path: &LayerPath) -> Result<Look> {
    let mut walked = LayerPath::root();
    let mut opaque = false;
    let count = path.components().count();
    for (number, name) in path.components().enumerate() {
        opaque |= is_opaque(root, &walked)?;
        walked = walked.join(name);
        let is_last = number + 1 == count;
        match root.symlink_metadata(walked.as_path()) {
            Ok(metadata) if !is_last && metadata.is_directory() => {}
            Ok(metadata) if is_last && !metadata.is_directory() => {
                return if is_whiteout(root, &walked, &metadata)? {
                    Ok(Look::Hidden)
                } else {
                    Ok(Look::File)
                };
            }
            Ok(_) => return Ok(Look::Hidden),
            Err(error) if error.kind() == Kind::NotFound && !opaque => return Ok(Look::Absent),
            Err(error) if error.kind() == Kind::NotFound => return Ok(Look::Hidden),
            Err(error) => return Err(error),
        }
    }
    Ok(Look::Hidden)
}

fn is_whiteout(root: &Root, path: &LayerPath, metadata: &Metadata) -> Result<bool> {
    is_overlay_whiteout(metadata, || {
        let file = root.open_file(path.as_path())?;
        let marks = [&b"trusted.overlay.whiteout"[..], b"user.overlay.whiteout"];
        Ok(marks.iter().any(|mark| matches!(xattr::get(&file, mark), Ok(Some(_)))))
    })
}

fn is_opaque(root: &Root, path: &LayerPath) -> Result<bool> {
    let directory = root.open_directory(path.as_path())?;
    for name in [&b"trusted.overlay.opaque"[..], b"user.overlay.opaque"] {
        match xattr::get(&directory, name) {
            Ok(Some(value)) if value == b"y" => return Ok(true),
            Ok(_) | Err(rustix::io::Errno::NOTSUP) => {}
            Err(errno) => {
                return Err(Error::io(
                    format!("cannot examine {}", root.path().join(path.as_path()).display()),
                    errno,
                ));
            }
        }
    }
    Ok(false)
}

/// Returns the file `path` of a snapshot.
pub(super) fn at(root: &Root, path: &LayerPath) -> Result<LowerFile> {
    let (parent, name) = (path.parent().unwrap_or_default(), path.file_name());
    Ok(LowerFile {
        directory: root.open_directory(parent.as_path())?,
        name: name.unwrap_or_default().to_vec(),
    })
}
