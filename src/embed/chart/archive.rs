//! Packed charts (`x.tgz`) to files in memory, within limits. Must not know what a chart is.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::MultiGzDecoder;

use crate::error::{Context as _, Error, Result};
use crate::layer::{EntryKind, Limits, Names, TarReader};

/// Files of one chart, its dependencies included.
pub(super) const MOST_FILES: usize = 10_000;
/// Bytes of all files of one chart, its dependencies included.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// Unpacks a chart: paths are relative to the one directory it lies in. `left` is what may still be
/// unpacked, in files and bytes, and is lowered.
pub(super) fn unpack(bytes: &[u8], left: &mut (usize, usize)) -> Result<BTreeMap<String, Vec<u8>>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(Error::bad_content(
            "the chart is not a gzip-compressed archive",
        ));
    }
    let limits = Limits {
        entries: MOST_FILES as u64 * 2,
        size: 2 * MOST_BYTES as u64,
        ..Limits::default()
    };
    let mut reader = TarReader::new(MultiGzDecoder::new(bytes), limits, Names::Plain);
    let mut files = BTreeMap::new();
    while let Some(entry) = reader
        .next_entry()
        .context(|| "cannot unpack the chart".to_owned())?
    {
        // Links and devices have no place in a chart; Helm leaves them out too.
        let EntryKind::File { size } = entry.kind else {
            continue;
        };
        let path = String::from_utf8_lossy(entry.path.as_bytes()).into_owned();
        // What lies beside the chart's directory is not the chart's.
        let Some((_, path)) = path.split_once('/') else {
            return Err(Error::bad_content(format!(
                "the chart's archive has {path} outside of the chart's directory"
            )));
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        take(left, path, size)?;
        let mut content = Vec::with_capacity(size.min(1 << 20));
        reader
            .read_to_end(&mut content)
            .map_err(|error| Error::io(format!("cannot unpack {path} of the chart"), error))?;
        files.insert(path.to_owned(), content);
    }
    Ok(files)
}

/// Counts one more file against the limits.
pub(super) fn take(left: &mut (usize, usize), path: &str, size: usize) -> Result<()> {
    let (files, bytes) = (left.0.checked_sub(1), left.1.checked_sub(size));
    match (files, bytes) {
        (Some(files), Some(bytes)) => {
            *left = (files, bytes);
            Ok(())
        }
        _ => Err(Error::bad_content(format!(
            "the chart is too large: {path} is beyond {MOST_FILES} files or {} MiB",
            MOST_BYTES >> 20
        ))),
    }
}
