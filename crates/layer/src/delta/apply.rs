//! Carries out recipes: one group after another, whose content several threads compress.
//!
//! A recipe may come from anywhere: the size that it promises is bounded by its own and its bases' sizes,
//! what it makes read, hold and compress by what it has yielded. The digest decides in the end.

use std::collections::BTreeSet;
use std::io::{Read, SeekFrom, Write};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded};
use zstd::zstd_safe;

use crate::Limits;
use crate::decompress::check_ratio;
use crate::delta::format::{
    DEFLATE, Encoding, Group, Header, Instruction, Origin, SourceBlob, damaged, read_header,
};
use crate::delta::patch::{self, Encoder};
use crate::delta::{Source, Sources};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Hasher};

/// A blob that a recipe has yielded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub digest: Digest,
    pub size: u64,
    /// Number of bytes that were copied from other blobs.
    pub copied: u64,
}

/// Maximum number of compressing threads.
const MOST_THREADS: usize = 8;
/// Number of bytes copied at once.
const COPIED_AT_ONCE: usize = 1 << 20;
/// What references may amount to, as a multiple of what the recipe yields, and what it may yield, as a
/// multiple of the recipe and the bases.
const MOST_TIMES: u64 = 64;
/// What a recipe may yield or refer to in any case, in bytes.
const FREE: u64 = 64 << 20;
/// The work of compressing, as a multiple of the compressed bytes and of the recipe with the bases: content
/// in bytes times the cost of the level.
const MOST_WORK: u64 = 1024;
/// Work that is accepted in any case: seconds of one core at any level.
const FREE_WORK: u64 = 8 << 30;

/// Writes the blob that `recipe`, of `length` bytes, yields to `out`. Fails if its digest or size is
/// another one than the recipe says; the caller must not make anything visible before.
pub fn apply(
    recipe: &mut dyn Read,
    length: u64,
    sources: &dyn Sources,
    threads: usize,
    out: &mut dyn Write,
) -> Result<Applied> {
    let recipe = &mut recipe.take(length);
    let header = read_header(recipe)?;
    check_codec(&header)?;
    let given = check_size(&header, length, sources)?;
    let threads = threads.clamp(1, MOST_THREADS);
    let mut encoders = Vec::new();
    if header.level != 0 {
        for _ in 0..threads {
            encoders.push(encoder(&header)?);
        }
    }
    let mut opened: Vec<Option<Box<dyn Source>>> = header.sources.iter().map(|_| None).collect();
    let mut result = Writer {
        out,
        hasher: Hasher::with(header.digest.algorithm()),
        size: 0,
        most: header.size,
        copied: 0,
        encoded: 0,
    };
    let (mut content, mut references, mut work) = (0_u64, 0_u64, 0_u64);
    let cost = cost(&header);
    while let Some(group) = Group::read(recipe, header.sources.len())? {
        let emitted = group.instructions.iter().map(|instruction| match instruction {
            Instruction::Emit { length, .. } => *length,
            Instruction::Copy { .. } => 0,
        });
        content = emitted.fold(content, u64::saturating_add);
        check_ratio(content, header.size, Limits::default())?;
        references = references.saturating_add(group.reference_length());
        let most = result.size.saturating_add(content).saturating_mul(MOST_TIMES);
        if references > most.saturating_add(16 * FREE) {
            return Err(damaged("it refers to far more than it yields"));
        }
        // What this group will yield is not known yet: it must be in what is free.
        work = work.saturating_add(group.encoded_length().saturating_mul(cost));
        let most = result.encoded.min(given).saturating_mul(MOST_WORK);
        if work > most.saturating_add(FREE_WORK) {
            return Err(damaged("it takes far more time than it yields bytes")
                .hint("carry the whole blob instead (without --delta)"));
        }
        let mut at = Bases { header: &header, sources, opened: &mut opened };
        run(&group, &mut at, &mut encoders, &mut result)?;
    }
    let Writer { hasher, size, copied, .. } = result;
    let digest = hasher.finish();
    if size != header.size || digest != header.digest {
        return Err(Error::bad_content(format!(
            "the delta of blob {} yields other content here: its digest is {digest}",
            header.digest
        ))
        .hint("a blob of the base is damaged (run `imgctl scrub`), or the delta is"));
    }
    Ok(Applied { digest, size, copied })
}

/// Fails if the blob would be far larger than what it is made of. Returns the size of that: the recipe and
/// its bases, as they are here.
fn check_size(header: &Header, length: u64, sources: &dyn Sources) -> Result<u64> {
    let mut given = length;
    let mut seen = BTreeSet::new();
    for blob in header.sources.iter().filter(|blob| seen.insert(&blob.digest)) {
        // What the recipe says of a base is not known to be true.
        given = given.saturating_add(blob.size.min(sources.size(blob)?));
    }
    if header.size > given.saturating_mul(MOST_TIMES).saturating_add(FREE) {
        return Err(damaged(&format!(
            "it promises {} bytes out of {given}, more than {MOST_TIMES} times as many",
            header.size
        ))
        .hint("carry the whole blob instead (without --delta)"));
    }
    Ok(given)
}

/// Returns how much longer a byte takes at the level than at the fastest, roughly.
fn cost(header: &Header) -> u64 {
    match (header.deflate == 0, header.level) {
        (true, ..=4) => 1,
        (true, 5..=9) => 4,
        (true, 10..=14) => 10,
        (true, 15..=17) => 25,
        (true, 18..) => 100,
        (false, ..=3) => 2,
        (false, 4..=6) => 4,
        (false, 7..) => 10,
    }
}

/// Fails if content would be compressed to other bytes here.
fn check_codec(header: &Header) -> Result<()> {
    let zstd = zstd_safe::version_number();
    let is_zstd = header.zstd == 0 || header.zstd == zstd;
    let is_deflate = header.deflate == 0 || header.deflate == DEFLATE;
    if is_zstd && is_deflate {
        return Ok(());
    }
    Err(Error::failed(format!(
        "the delta of blob {} was made with another version of the compressor (zstd {}, deflate {}) \
         than this imgctl has (zstd {zstd}, deflate {DEFLATE})",
        header.digest, header.zstd, header.deflate
    ))
    .hint("use the imgctl that made it, or carry the whole blob"))
}

fn encoder(header: &Header) -> Result<Encoder> {
    let out_of_range = || damaged("its level is out of range");
    if header.deflate != 0 {
        let level = u32::try_from(header.level).map_err(|_| out_of_range())?;
        return match level {
            1..=9 => Encoder::gzip(level),
            _ => Err(out_of_range()),
        };
    }
    match header.level {
        1..=22 if header.zstd != 0 => Encoder::zstd(header.level),
        _ => Err(out_of_range()),
    }
}

/// The sources of one recipe.
struct Bases<'a> {
    header: &'a Header,
    sources: &'a dyn Sources,
    opened: &'a mut [Option<Box<dyn Source>>],
}

impl Bases<'_> {
    /// Opens a source on first use.
    fn get(&mut self, index: usize) -> Result<(&SourceBlob, &mut dyn Source)> {
        let unknown = || damaged("it refers to an unknown blob");
        let blob = self.header.sources.get(index).ok_or_else(unknown)?;
        let opened = self.opened.get_mut(index).ok_or_else(unknown)?;
        let source = match opened {
            Some(source) => source,
            none => none.insert(self.sources.open(blob)?),
        };
        Ok((blob, &mut **source))
    }

    /// Reads all references of a group.
    fn load(&mut self, group: &Group) -> Result<Vec<u8>> {
        // Bounded by the format.
        let length = usize::try_from(group.reference_length()).unwrap_or_default();
        let mut loaded = Vec::with_capacity(length);
        for reference in &group.references {
            let (blob, source) = self.get(reference.source)?;
            if !patch::append_reference(source, reference, &mut loaded)? {
                return Err(other_content(blob));
            }
        }
        Ok(loaded)
    }
}

fn other_content(blob: &SourceBlob) -> Error {
    Error::bad_content(format!(
        "blob {} of the base has other content here than where the delta was made",
        blob.digest
    ))
    .hint("run `imgctl scrub` to see whether it is damaged")
}

/// The blob so far.
struct Writer<'a> {
    out: &'a mut dyn Write,
    hasher: Hasher,
    size: u64,
    most: u64,
    copied: u64,
    /// Number of bytes that were compressed here.
    encoded: u64,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.size += bytes.len() as u64;
        if self.size > self.most {
            return Err(damaged("it yields more bytes than it says"));
        }
        self.hasher.update(bytes);
        self.out.write_all(bytes).doing(|| "cannot write the blob".to_owned())
    }

    fn copy(&mut self, bases: &mut Bases<'_>, index: usize, start: u64, length: u64) -> Result<()> {
        let doing = || "cannot read the base of a delta".to_owned();
        let (blob, source) = bases.get(index)?;
        source.seek(SeekFrom::Start(start)).doing(doing)?;
        let mut left = length;
        let mut buffer = vec![0; COPIED_AT_ONCE];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(COPIED_AT_ONCE);
            let count = source.read(&mut buffer[..most]).doing(doing)?;
            if count == 0 {
                return Err(other_content(blob));
            }
            self.write(&buffer[..count])?;
            left -= count as u64;
        }
        self.copied += length;
        Ok(())
    }
}

/// What comes next, in order.
enum Next<'a> {
    Copy { source: usize, start: u64, length: u64 },
    Here(&'a [u8]),
    Pending(Receiver<Result<Vec<u8>>>),
}

struct Job<'a> {
    encoding: Encoding,
    content: &'a [u8],
    reply: Sender<Result<Vec<u8>>>,
}

/// Carries out the instructions of one group.
fn run(
    group: &Group,
    bases: &mut Bases<'_>,
    encoders: &mut [Encoder],
    out: &mut Writer<'_>,
) -> Result<()> {
    let reference = bases.load(group)?;
    let length = usize::try_from(group.content).unwrap_or(usize::MAX);
    let content = patch::apply(&group.patch, &reference, length)?;
    let threads = encoders.len().max(1);
    let (jobs, queue) = bounded::<Job<'_>>(2 * threads);
    let (in_order, due) = bounded::<Next<'_>>(4 * threads);
    let is_encoded = |instruction: &Instruction| matches!(instruction, Instruction::Emit { encoding, .. } if *encoding != Encoding::Verbatim);
    let encoded = group.instructions.iter().filter(|instruction| is_encoded(instruction)).count();
    if encoded > 0 && encoders.is_empty() {
        return Err(damaged("it compresses in another way than announced"));
    }
    thread::scope(|scope| {
        for encoder in encoders.iter_mut().take(encoded) {
            let queue = queue.clone();
            spawn(scope, move || {
                for Job { encoding, content, reply } in queue {
                    let mut bytes = Vec::new();
                    let result = encoder.encode(encoding, content, &mut bytes).map(|()| bytes);
                    // There is no receiver after an error.
                    let _ = reply.send(result);
                }
            })?;
        }
        drop(queue);
        let feed = Feed { group, content: &content, reference: &reference };
        spawn(scope, move || feed.run(&jobs, &in_order))?;
        for next in due {
            match next {
                Next::Copy { source, start, length } => out.copy(bases, source, start, length)?,
                Next::Here(bytes) => out.write(bytes)?,
                Next::Pending(result) => {
                    let bytes = result.recv().map_err(|_| Error::failed("a thread has died"))??;
                    out.encoded += bytes.len() as u64;
                    out.write(&bytes)?;
                }
            }
        }
        Ok(())
    })
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    let thread = thread::Builder::new().name("delta".to_owned()).spawn_scoped(scope, work);
    thread.map(drop).doing(|| "cannot start a thread".to_owned())
}

/// Hands out the instructions of a group.
struct Feed<'a> {
    group: &'a Group,
    content: &'a [u8],
    reference: &'a [u8],
}

impl<'a> Feed<'a> {
    fn run(&self, jobs: &Sender<Job<'a>>, in_order: &Sender<Next<'a>>) {
        let mut rest = self.content;
        for instruction in &self.group.instructions {
            let next = match *instruction {
                Instruction::Copy { source, start, length } => Next::Copy { source, start, length },
                Instruction::Emit { encoding, origin, length } => {
                    // The format has checked all ranges.
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let bytes = match origin {
                        Origin::Patch => {
                            let (now, later) = rest.split_at(length.min(rest.len()));
                            rest = later;
                            now
                        }
                        Origin::Reference(offset) => {
                            let start = usize::try_from(offset).unwrap_or(usize::MAX);
                            let end = start.saturating_add(length);
                            self.reference.get(start..end).unwrap_or_default()
                        }
                    };
                    match encoding {
                        Encoding::Verbatim => Next::Here(bytes),
                        _ => {
                            let (reply, result) = bounded(1);
                            if jobs.send(Job { encoding, content: bytes, reply }).is_err() {
                                return;
                            }
                            Next::Pending(result)
                        }
                    }
                }
            };
            // There is no receiver after an error.
            if in_order.send(next).is_err() {
                return;
            }
        }
    }
}
