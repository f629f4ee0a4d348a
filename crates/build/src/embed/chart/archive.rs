//! Unpacks chart archives (`x.tgz`) to files in memory, within limits. Must not depend on the
//! structure of a chart.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::MultiGzDecoder;

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_store::layer::{EntryKind, Limits, Names, TarReader};

/// Maximum number of files in one chart, including its dependencies.
pub(super) const MOST_FILES: usize = 10_000;
/// Maximum size of all files in one chart, including its dependencies, in bytes.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// Unpacks a chart; paths are relative to its single top-level directory. `left` is the remaining
/// limit, in files and bytes, and is reduced.
pub(super) fn unpack(bytes: &[u8], left: &mut (usize, usize)) -> Result<BTreeMap<String, Vec<u8>>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(Error::bad_content("the chart is not a gzip-compressed archive"));
    }
    let limits =
        Limits { entries: MOST_FILES as u64 * 2, size: 2 * MOST_BYTES as u64, ..Limits::default() };
    let mut reader = TarReader::new(MultiGzDecoder::new(bytes), limits, Names::Plain);
    let mut files = BTreeMap::new();
    while let Some(entry) = reader.next_entry().context(|| "cannot unpack the chart".to_owned())? {
        // A chart does not contain links or devices; Helm skips them too.
        let EntryKind::File { size } = entry.kind else {
            continue;
        };
        let path = String::from_utf8_lossy(entry.path.as_bytes()).into_owned();
        // Entries outside of the chart's directory do not belong to the chart.
        let Some((_, path)) = path.split_once('/') else {
            return Err(Error::bad_content(format!(
                "the chart's archive contains {path}, which is outside the chart's directory"
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
