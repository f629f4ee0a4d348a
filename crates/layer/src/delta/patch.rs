//! Content and its two forms: encoded as in a blob, and as a patch against a reference.
//!
//! Must not know where the bytes come from.

use std::io::{Read, Seek, SeekFrom, Write};

use zstd::zstd_safe::{self, CCtx, CParameter, DCtx, Strategy};

use crate::Compression;
use crate::block::{Packer, write_stored};
use crate::delta::format::{Encoding, Form, Reference, damaged};
use crate::delta::numbers::{from_differences, to_differences};
use imgctl_base::error::{Error, IoContext, Result};

/// Encodes content exactly as a writer of layers does.
pub(super) struct Encoder {
    compression: Compression,
    packer: Packer,
}

impl Encoder {
    /// Encodes frames and lists at `level`.
    pub(super) fn zstd(level: i32) -> Result<Self> {
        Self::new(Compression::Zstd { level })
    }

    /// Encodes deflate blocks at `level`.
    pub(super) fn gzip(level: u32) -> Result<Self> {
        Self::new(Compression::Gzip { level })
    }

    fn new(compression: Compression) -> Result<Self> {
        Ok(Self { compression, packer: Packer::new(compression)? })
    }

    /// Appends the encoded content.
    pub(super) fn encode(
        &mut self,
        encoding: Encoding,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match (encoding, self.compression) {
            (Encoding::Verbatim, _) => out.extend_from_slice(content),
            (Encoding::Frame, Compression::Zstd { .. })
            | (Encoding::Deflate, Compression::Gzip { .. }) => {
                if !self.packer.pack_segment(content, out)? {
                    write_stored(self.compression, content, out)
                        .doing(|| "cannot compress".to_owned())?;
                }
            }
            (Encoding::List, Compression::Zstd { level }) => {
                let list = from_differences(content)
                    .ok_or_else(|| damaged("a list of frames is malformed"))?;
                append_list(&list, level, out)?;
            }
            _ => return Err(damaged("it compresses in another way than announced")),
        }
        Ok(())
    }
}

/// Number of bytes before the content of a skippable frame.
pub(super) const SKIPPABLE_HEADER: usize = 8;

fn append_list(list: &[u8], level: i32, out: &mut Vec<u8>) -> Result<()> {
    let doing = || "cannot compress a list of frames".to_owned();
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), level).doing(doing)?;
    for piece in list.chunks(32 << 10) {
        encoder.write_all(piece).doing(doing)?;
    }
    let packed = encoder.finish().doing(doing)?;
    let length =
        u32::try_from(packed.len()).map_err(|_| Error::failed("the list of frames is too long"))?;
    out.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&packed);
    Ok(())
}

/// Maximum length of a list that is referred to, in bytes.
const MOST_LIST: u64 = 32 << 20;

/// Returns the content of a part of a list, as a patch has it; `None` if it is none, or if it or the
/// list is longer than `most` bytes.
pub(super) fn list_content(packed: &[u8], most: u64) -> Option<Vec<u8>> {
    let decoder = zstd::stream::Decoder::with_buffer(packed).ok()?;
    let mut list = Vec::new();
    decoder.take(most + 1).read_to_end(&mut list).ok()?;
    let content = to_differences(&list)?;
    (list.len() as u64 <= most && content.len() as u64 <= most).then_some(content)
}

/// Decodes one frame or deflate block; `None` if it does not have `content` bytes.
pub(super) fn decoded(form: Form, bytes: &[u8], content: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(content).ok()?;
    let mut out = Vec::new();
    append_decoded(form, bytes, content, &mut out)?;
    (out.len() == length).then_some(out)
}

/// Appends what `bytes` expand to, and nothing beyond `content` bytes.
fn append_decoded(form: Form, bytes: &[u8], content: u64, out: &mut Vec<u8>) -> Option<()> {
    let length = usize::try_from(content).ok()?;
    let start = out.len();
    match form {
        Form::Plain => out.extend_from_slice(bytes),
        Form::Frames => {
            let frames = zstd::bulk::decompress(bytes, length).ok()?;
            out.extend_from_slice(&frames);
        }
        Form::Deflate => {
            let decoder = flate2::bufread::DeflateDecoder::new(bytes);
            decoder.take(content).read_to_end(out).ok()?;
        }
        // Its numbers are longer than their differences.
        Form::List => out.extend_from_slice(&list_content(bytes, MOST_LIST)?),
    }
    (out.len() - start == length).then_some(())
}

/// Appends the content of a reference; returns `false` if the source has other bytes.
pub(super) fn append_reference<S: Read + Seek + ?Sized>(
    source: &mut S,
    reference: &Reference,
    out: &mut Vec<u8>,
) -> Result<bool> {
    let doing = || "cannot read the base of a delta".to_owned();
    source.seek(SeekFrom::Start(reference.start)).doing(doing)?;
    let mut reader = source.take(reference.length);
    if reference.form == Form::Plain {
        let read = reader.read_to_end(out).doing(doing)?;
        return Ok(read as u64 == reference.content);
    }
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).doing(doing)?;
    Ok(append_decoded(reference.form, &bytes, reference.content, out).is_some())
}

/// Makes the patch that yields `content` where `reference` is known.
pub(super) fn make(content: &[u8], reference: &[u8], level: i32) -> Result<Vec<u8>> {
    let failed =
        |code| Error::failed(format!("cannot make a patch: {}", zstd_safe::get_error_name(code)));
    let all = (content.len() + reference.len()).max(1 << 10);
    // The window reaches back to the start of the reference.
    let window = all.next_power_of_two().trailing_zeros().clamp(10, 28);
    let mut context = CCtx::try_create().ok_or_else(|| Error::failed("out of memory"))?;
    let mut parameters = vec![
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(window),
        CParameter::EnableLongDistanceMatching(window > 20),
    ];
    if level > 12 {
        // Tables as for a long window: zstd chooses them by the content alone.
        parameters.extend([
            CParameter::HashLog(window.min(24)),
            CParameter::ChainLog((window + 1).min(26)),
            CParameter::Strategy(Strategy::ZSTD_btultra2),
        ]);
    }
    for parameter in parameters {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.ref_prefix(reference).map_err(failed)?;
    let mut patch = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    context.compress2(&mut patch, content).map_err(failed)?;
    Ok(patch)
}

/// Applies a patch that yields `length` bytes, or is damaged.
pub(super) fn apply(patch: &[u8], reference: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut content = Vec::with_capacity(length);
    if length == 0 {
        return Ok(content);
    }
    let mut context = DCtx::try_create().ok_or_else(|| Error::failed("out of memory"))?;
    let applied =
        context.ref_prefix(reference).and_then(|_| context.decompress(&mut content, patch));
    match applied {
        Ok(count) if count == length => Ok(content),
        Ok(_) => Err(damaged("a patch has another length than announced")),
        Err(code) => {
            Err(damaged(&format!("a patch does not fit: {}", zstd_safe::get_error_name(code))))
        }
    }
}
