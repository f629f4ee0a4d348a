//! The format of a recipe: a header, then groups of instructions, each with its patch. Everything
//! in it may come from anywhere: lengths are bounded before memory is allocated.
//!
//! Must not know how instructions are made or carried out.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::delta::numbers::{Numbers, read_number};
use crate::leb128::put;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;

/// The first bytes of a recipe.
const MAGIC: &[u8; 16] = b"imgctl delta\r\n\x1a\n";
/// Version of the format.
const VERSION: u32 = 1;
/// Maximum size of a header, in bytes.
const MOST_HEADER: u64 = 4 << 20;
/// Maximum number of blobs that a recipe names.
const MOST_SOURCES: usize = 10_000;
/// Maximum size of a group's instructions, in bytes, compressed or not.
const MOST_INSTRUCTIONS: u64 = 8 << 20;
/// Number of instructions after which a creator ends a group: about half the maximum size.
pub(super) const ENOUGH_INSTRUCTIONS: usize = 200_000;
/// Maximum size of a group's patch, in bytes.
const MOST_PATCH: u64 = MOST_CONTENT + (MOST_CONTENT >> 6);
/// Maximum length of the content of a group, in bytes.
pub(super) const MOST_CONTENT: u64 = 32 << 20;
/// Maximum length of the reference of a group, in bytes.
pub(super) const MOST_REFERENCE: u64 = 128 << 20;
/// Maximum length of one reference that has to be decompressed, in bytes.
const MOST_PACKED_REFERENCE: u64 = 32 << 20;
/// Maximum length of what one instruction compresses, in bytes.
pub(super) const MOST_SEGMENT: u64 = 4 << 20;

const GROUP: u8 = 1;
const END: u8 = 0;

/// The version of deflate and of the way in which it is called. A new one gives other bytes.
pub(super) const DEFLATE: u32 = 1;

/// What a recipe makes of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    version: u32,
    /// The blob that results.
    pub digest: Digest,
    /// Its size, in bytes.
    pub size: u64,
    /// Level at which content is compressed; 0 if it is not.
    pub level: i32,
    /// Version number of the zstd that compresses it to the blob's bytes; 0 if none does.
    pub zstd: u32,
    /// Version of our deflate likewise.
    pub deflate: u32,
    /// Blobs that the instructions refer to.
    pub sources: Vec<SourceBlob>,
}

/// A blob that must be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBlob {
    pub digest: Digest,
    pub size: u64,
}

impl Header {
    pub(super) fn new(digest: Digest, size: u64) -> Self {
        Self { version: VERSION, digest, size, level: 0, zstd: 0, deflate: 0, sources: Vec::new() }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let json = serde_json::to_vec(self)
            .map_err(|error| Error::failed("cannot write a delta").caused_by(error))?;
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, json.len() as u64);
        bytes.extend_from_slice(&json);
        out.write_all(&bytes).doing(writing)
    }
}

/// Reads what precedes the instructions of a recipe.
pub fn read_header(recipe: &mut dyn Read) -> Result<Header> {
    let mut magic = [0; MAGIC.len()];
    recipe.read_exact(&mut magic).map_err(|error| reading(&error, "it is not a delta"))?;
    if magic != *MAGIC {
        return Err(damaged("it is not a delta"));
    }
    let json = read_bytes(recipe, MOST_HEADER)?;
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let malformed = |error| damaged("its header is malformed").caused_by(error);
    let versioned: Versioned = serde_json::from_slice(&json).map_err(malformed)?;
    if versioned.version != VERSION {
        return Err(Error::bad_content(format!(
            "the delta is of version {}; this imgctl reads version {VERSION}",
            versioned.version
        ))
        .hint("use a newer imgctl"));
    }
    let header: Header = serde_json::from_slice(&json).map_err(malformed)?;
    if header.sources.len() > MOST_SOURCES {
        return Err(damaged("it names too many blobs"));
    }
    Ok(header)
}

/// How the bytes of a reference lie in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Plain,
    /// Whole zstd frames, each with the size of its content.
    Frames,
    /// Deflate blocks that do not refer to earlier data.
    Deflate,
    /// A list of frames: a zstd stream of unknown length, then the numbers as differences.
    List,
}

/// A part of what a patch refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// Index in the header's sources.
    pub(super) source: usize,
    pub(super) form: Form,
    /// Range in the source, in bytes.
    pub(super) start: u64,
    pub(super) length: u64,
    /// Number of bytes that it expands to.
    pub(super) content: u64,
}

/// How content becomes bytes of the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As it is.
    Verbatim,
    /// One zstd frame, as layers have it.
    Frame,
    /// One run of deflate blocks, as layers have it.
    Deflate,
    /// A list of frames.
    List,
}

const ENCODINGS: [Encoding; 4] =
    [Encoding::Verbatim, Encoding::Frame, Encoding::Deflate, Encoding::List];
const FORMS: [Form; 4] = [Form::Plain, Form::Frames, Form::Deflate, Form::List];

/// Where content comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The next bytes of the patch.
    Patch,
    /// The reference, from this offset.
    Reference(u64),
}

/// Yields the next bytes of the blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// A range of a source.
    Copy { source: usize, start: u64, length: u64 },
    /// `length` bytes of content.
    Emit { encoding: Encoding, origin: Origin, length: u64 },
}

/// Instructions with what they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) references: Vec<Reference>,
    pub(super) instructions: Vec<Instruction>,
    /// Number of bytes that the patch expands to.
    pub(super) content: u64,
    /// A zstd frame with the references as its prefix.
    pub(super) patch: Vec<u8>,
}

impl Group {
    /// Returns the number of bytes that are compressed.
    pub(super) fn encoded_length(&self) -> u64 {
        let encoded = self.instructions.iter().map(|instruction| match instruction {
            Instruction::Emit { encoding, length, .. } if *encoding != Encoding::Verbatim => {
                *length
            }
            _ => 0,
        });
        encoded.fold(0, u64::saturating_add)
    }

    pub(super) fn reference_length(&self) -> u64 {
        self.references.iter().map(|reference| reference.content).sum()
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let plain = self.encode();
        let packed = zstd::bulk::compress(&plain, 19).doing(writing)?;
        let mut head = vec![GROUP];
        for length in [plain.len(), packed.len(), self.patch.len()] {
            put(&mut head, length as u64);
        }
        out.write_all(&head).doing(writing)?;
        out.write_all(&packed).doing(writing)?;
        out.write_all(&self.patch).doing(writing)
    }

    pub(super) fn write_end(out: &mut dyn Write) -> Result<()> {
        out.write_all(&[END]).doing(writing)
    }

    /// Reads the next group of a recipe with `sources` sources; `None` after the last.
    pub(super) fn read(recipe: &mut dyn Read, sources: usize) -> Result<Option<Self>> {
        let mut tag = [0];
        recipe.read_exact(&mut tag).map_err(|error| reading(&error, "it is cut off"))?;
        match tag[0] {
            END => return Ok(None),
            GROUP => {}
            _ => return Err(damaged("it has a part of an unknown kind")),
        }
        let mut length = |most: u64| match read_number(recipe) {
            Err(error) => Err(reading(&error, "it is cut off")),
            Ok(Some(length)) if length <= most => Ok(length),
            Ok(_) => Err(damaged("it has a part that is too long")),
        };
        let plain_length = length(MOST_INSTRUCTIONS)?;
        let packed_length = length(MOST_INSTRUCTIONS)?;
        let patch_length = length(MOST_PATCH)?;
        let packed = read_exactly(recipe, packed_length)?;
        let capacity = usize::try_from(plain_length).unwrap_or(usize::MAX);
        let plain = zstd::bulk::decompress(&packed, capacity)
            .map_err(|error| damaged("its instructions cannot be read").caused_by(error))?;
        if plain.len() != capacity {
            return Err(damaged("its instructions have another length than announced"));
        }
        let mut group = Self::decode(&plain, sources)?;
        group.patch = read_exactly(recipe, patch_length)?;
        Ok(Some(group))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.references.len() as u64);
        for reference in &self.references {
            let form = FORMS.iter().position(|form| *form == reference.form).unwrap_or_default();
            put(&mut out, reference.source as u64);
            put(&mut out, form as u64);
            put(&mut out, reference.start);
            put(&mut out, reference.length);
            put(&mut out, reference.content);
        }
        put(&mut out, self.content);
        put(&mut out, self.instructions.len() as u64);
        for instruction in &self.instructions {
            match *instruction {
                Instruction::Copy { source, start, length } => {
                    put(&mut out, 0);
                    put(&mut out, source as u64);
                    put(&mut out, start);
                    put(&mut out, length);
                }
                Instruction::Emit { encoding, origin, length } => {
                    let index = ENCODINGS.iter().position(|other| *other == encoding);
                    let code = index.unwrap_or_default() as u64;
                    match origin {
                        Origin::Patch => put(&mut out, 1 + code),
                        Origin::Reference(offset) => {
                            put(&mut out, 5 + code);
                            put(&mut out, offset);
                        }
                    }
                    put(&mut out, length);
                }
            }
        }
        out
    }

    fn decode(plain: &[u8], sources: usize) -> Result<Self> {
        let mut numbers = Numbers(plain);
        let group = Self::decode_numbers(&mut numbers).filter(|_| numbers.0.is_empty());
        let group = group.ok_or_else(|| damaged("its instructions are malformed"))?;
        group.check(sources)?;
        Ok(group)
    }

    fn decode_numbers(numbers: &mut Numbers<'_>) -> Option<Self> {
        let mut group = Self::default();
        for _ in 0..numbers.count()? {
            group.references.push(Reference {
                source: numbers.index()?,
                form: *FORMS.get(numbers.index()?)?,
                start: numbers.next()?,
                length: numbers.next()?,
                content: numbers.next()?,
            });
        }
        group.content = numbers.next()?;
        for _ in 0..numbers.count()? {
            let code = numbers.index()?;
            group.instructions.push(if code == 0 {
                Instruction::Copy {
                    source: numbers.index()?,
                    start: numbers.next()?,
                    length: numbers.next()?,
                }
            } else if code < 5 {
                let encoding = *ENCODINGS.get(code - 1)?;
                Instruction::Emit { encoding, origin: Origin::Patch, length: numbers.next()? }
            } else {
                let encoding = *ENCODINGS.get(code - 5)?;
                let origin = Origin::Reference(numbers.next()?);
                Instruction::Emit { encoding, origin, length: numbers.next()? }
            });
        }
        Some(group)
    }

    /// Checks all that can be checked without the sources.
    fn check(&self, sources: usize) -> Result<()> {
        let out_of_range = || damaged("an instruction is out of range");
        let mut reference_length: u64 = 0;
        for reference in &self.references {
            let end = reference.start.checked_add(reference.length);
            if reference.source >= sources || end.is_none() {
                return Err(out_of_range());
            }
            if reference.form == Form::Plain && reference.length != reference.content {
                return Err(out_of_range());
            }
            let length = reference.content.max(reference.length);
            if reference.form != Form::Plain && length > MOST_PACKED_REFERENCE {
                return Err(out_of_range());
            }
            reference_length = reference_length
                .checked_add(length)
                .filter(|total| *total <= MOST_REFERENCE)
                .ok_or_else(|| damaged("its references are too long"))?;
        }
        if self.content > MOST_CONTENT {
            return Err(damaged("one of its patches is too long"));
        }
        let reference_length = self.reference_length();
        let mut left = self.content;
        for instruction in &self.instructions {
            match *instruction {
                Instruction::Copy { source, start, length } => {
                    if source >= sources || length == 0 || start.checked_add(length).is_none() {
                        return Err(out_of_range());
                    }
                }
                Instruction::Emit { encoding, origin, length } => {
                    let most = match encoding {
                        Encoding::Frame | Encoding::Deflate => MOST_SEGMENT,
                        Encoding::Verbatim | Encoding::List => u64::MAX,
                    };
                    if length == 0 || length > most {
                        return Err(out_of_range());
                    }
                    match origin {
                        Origin::Patch => {
                            left = left.checked_sub(length).ok_or_else(out_of_range)?;
                        }
                        Origin::Reference(offset) => {
                            offset
                                .checked_add(length)
                                .filter(|end| *end <= reference_length)
                                .ok_or_else(out_of_range)?;
                        }
                    }
                }
            }
        }
        if left > 0 || self.instructions.is_empty() {
            return Err(damaged("a patch has more bytes than the instructions use"));
        }
        Ok(())
    }
}

fn read_bytes(recipe: &mut dyn Read, most: u64) -> Result<Vec<u8>> {
    let length = read_number(recipe).map_err(|error| reading(&error, "it is cut off"))?;
    match length {
        Some(length) if length <= most => read_exactly(recipe, length),
        _ => Err(damaged("it has a part that is too long")),
    }
}

fn read_exactly(recipe: &mut dyn Read, length: u64) -> Result<Vec<u8>> {
    // Memory grows only with the bytes that are there.
    let mut bytes = Vec::new();
    recipe
        .take(length)
        .read_to_end(&mut bytes)
        .map_err(|error| reading(&error, "it is cut off"))?;
    if (bytes.len() as u64) < length {
        return Err(damaged("it is cut off"));
    }
    Ok(bytes)
}

fn reading(error: &io::Error, end: &str) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(end),
        kind => Error::io("cannot read the delta", io::Error::new(kind, error.to_string())),
    }
}

fn writing() -> String {
    "cannot write the delta".to_owned()
}

pub(super) fn damaged(how: &str) -> Error {
    Error::bad_content(format!("the delta is damaged: {how}"))
}
