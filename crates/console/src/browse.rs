//! The store as the console shows it: the list of images, an image, one folder or file of an image. Files are
//! looked up in the tables of an image's layers, and their content is read from the layers: no path of a
//! request ever reaches the file system.

use std::collections::HashSet;

use imgctl_base::error::{Context as _, Error, Kind as ErrorKind, Result};
use imgctl_base::image::reference::TREES_REGISTRY;
use imgctl_base::image::{Digest, Platform, time::rfc3339};
use imgctl_layer::{EntryKind, Found, LayerPath};
use imgctl_report::console::{Candidate, encode};
use imgctl_report::model::files::{Content, FileEntry, FilesReport, PathPart};
use imgctl_report::model::image::ImageReport;
use imgctl_report::model::store::{StoreReport, StoredImage};
use imgctl_report::model::{About, Kind};
use imgctl_store::store::Store;
use imgctl_store::store::images::{Image, ImageSummary, beginning, whole_tree};

/// Maximum number of entries of a folder that are listed.
const MOST_ENTRIES: usize = 5000;
/// Maximum size of the text of a file that is shown, in bytes.
const MOST_TEXT: u64 = 1 << 20;
/// Label with the type of a cluster image.
const TYPE: &str = "sealos.io.type";

/// Lists the images of the store.
pub(crate) fn list(store: &Store, about: About) -> Result<StoreReport> {
    let is_shown = |image: &ImageSummary| {
        let registry = image.reference.as_ref().and_then(|name| name.registry());
        registry != Some(TREES_REGISTRY)
    };
    let image = |image: ImageSummary| StoredImage {
        name: image.name,
        digest: image.digest.to_string(),
        image_type: image.labels.get(TYPE).cloned(),
        created: image.created,
        size: image.size,
        platforms: image.platforms.iter().map(ToString::to_string).collect(),
        layers: image.layers as u64,
        problem: image.problem,
    };
    Ok(StoreReport {
        about,
        images: store.list()?.into_iter().filter(is_shown).map(image).collect(),
    })
}

/// An image, and what it may be compared with.
pub(crate) struct Described {
    pub(crate) report: ImageReport,
    pub(crate) others: Vec<Candidate>,
}

/// Describes the image that the store lists under `digest`, for one platform, and compares it with the
/// one under `older`.
pub(crate) fn describe(
    store: &Store,
    (digest, platform): (&str, Option<&str>),
    older: Option<&str>,
    about: &About,
) -> Result<Described> {
    let image = find(store, digest, platform)?;
    let own_platform = image.config.platform().to_string();
    let older = older
        .map(|older| find(store, older, platform.or(Some(&own_platform))))
        .transpose()
        .context(|| "cannot compare".to_owned())?;
    let request = imgctl_describe::Request {
        image: &image,
        older: older.as_ref(),
        findings: Vec::new(),
        generator: &about.generator,
        created: about.created.clone(),
    };
    let report = imgctl_describe::describe(store, request)?;
    let mut seen = HashSet::from([digest.to_owned()]);
    let mut others = Vec::new();
    for named in store.names()? {
        let digest = named.descriptor.digest.to_string();
        if seen.insert(digest.clone()) {
            let name = named.descriptor.ref_name().map_or_else(|| digest.clone(), str::to_owned);
            others.push(Candidate { digest, name });
        }
    }
    Ok(Described { report, others })
}

/// Returns the image of a platform under a digest; without a platform, that of this machine or else the
/// nearest.
fn find(store: &Store, digest: &str, platform: Option<&str>) -> Result<Image> {
    let absent = || {
        Error::not_found(format!("the store has no image {}", digest.escape_debug()))
            .hint("it may have been removed since the list was made")
    };
    let digest = Digest::parse(digest).map_err(|_| absent())?;
    let named = store.names()?.into_iter().find(|named| named.descriptor.digest == digest);
    let Some(named) = named else {
        // One platform of an index, which a comparison names.
        return store.image(&digest.to_string(), None).map_err(|error| match error.kind() {
            ErrorKind::NotFound => absent(),
            _ => error,
        });
    };
    let mut images = store.platform_images(&named.descriptor)?;
    let host = Platform::host();
    images.sort_by_key(|image| image.config.platform().distance_to(&host).unwrap_or(u32::MAX));
    let is_wanted =
        |image: &Image| platform.is_none_or(|wanted| image.config.platform().to_string() == wanted);
    let mut image = images.into_iter().find(is_wanted).ok_or_else(|| {
        Error::not_found(format!(
            "the image is not in the store for {}",
            platform.unwrap_or("any platform").escape_debug()
        ))
    })?;
    image.reference = named.reference;
    Ok(image)
}

/// Describes what is at `path` in an image; links are followed inside the image.
pub(crate) fn files(
    store: &Store,
    (digest, platform): (&str, &str),
    path: &[u8],
    about: About,
) -> Result<FilesReport> {
    let image = find(store, digest, Some(platform))?;
    let tree = whole_tree(store, &image)?;
    let shown = || String::from_utf8_lossy(path).escape_debug().to_string();
    let absent = || Error::not_found(format!("the image has no file {}", shown()));
    let wanted = LayerPath::parse(path).map_err(|_| absent())?;
    let resolved = tree.resolve(&wanted).context(|| format!("cannot follow {}", shown()))?;
    let found = tree.lookup(&resolved).ok_or_else(absent)?;
    let name = resolved.file_name().unwrap_or_default();
    let mut report = FilesReport {
        about: About { report: Kind::Files, ..about },
        image: image.reference.as_ref().map_or_else(|| digest.to_owned(), ToString::to_string),
        digest: digest.to_owned(),
        platform: platform.to_owned(),
        path: resolved.components().filter(|name| !name.is_empty()).map(part).collect(),
        this: entry(name, &found),
        entries: Vec::new(),
        omitted: 0,
        content: None,
    };
    if found.entry().is_directory() {
        for (name, child) in tree.children(&resolved) {
            if report.entries.len() < MOST_ENTRIES {
                report.entries.push(entry(name, &child));
            } else {
                report.omitted += 1;
            }
        }
    } else if report.this.kind == "file" {
        let size = found.entry().size();
        report.content =
            beginning(store, &image, &found, MOST_TEXT)?.map(|bytes| text(bytes, size));
    }
    Ok(report)
}

fn part(name: &[u8]) -> PathPart {
    PathPart { name: String::from_utf8_lossy(name).into_owned(), encoded: encode(name) }
}

fn entry(name: &[u8], found: &Found<'_>) -> FileEntry {
    let entry = found.entry();
    let (kind, target) = match &entry.kind {
        EntryKind::File { .. } | EntryKind::HardLink { .. } => ("file", None),
        EntryKind::Directory => ("directory", None),
        EntryKind::Symlink { target } => {
            ("symlink", Some(String::from_utf8_lossy(target).into_owned()))
        }
        EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => ("device", None),
        EntryKind::Fifo => ("fifo", None),
    };
    FileEntry {
        name: part(name),
        kind: kind.to_owned(),
        mode: format!("{:04o}", entry.mode),
        uid: entry.uid.into(),
        gid: entry.gid.into(),
        size: entry.size(),
        modified: rfc3339(entry.mtime.seconds),
        target,
        layer: found.layer.map(|layer| layer as u64 + 1),
    }
}

/// Returns the beginning of a file of `size` bytes as text, if it is text.
fn text(bytes: Vec<u8>, size: u64) -> Content {
    let read = bytes.len() as u64;
    let whole = match std::str::from_utf8(&bytes) {
        Ok(_) => bytes.len(),
        // A character that the limit has cut in two.
        Err(error) if error.error_len().is_none() && read < size => error.valid_up_to(),
        Err(_) => return Content { text: None, omitted: size },
    };
    let mut bytes = bytes;
    bytes.truncate(whole);
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => {
            Content { text: Some(text), omitted: size.saturating_sub(whole as u64) }
        }
        _ => Content { text: None, omitted: size },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_and_anything_else_is_not() {
        let content = |bytes: &[u8], size| text(bytes.to_vec(), size);
        assert_eq!(content(b"a\xc3\xa4", 3), Content { text: Some("aä".into()), omitted: 0 });
        assert_eq!(content(b"a\xc3", 3), Content { text: Some("a".into()), omitted: 2 });
        assert_eq!(content(b"", 0), Content { text: Some(String::new()), omitted: 0 });
        for other in [&b"\x7fELF\0"[..], b"a\xffb", b"a\xc3"] {
            assert_eq!(content(other, other.len() as u64).text, None, "{other:?}");
        }
    }
}
