//! Finds the lists of a blob that other programs read: those of zstd:chunked, by a footer or by annotations,
//! and of eStargz, by a footer (containerd/stargz-snapshotter, docs/estargz.md).
//!
//! Must not know what they have to say.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read};
use std::os::unix::fs::FileExt as _;

use crate::chunked::read::{Announced, FOOTER};
use crate::chunked::{CHECKSUM, FOOTER_MAGIC, OLD_CHECKSUM, OLD_POSITION, POSITION};
use crate::decompress::{self, Format};
use crate::{Limits, Names, TarReader};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;

/// The entry with the list of eStargz, the last of its archive.
const ESTARGZ: &str = "stargz.index.json";
/// Size of the footers of eStargz, and of stargz before it: an empty gzip member with an extra field.
const ESTARGZ_FOOTERS: [usize; 2] = [51, 47];
/// Maximum size of a list, as it is stored and as JSON, in bytes.
const MOST_STORED: u64 = 64 << 20;
const MOST: u64 = 128 << 20;

/// A list as it is stored in a blob.
pub(crate) struct List {
    stored: Vec<u8>,
    /// The size of the JSON; `None` for eStargz, where it is the content of an entry.
    size: Option<u64>,
}

impl List {
    /// Finds the list of a blob by its footer.
    pub(crate) fn of(blob: &File) -> Result<Option<Self>> {
        let (size, end) = end_of(blob)?;
        let place = if end.ends_with(&FOOTER_MAGIC) {
            let it = Announced::of_footer(&end).ok_or_else(|| {
                Error::bad_content("the layer ends like a list of its files, and there is none")
            })?;
            Some((it.offset, it.compressed, Some(it.uncompressed)))
        } else {
            let offset = ESTARGZ_FOOTERS.into_iter().find_map(|length| estargz(&end, length));
            offset.map(|offset| (offset, size.saturating_sub(offset), None))
        };
        let Some((offset, length, json)) = place else { return Ok(None) };
        let fits = offset.checked_add(length).is_some_and(|end| end <= size);
        if !fits || length > MOST_STORED || json.is_some_and(|json| json > MOST) {
            return Err(Error::bad_content(
                "the list that the end of the layer names is outside of it, or too large",
            ));
        }
        let mut stored = vec![0; usize::try_from(length).unwrap_or_default()];
        blob.read_exact_at(&mut stored, offset).doing(DOING)?;
        Ok(Some(Self { stored, size: json }))
    }

    /// Returns the entry of the archive that is the list itself.
    pub(super) fn entry(&self) -> Option<&'static str> {
        self.size.is_none().then_some(ESTARGZ)
    }

    /// Passes the JSON to `parse`.
    pub(super) fn read(self, parse: &mut dyn FnMut(&mut dyn Read) -> Result<()>) -> Result<()> {
        let Some(size) = self.size else {
            let gzip = decompress::decoder(Format::Gzip, Cursor::new(self.stored))?;
            let limits = Limits { size: MOST + (1 << 20), ..Limits::default() };
            let mut tar = TarReader::new(gzip, limits, Names::Plain);
            let is_list = |name: &[u8]| name == ESTARGZ.as_bytes();
            return match tar.next_entry()? {
                Some(entry) if is_list(entry.path.as_bytes()) => parse(&mut tar),
                _ => Err(Error::bad_content(format!(
                    "the end of the layer names a list where `{ESTARGZ}` is not"
                ))),
            };
        };
        // A byte more than announced is not JSON.
        let zstd = decompress::zstd_decoder(Cursor::new(self.stored))?;
        parse(&mut zstd.take(size.saturating_add(1)))
    }
}

const DOING: fn() -> String = || "cannot read the end of the layer".to_owned();

/// Returns the size of a blob, and its last bytes.
fn end_of(blob: &File) -> Result<(u64, Vec<u8>)> {
    let size = blob.metadata().doing(DOING)?.len();
    let start = size.saturating_sub(FOOTER);
    let mut end = vec![0; usize::try_from(size - start).unwrap_or_default()];
    blob.read_exact_at(&mut end, start).doing(DOING)?;
    Ok((size, end))
}

/// Returns the offset of the list in a footer of eStargz that is the last `length` bytes of `end`.
fn estargz(end: &[u8], length: usize) -> Option<u64> {
    let footer = end.get(end.len().checked_sub(length)?..)?;
    // A gzip member with an extra field, which follows the first ten bytes.
    let field = footer.strip_prefix(&[0x1f, 0x8b, 8])?.get(7..)?;
    if footer.get(3)? & 4 == 0 {
        return None;
    }
    let (size, field) = field.split_first_chunk::<2>()?;
    let field = field.get(..usize::from(u16::from_le_bytes(*size)))?;
    let field = field.strip_prefix(b"SG\x16\0").unwrap_or(field);
    let digits = field.strip_suffix(b"STARGZ").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Fails if the annotations of a blob name a list that its footer does not: the footer's list is compared with
/// the archive. What has another digest than the annotations say is of no use to anybody.
pub fn check_annotations(blob: &File, annotations: &BTreeMap<String, String>) -> Result<()> {
    for (checksum, position) in [(CHECKSUM, POSITION), (OLD_CHECKSUM, OLD_POSITION)] {
        let Some((digest, numbers)) = annotations.get(checksum).zip(annotations.get(position))
        else {
            continue;
        };
        let Some(named) = Announced::of_annotation(numbers) else { continue };
        let Ok(digest) = digest.parse::<Digest>() else { continue };
        let (size, end) = end_of(blob)?;
        let is_named_so = end.ends_with(&FOOTER_MAGIC) && Announced::of_footer(&end) == Some(named);
        let fits = named.offset.checked_add(named.compressed).is_some_and(|end| end <= size);
        if is_named_so || !fits {
            continue;
        }
        let mut hasher = imgctl_base::image::Hasher::with(digest.algorithm());
        let (mut at, mut buffer) = (named.offset, vec![0; 64 << 10]);
        while at < named.offset + named.compressed {
            let left = named.offset + named.compressed - at;
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let part = &mut buffer[..part];
            blob.read_exact_at(part, at).doing(DOING)?;
            hasher.update(part);
            at += part.len() as u64;
        }
        if hasher.finish() == digest {
            return Err(Error::bad_content(format!(
                "`{position}` names a list of the layer's files that the end of the layer does not name: programs \
                 that read it unpack other files"
            ))
            .hint("compress the layer again; a list is made with it"));
        }
    }
    Ok(())
}
