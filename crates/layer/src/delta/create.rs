//! Makes recipes: plans them, makes the patches of several groups at a time, and checks that the
//! result yields the blob.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::bounded;
use zstd::zstd_safe;

use crate::Toc;
use crate::delta::bases::{Bases, new_files};
use crate::delta::format::{
    DEFLATE, Encoding, Form, Group, Header, Instruction, MOST_CONTENT, Origin, SourceBlob,
};
use crate::delta::patch::{self, Encoder, SKIPPABLE_HEADER};
use crate::delta::plan::{Draft, Effort, Item, plan};
use crate::delta::segments::{self, Kind, Segment};
use crate::delta::{Base, Source, Sources, apply};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::file_at::FileAt;
use imgctl_base::image::Digest;

/// How recipes are made.
pub struct Options<'a> {
    /// Level of zstd for patches: 1 (fast) to 22 (small).
    pub level: i32,
    /// Maximum number of groups in work; each takes up to 700 MB at the highest levels.
    pub threads: usize,
    /// Called with the number of bytes of the blob that have been dealt with.
    pub advance: &'a (dyn Fn(u64) + Sync),
}

/// A recipe that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Size of the recipe, in bytes.
    pub size: u64,
    /// Number of bytes of the blob that are copied.
    pub copied: u64,
    /// Number of bytes that come out of patches.
    pub patched: u64,
    /// The bases that the recipe needs.
    pub sources: Vec<SourceBlob>,
}

/// Maximum length of a base's part of a list as a reference, in bytes.
const MOST_LIST: u64 = 16 << 20;
/// A patch of content that does not shrink must be below this percentage of it to be worth more.
const WORTH: usize = 97;
/// Level for content of which the other side has nothing.
const FRESH_LEVEL: i32 = 12;
const FAST_LEVEL: i32 = 3;

/// Writes the recipe of the blob `digest`, whose table of contents is `toc`, to the empty file
/// `out`. Fails if the recipe does not yield the blob, for instance because a base is damaged.
pub fn create(
    digest: &Digest,
    blob: &File,
    toc: &Toc,
    bases: &[Base],
    options: &Options<'_>,
    out: &File,
) -> Result<Created> {
    create_from(digest, blob, toc, &Bases::new(bases)?, options, out)
}

/// Like [`create`], with bases that were read before.
pub fn create_from(
    digest: &Digest,
    blob: &File,
    toc: &Toc,
    bases: &Bases<'_>,
    options: &Options<'_>,
    out: &File,
) -> Result<Created> {
    let doing = || "cannot make a delta".to_owned();
    let new = segments::layer(blob, toc)?;
    let drafts = plan(&new.list, &new_files(toc), bases, &|segment| is_dense(blob, segment));
    let size = blob.metadata().doing(doing)?.len();
    let mut header = Header::new(digest.clone(), size);
    let codec = Codec::of(blob, &new.list, new.gzip)?;
    match codec {
        Codec::None => {}
        Codec::Zstd(level) => {
            header.level = level;
            header.zstd = zstd_safe::version_number();
        }
        Codec::Gzip(level) => {
            header.level = level.cast_signed();
            header.deflate = DEFLATE;
        }
    }
    let bases = bases.list;
    let used = used(&drafts, bases.len());
    for (base, _) in bases.iter().zip(&used).filter(|(_, used)| used.is_some()) {
        let size = base.blob.metadata().doing(doing)?.len();
        header.sources.push(SourceBlob { digest: base.digest.clone(), size });
    }
    let maker = Maker { blob, bases, used: &used, codec, options };
    let mut created = Created { size: 0, copied: 0, patched: 0, sources: header.sources.clone() };
    let mut writer = BufWriter::with_capacity(256 << 10, out);
    header.write(&mut writer)?;
    maker.groups(&drafts, &mut |group| {
        for instruction in &group.instructions {
            if let Instruction::Copy { length, .. } = instruction {
                created.copied += length;
            }
        }
        created.patched += group.content;
        group.write(&mut writer)
    })?;
    Group::write_end(&mut writer)?;
    writer.flush().doing(doing)?;
    drop(writer);
    created.size = out.metadata().doing(doing)?.len();
    // The digest at its end says whether every byte is right.
    let mut recipe = io::BufReader::new(FileAt::new(out.try_clone().doing(doing)?, 0));
    apply(&mut recipe, created.size, &Here(bases), options.threads, &mut io::sink())?;
    Ok(created)
}

/// The numbers by which the header lists the bases that are needed.
fn used(drafts: &[Draft], count: usize) -> Vec<Option<usize>> {
    let mut is_used = vec![false; count];
    let items = drafts.iter().flat_map(|draft| &draft.items).filter_map(|item| match item {
        Item::Copy { source, .. } => Some(*source),
        Item::Emit { .. } => None,
    });
    let references = drafts.iter().flat_map(|draft| &draft.references);
    for source in items.chain(references.map(|reference| reference.source)) {
        if let Some(is_used) = is_used.get_mut(source) {
            *is_used = true;
        }
    }
    let mut next = 0;
    let number = |is_used: &bool| {
        is_used.then(|| {
            next += 1;
            next - 1
        })
    };
    is_used.iter().map(number).collect()
}

/// How the content of the blob is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    None,
    Zstd(i32),
    Gzip(u32),
}

/// Number of frames that tell the level.
const SAMPLES: usize = 4;

impl Codec {
    /// Finds the codec that makes the same bytes again.
    fn of(blob: &File, segments: &[Segment], gzip: Option<u32>) -> Result<Self> {
        if let Some(level) = gzip {
            return Ok(Self::Gzip(level));
        }
        let is_sample =
            |segment: &&Segment| segment.kind == Kind::Frame && segment.length < segment.content;
        let mut samples: Vec<&Segment> = segments.iter().filter(is_sample).collect();
        // Longer frames differ more between levels, but take longer.
        samples.sort_by_key(|segment| std::cmp::Reverse(segment.content.min(512 << 10)));
        samples.truncate(SAMPLES);
        let mut contents = Vec::new();
        for segment in samples {
            let bytes = read(blob, segment)?;
            if let Some(content) = patch::decoded(Form::Frames, &bytes, segment.content) {
                contents.push((content, bytes));
            }
        }
        if contents.is_empty() {
            return Ok(Self::None);
        }
        for level in [3].into_iter().chain(1..=2).chain(4..=22) {
            let mut encoder = Encoder::zstd(level)?;
            let mut is_same = true;
            for (content, bytes) in &contents {
                is_same = is_same && encodes(&mut encoder, Encoding::Frame, content, bytes)?;
            }
            if is_same {
                return Ok(Self::Zstd(level));
            }
        }
        Ok(Self::None)
    }

    fn encoder(self) -> Result<Option<Encoder>> {
        match self {
            Self::None => Ok(None),
            Self::Zstd(level) => Encoder::zstd(level).map(Some),
            Self::Gzip(level) => Encoder::gzip(level).map(Some),
        }
    }
}

fn encodes(
    encoder: &mut Encoder,
    encoding: Encoding,
    content: &[u8],
    expected: &[u8],
) -> Result<bool> {
    let mut bytes = Vec::new();
    encoder.encode(encoding, content, &mut bytes)?;
    Ok(bytes == expected)
}

/// Makes groups out of drafts.
struct Maker<'a> {
    blob: &'a File,
    bases: &'a [Base],
    used: &'a [Option<usize>],
    codec: Codec,
    options: &'a Options<'a>,
}

impl Maker<'_> {
    /// Calls `done` for every group, in their order.
    fn groups(&self, drafts: &[Draft], done: &mut dyn FnMut(Group) -> Result<()>) -> Result<()> {
        let threads = self.options.threads.clamp(1, drafts.len().max(1));
        let next = AtomicUsize::new(0);
        let (made, results) = bounded(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let (made, next) = (made.clone(), &next);
                let work = move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(draft) = drafts.get(index) else { break };
                        // There is no receiver after an error.
                        if made.send((index, self.group(draft))).is_err() {
                            break;
                        }
                    }
                };
                thread::Builder::new()
                    .name("delta".to_owned())
                    .spawn_scoped(scope, work)
                    .doing(|| "cannot start a thread".to_owned())?;
            }
            drop(made);
            let mut waiting = BTreeMap::new();
            let mut due = 0;
            for (index, group) in results {
                waiting.insert(index, group?);
                while let Some(group) = waiting.remove(&due) {
                    done(group)?;
                    due += 1;
                }
            }
            if due < drafts.len() {
                return Err(Error::failed("a thread that makes patches has died"));
            }
            Ok(())
        })
    }

    fn group(&self, draft: &Draft) -> Result<Group> {
        let mut group = Group::default();
        let reference = self.load_references(draft, &mut group)?;
        let mut encoder = self.codec.encoder()?;
        let mut content = self.instruct(draft, &reference, encoder.as_mut(), &mut group)?;
        if !content.is_empty() {
            group.patch = self.patch(draft.effort, &content, &reference, &mut group)?;
            let packed: u64 = draft.items.iter().map(Item::patched).sum();
            // The blob's own compression may be the better one; then nothing is compressed again.
            if encoder.is_some() && group.patch.len() as u64 > packed && !group.is_referring() {
                group = Group::default();
                content = self.instruct(draft, &[], None, &mut group)?;
                group.patch = patch::make(&content, &[], 1)?;
            }
        }
        group.content = content.len() as u64;
        let done: u64 = draft.items.iter().map(Item::length).sum();
        (self.options.advance)(done);
        Ok(group)
    }

    /// Turns a draft into instructions, and returns the content of the patch.
    fn instruct(
        &self,
        draft: &Draft,
        reference: &[u8],
        mut encoder: Option<&mut Encoder>,
        group: &mut Group,
    ) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        for item in &draft.items {
            match item {
                Item::Copy { source, start, length } => {
                    let source = self.number(*source);
                    let (start, length) = (*start, *length);
                    group.instructions.push(Instruction::Copy { source, start, length });
                }
                Item::Emit { piece, reference: at } => {
                    let (encoding, bytes) = self.content(piece, encoder.as_deref_mut())?;
                    let length = bytes.len() as u64;
                    if let Some(offset) = *at
                        && is_at(reference, offset, &bytes)
                    {
                        let origin = Origin::Reference(offset);
                        group.instructions.push(Instruction::Emit { encoding, origin, length });
                        continue;
                    }
                    content.extend_from_slice(&bytes);
                    group.emit(encoding, length);
                }
            }
        }
        Ok(content)
    }

    /// Returns the content of a piece and how it is encoded.
    fn content(
        &self,
        piece: &Segment,
        encoder: Option<&mut Encoder>,
    ) -> Result<(Encoding, Vec<u8>)> {
        let bytes = read(self.blob, piece)?;
        let packed = match piece.kind {
            Kind::Frame => {
                Some((Encoding::Frame, patch::decoded(Form::Frames, &bytes, piece.content)))
            }
            Kind::Deflate => {
                Some((Encoding::Deflate, patch::decoded(Form::Deflate, &bytes, piece.content)))
            }
            Kind::List(_) => {
                let packed = bytes.get(SKIPPABLE_HEADER..).unwrap_or_default();
                let most = (piece.length * 8).clamp(1 << 20, MOST_CONTENT);
                Some((Encoding::List, patch::list_content(packed, most)))
            }
            Kind::Plain | Kind::Opaque => None,
        };
        if let (Some((encoding, Some(content))), Some(encoder)) = (packed, encoder)
            && encodes(encoder, encoding, &content, &bytes)?
        {
            return Ok((encoding, content));
        }
        Ok((Encoding::Verbatim, bytes))
    }

    fn patch(
        &self,
        effort: Effort,
        content: &[u8],
        reference: &[u8],
        group: &mut Group,
    ) -> Result<Vec<u8>> {
        let level = self.options.level;
        match effort {
            Effort::Full => patch::make(content, reference, level),
            Effort::Fresh => patch::make(content, reference, level.min(FRESH_LEVEL)),
            Effort::None => patch::make(content, reference, 1),
            Effort::Try => {
                let fast = patch::make(content, reference, level.min(FAST_LEVEL))?;
                if fast.len() * 100 <= content.len() * WORTH {
                    return patch::make(content, reference, level);
                }
                if group.is_referring() {
                    return Ok(fast);
                }
                // The other side need not read what does not help.
                group.references.clear();
                patch::make(content, &[], 1)
            }
        }
    }

    /// Reads what the draft refers to.
    fn load_references(&self, draft: &Draft, group: &mut Group) -> Result<Vec<u8>> {
        let mut loaded = Vec::new();
        for wanted in &draft.references {
            let mut reference = wanted.clone();
            let Some(base) = self.bases.get(wanted.source) else { continue };
            reference.source = self.number(wanted.source);
            if wanted.form == Form::List {
                reference.start += SKIPPABLE_HEADER as u64;
                reference.length -= SKIPPABLE_HEADER as u64;
                let bytes = read_at(&base.blob, reference.start, reference.length)?;
                let Some(list) = patch::list_content(&bytes, MOST_LIST) else { continue };
                reference.content = list.len() as u64;
                loaded.extend_from_slice(&list);
            } else {
                let doing = || "cannot read the base of a delta".to_owned();
                let file = base.blob.try_clone().doing(doing)?;
                let mut source = FileAt::new(file, 0);
                if !patch::append_reference(&mut source, &reference, &mut loaded)? {
                    return Err(Error::bad_content(format!("blob {} is damaged", base.digest))
                        .hint("run `imgctl scrub` to list what is damaged"));
                }
            }
            group.references.push(reference);
        }
        Ok(loaded)
    }

    /// The number of a base in the header.
    fn number(&self, base: usize) -> usize {
        self.used.get(base).copied().flatten().unwrap_or_default()
    }
}

impl Group {
    /// Whether content is taken from the reference itself.
    fn is_referring(&self) -> bool {
        let is_taken = |instruction: &Instruction| {
            matches!(instruction, Instruction::Emit { origin: Origin::Reference(_), .. })
        };
        self.instructions.iter().any(is_taken)
    }

    /// Adds content of the patch.
    fn emit(&mut self, encoding: Encoding, more: u64) {
        if let (
            Encoding::Verbatim,
            Some(Instruction::Emit { encoding: Encoding::Verbatim, origin: Origin::Patch, length }),
        ) = (encoding, self.instructions.last_mut())
        {
            *length += more;
            return;
        }
        let origin = Origin::Patch;
        self.instructions.push(Instruction::Emit { encoding, origin, length: more });
    }
}

fn is_at(reference: &[u8], offset: u64, bytes: &[u8]) -> bool {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    reference.get(start..).is_some_and(|rest| rest.starts_with(bytes))
}

fn read(blob: &File, segment: &Segment) -> Result<Vec<u8>> {
    read_at(blob, segment.start, segment.length)
}

fn read_at(blob: &File, start: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    blob.read_exact_at(&mut bytes, start).doing(|| "cannot read a blob".to_owned())?;
    Ok(bytes)
}

/// Number of samples that tell whether content shrinks, and bytes in each.
const PROBES: u64 = 4;
const PROBE: u64 = 16 << 10;

/// Whether plain content does not shrink, judging by a few samples.
fn is_dense(blob: &File, segment: &Segment) -> bool {
    let length = segment.length.min(PROBE);
    let mut packed = 0;
    for index in 0..PROBES {
        let start = segment.start + (segment.length - length) * index / PROBES;
        let Ok(bytes) = read_at(blob, start, length) else { return false };
        let Ok(sample) = zstd::bulk::compress(&bytes, 1) else { return false };
        packed += sample.len() as u64;
    }
    packed * 100 > PROBES * length * WORTH as u64
}

/// The bases on this side.
struct Here<'a>(&'a [Base]);

impl Sources for Here<'_> {
    fn open(&self, blob: &SourceBlob) -> Result<Box<dyn Source>> {
        let base = self.0.iter().find(|base| base.digest == blob.digest);
        let base = base.ok_or_else(|| Error::not_found(format!("{} is missing", blob.digest)))?;
        let file = base.blob.try_clone().doing(|| "cannot read a base".to_owned())?;
        Ok(Box::new(FileAt::new(file, 0)))
    }

    fn size(&self, blob: &SourceBlob) -> Result<u64> {
        let base = self.0.iter().find(|base| base.digest == blob.digest);
        let Some(base) = base else { return Ok(0) };
        let facts = base.blob.metadata().doing(|| "cannot examine a base".to_owned())?;
        Ok(facts.len())
    }
}
