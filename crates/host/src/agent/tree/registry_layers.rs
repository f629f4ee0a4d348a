//! Records which registry layers have been applied on this host, and which files each has added to
//! `<root>/registry`, so that missing or truncated files are detected.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::Digest;
use imgctl_layer::LayerPath;

/// First word of a record. A record without it does not list the layer's files.
const HEADER: &[u8] = b"files";
/// Maximum length of a link, which holds a digest.
const LONGEST_LINK: u64 = 256;

/// A file added by a layer, with its path below `registry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) path: LayerPath,
    /// Size in bytes; `None` for a hard link.
    pub(super) size: Option<u64>,
}

/// Whether the layer's registry data is complete in `<root>/registry`. Removed or truncated files
/// count as missing, whatever the record says. Blobs are not read; only their length is checked.
pub(super) fn is_applied(root: &Path, layer: &Digest) -> bool {
    let Some(files) = read(&file(root, layer)) else {
        return false;
    };
    let registry = root.join("registry");
    registry.is_dir() && files.iter().all(|file| is_whole(&registry, file))
}

/// Whether the layer has been applied before, even if its data was damaged since.
pub(super) fn was_applied(root: &Path, layer: &Digest) -> bool {
    root.join("registry").is_dir() && file(root, layer).exists()
}

/// Records a layer after its data is durable.
pub(super) fn record(root: &Path, layer: &Digest, files: &[Brought]) -> Result<()> {
    let directory = root.join("registry-layers");
    std::fs::create_dir_all(&directory).path("create the directory", &directory)?;
    let mut text = HEADER.to_vec();
    text.push(0);
    let registry = root.join("registry");
    // Files that are broken in the image itself are not recorded: they would be applied again every
    // time.
    for brought in files.iter().filter(|brought| is_whole(&registry, brought)) {
        let size = brought.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        text.extend_from_slice(size.as_bytes());
        text.push(b' ');
        text.extend_from_slice(brought.path.as_bytes());
        text.push(0);
    }
    atomic::write(&file(root, layer), &text, 0o644, Durability::Durable)
}

/// Returns the layers that have records, in the order of their digests.
pub(super) fn applied(root: &Path) -> Result<Vec<Digest>> {
    let directory = root.join("registry-layers");
    let entries = match std::fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.path("read", &directory)?,
    };
    let mut layers = Vec::new();
    for entry in entries {
        let name = entry.path("read", &directory)?.file_name();
        let digest = name.to_str().and_then(|name| name.split_once('-'));
        if let Some((algorithm, hex)) = digest
            && let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}"))
        {
            layers.push(digest);
        }
    }
    layers.sort_unstable();
    Ok(layers)
}

/// Returns the files that a layer has brought; `None` if its record does not list them.
pub(super) fn brought(root: &Path, layer: &Digest) -> Option<Vec<Brought>> {
    read(&file(root, layer))
}

/// Removes the record of a layer.
pub(super) fn forget(root: &Path, layer: &Digest) -> Result<()> {
    let path = file(root, layer);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).path("remove", &path)
        }
        _ => Ok(()),
    }
}

/// Removes all records if the registry directory is gone.
pub(super) fn forget_if_gone(root: &Path) -> Result<()> {
    if root.join("registry").is_dir() {
        return Ok(());
    }
    atomic::remove_tree(&root.join("registry-layers"))
}

/// Whether a tag's link names a valid digest; other layers may have changed it since.
pub(super) fn is_tag_whole(registry: &Path, path: &LayerPath) -> bool {
    link(&registry.join(path.as_path())).is_some_and(|text| Digest::parse(&text).is_ok())
}

/// Whether `path` is the link from a tag to its manifest: the only kind of file whose content
/// depends on the last writer.
pub(super) fn is_tag(path: &LayerPath) -> bool {
    let parts: Vec<&[u8]> = path.components().collect();
    matches!(parts[..], [.., b"tags", _, b"current", b"link"])
}

fn is_whole(registry: &Path, brought: &Brought) -> bool {
    if is_tag(&brought.path) {
        return is_tag_whole(registry, &brought.path);
    }
    let path = registry.join(brought.path.as_path());
    let Ok(metadata) = std::fs::symlink_metadata(&path) else {
        return false;
    };
    if !metadata.is_file() || brought.size.is_some_and(|size| size != metadata.len()) {
        return false;
    }
    match linked(&brought.path) {
        Some(digest) => link(&path).is_some_and(|text| text == digest),
        None => true,
    }
}

/// Returns the digest that a link must contain according to its own path.
fn linked(path: &LayerPath) -> Option<String> {
    let text = std::str::from_utf8(path.as_bytes()).ok()?;
    let parts: Vec<&str> = text.split('/').collect();
    match parts[..] {
        [.., "_layers" | "revisions" | "index", algorithm, hex, "link"] => {
            Some(format!("{algorithm}:{hex}"))
        }
        _ => None,
    }
}

fn link(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(LONGEST_LINK).read_to_string(&mut text).ok()?;
    // Other tools end the link with a newline.
    Some(text.trim_end().to_owned())
}

/// Returns `None` if there is no record, or one that does not list files.
fn read(path: &Path) -> Option<Vec<Brought>> {
    let bytes = std::fs::read(path).ok()?;
    let mut lines = bytes.split(|byte| *byte == 0);
    if lines.next() != Some(HEADER) {
        return None;
    }
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let space = line.iter().position(|byte| *byte == b' ')?;
            let (size, path) = line.split_at(space);
            let size = std::str::from_utf8(size).ok()?;
            Some(Brought {
                path: LayerPath::parse(path.get(1..)?).ok()?,
                size: match size {
                    "-" => None,
                    number => Some(number.parse().ok()?),
                },
            })
        })
        .collect()
}

fn file(root: &Path, layer: &Digest) -> PathBuf {
    let name = format!("{}-{}", layer.algorithm().as_str(), layer.hex());
    root.join("registry-layers").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_torn_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let (layer, other) = (Digest::of(b"layer"), Digest::of(b"other"));
        let repository = "docker/registry/v2/repositories/a";
        let of = |place: &str| format!("{repository}/{place}/sha256/{}/link", layer.hex());
        let tag = format!("{repository}/_manifests/tags/v1/current/link");
        let blob = "docker/registry/v2/blobs/sha256/ab/abcd/data".to_owned();
        let write = |path: &str, text: &str| {
            let path = root.join("registry").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let links = ["_layers", "_manifests/revisions", "_manifests/tags/v1/index"].map(of);
        let mut files = vec![(blob.clone(), "content".to_owned())];
        files.push((tag.clone(), layer.to_string()));
        files.extend(links.iter().map(|link| (link.clone(), layer.to_string())));
        let brought: Vec<Brought> = files
            .iter()
            .map(|(path, text)| Brought {
                path: LayerPath::parse(path.as_bytes()).unwrap(),
                size: Some(text.len() as u64),
            })
            .collect();
        assert!(!is_applied(root, &layer));
        for (path, text) in &files {
            write(path, text);
        }
        record(root, &layer, &brought).unwrap();
        assert!(is_applied(root, &layer) && !is_applied(root, &other));
        // The tag may belong to another layer.
        write(&tag, &other.to_string());
        assert!(is_applied(root, &layer));
        for (path, text) in &files {
            let damages = [None, Some(""), Some(&text[..text.len() - 1])];
            for damage in damages {
                match damage {
                    None => std::fs::remove_file(root.join("registry").join(path)).unwrap(),
                    Some(text) => write(path, text),
                }
                assert!(!is_applied(root, &layer), "{path} {damage:?}");
                assert!(was_applied(root, &layer));
                write(path, text);
                assert!(is_applied(root, &layer), "{path}");
            }
        }
        // Links to another digest.
        for path in &links {
            write(path, &other.to_string());
            assert!(!is_applied(root, &layer), "{path}");
            write(path, &layer.to_string());
        }
        // A record that does not list files does not count.
        std::fs::write(file(root, &layer), "").unwrap();
        assert!(!is_applied(root, &layer));
        std::fs::remove_dir_all(root.join("registry")).unwrap();
        forget_if_gone(root).unwrap();
        assert!(!was_applied(root, &layer));
    }
}
