//! Files of the layers below, looked up in their snapshots: what a hard link into a lower layer
//! means (foreign layers have them; ours never do).

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, IoContext, Kind, Result};
use crate::fs::metadata::{FileKind, Metadata};
use crate::fs::root::Root;
use crate::fs::xattr;
use crate::layer::unpack::LowerFiles;
use crate::layer::{Entry, EntryKind, LayerPath, Mtime};
use crate::mount::layers::LayerOf;
use crate::store::Store;

/// The snapshots below one layer.
#[derive(Debug)]
pub(crate) struct LowerSnapshots<'a> {
    store: &'a Store,
    layers: &'a [LayerOf],
    too_early: AtomicBool,
}

impl<'a> LowerSnapshots<'a> {
    /// `layers` are those below, lowest first; they need not be unpacked yet.
    pub(crate) fn new(store: &'a Store, layers: &'a [LayerOf]) -> Self {
        Self {
            store,
            layers,
            too_early: AtomicBool::new(false),
        }
    }

    /// Whether a look-up failed because a snapshot was not there yet.
    pub(crate) fn was_too_early(&self) -> bool {
        self.too_early.load(Ordering::Relaxed)
    }
}

impl LowerFiles for LowerSnapshots<'_> {
    fn open(&self, path: &LayerPath) -> Result<Option<(Entry, File)>> {
        for layer in self.layers.iter().rev() {
            let Some(fs) = self.store.snapshot(&layer.diff_id) else {
                self.too_early.store(true, Ordering::Relaxed);
                return Err(Error::failed(format!(
                    "the layer below, {}, is not unpacked yet",
                    layer.diff_id
                )));
            };
            let root = Root::open(&fs)?;
            match look(&root, path)? {
                Look::Absent => {}
                Look::Hidden => return Ok(None),
                Look::File => return open(&root, path).map(Some),
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

/// Component by component: what lies behind a symlink of the same name is something else.
fn look(root: &Root, path: &LayerPath) -> Result<Look> {
    let mut walked = LayerPath::root();
    let mut opaque = false;
    let count = path.components().count();
    for (number, name) in path.components().enumerate() {
        opaque |= is_opaque(root, &walked)?;
        walked = walked.join(name);
        let is_last = number + 1 == count;
        match root.symlink_metadata(walked.as_path()) {
            Ok(metadata) if is_last && metadata.kind == FileKind::File => return Ok(Look::File),
            Ok(metadata) if !is_last && metadata.is_directory() => {}
            Ok(_) => return Ok(Look::Hidden),
            Err(error) if error.kind() == Kind::NotFound && !opaque => return Ok(Look::Absent),
            Err(error) if error.kind() == Kind::NotFound => return Ok(Look::Hidden),
            Err(error) => return Err(error),
        }
    }
    Ok(Look::Hidden)
}

fn is_opaque(root: &Root, path: &LayerPath) -> Result<bool> {
    let directory = root.open_directory(path.as_path())?;
    for name in [&b"trusted.overlay.opaque"[..], b"user.overlay.opaque"] {
        match xattr::get(&directory, name) {
            Ok(Some(value)) if value == b"y" => return Ok(true),
            Ok(_) | Err(rustix::io::Errno::NOTSUP) => {}
            Err(errno) => {
                return Err(Error::io(
                    format!(
                        "cannot examine {}",
                        root.path().join(path.as_path()).display()
                    ),
                    errno,
                ));
            }
        }
    }
    Ok(false)
}

/// Opens a regular file of a snapshot, its entry as the image had it.
pub(crate) fn open(root: &Root, path: &LayerPath) -> Result<(Entry, File)> {
    let shown = || root.path().join(path.as_path());
    let file = root.open_file(path.as_path())?;
    let metadata = Metadata::of(&file).path("examine", shown())?;
    let mut entry = Entry::new(
        path.clone(),
        EntryKind::File {
            size: metadata.size,
        },
        metadata.mode,
    );
    entry.uid = metadata.uid;
    entry.gid = metadata.gid;
    entry.mtime = Mtime {
        seconds: metadata.mtime.0,
        nanoseconds: metadata.mtime.1,
    };
    entry.xattrs = xattr::read(&file)
        .path("examine", shown())?
        .into_iter()
        .filter_map(|(name, value)| Some((unescape(name)?, value)))
        .collect();
    Ok((entry, file))
}

/// An attribute's name as the image has it: snapshots escape an image's own `*.overlay.*`;
/// unescaped ones are overlayfs's.
pub(crate) fn unescape(name: Vec<u8>) -> Option<Vec<u8>> {
    for prefix in [&b"trusted.overlay."[..], b"user.overlay."] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return rest
                .starts_with(b"overlay.")
                .then(|| [&prefix[..prefix.len() - b"overlay.".len()], rest].concat());
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn an_images_own_overlay_attributes_come_back() {
        for (stored, expected) in [
            ("user.x", Some("user.x")),
            ("trusted.overlay.opaque", None),
            ("user.overlay.origin", None),
            (
                "trusted.overlay.overlay.opaque",
                Some("trusted.overlay.opaque"),
            ),
            (
                "user.overlay.overlay.overlay.x",
                Some("user.overlay.overlay.x"),
            ),
        ] {
            let name = unescape(stored.as_bytes().to_vec());
            assert_eq!(name.as_deref(), expected.map(str::as_bytes), "{stored}");
        }
    }
}
