//! Decides what becomes of each segment of a new blob: a copy, or content of a patch, and which
//! parts of the bases the patch refers to.
//!
//! Reads no content. Must not know how patches are made.

use crate::delta::bases::{Bases, NewFile, OldFile, Place};
use crate::delta::format::{ENOUGH_INSTRUCTIONS, Form, MOST_CONTENT, MOST_SEGMENT, Reference};
use crate::delta::ranges::Ranges;
use crate::delta::segments::{Kind, Segment};

/// Length of the references from which on a group is complete, in bytes: with one more segment it
/// stays well below the maximum.
const ENOUGH_REFERENCE: u64 = 60 << 20;
/// Maximum length of the references, in bytes; lists of frames come on top.
const MOST_RANGES: u64 = 100 << 20;
/// Size up to which a patch refers to a whole file, in bytes.
const WHOLE_FILE: u64 = 32 << 20;
/// What a patch refers to before and after the same place in a larger file, in bytes.
const AROUND: u64 = 14 << 20;
/// Maximum ratio of a reference to the content that it is for.
const MOST_TIMES: u64 = 16;
/// Size below which content gets no group of its own, in bytes.
const SMALL: u64 = 64 << 10;
/// Content without a reference is compressed less hard from this length on, in bytes.
const FRESH: u64 = 4 << 20;

/// What happens to a part of the blob.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Copy {
        source: usize,
        start: u64,
        length: u64,
    },
    /// The segment, or a piece of it, is content of the patch, or of the reference at this offset.
    Emit {
        piece: Segment,
        reference: Option<u64>,
    },
}

impl Item {
    /// Number of bytes of the blob.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Copy { length, .. } => *length,
            Self::Emit { piece, .. } => piece.length,
        }
    }

    /// Number of bytes of the blob that are not copied.
    pub(super) fn patched(&self) -> u64 {
        match self {
            Self::Copy { .. } => 0,
            Self::Emit { piece, .. } => piece.length,
        }
    }
}

/// How hard to compress a patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Effort {
    /// As hard as asked for.
    #[default]
    Full,
    /// Much content of which the other side has nothing.
    Fresh,
    /// Does not shrink on its own: harder only if the reference helps.
    Try,
    /// Does not shrink.
    None,
}

/// A group to be made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) items: Vec<Item>,
    pub(super) references: Vec<Reference>,
    pub(super) effort: Effort,
}

/// Plans the blob with these segments. `is_dense` tells whether a plain segment does not shrink.
pub(super) fn plan(
    segments: &[Segment],
    files: &[NewFile<'_>],
    bases: &Bases<'_>,
    is_dense: &dyn Fn(&Segment) -> bool,
) -> Vec<Draft> {
    let mut planner = Planner {
        files,
        bases,
        is_dense,
        drafts: Vec::new(),
        draft: Draft::default(),
        content: 0,
        ranges: Ranges::default(),
        lists: Vec::new(),
        taken: Vec::new(),
        copied: vec![0; bases.list.len()],
    };
    let mut last = None;
    for segment in segments {
        match bases.same(segment, last) {
            Some(place) => {
                planner.copy(place);
                last = Some(place);
            }
            None => planner.emit(segment),
        }
    }
    planner.end_group();
    planner.drafts
}

struct Planner<'a> {
    files: &'a [NewFile<'a>],
    bases: &'a Bases<'a>,
    is_dense: &'a dyn Fn(&Segment) -> bool,
    drafts: Vec<Draft>,
    draft: Draft,
    /// Length of the draft's content, in bytes.
    content: u64,
    ranges: Ranges,
    /// References to lists of frames.
    lists: Vec<Reference>,
    /// Items that take content from the reference: index, base and offset in its tar.
    taken: Vec<(usize, usize, u64)>,
    /// Number of bytes copied from each base.
    copied: Vec<u64>,
}

impl Planner<'_> {
    fn copy(&mut self, place: Place) {
        let Some(found) = self.bases.segment(place) else { return };
        let (next, more) = (found.start, found.length);
        if let Some(copied) = self.copied.get_mut(place.base) {
            *copied += more;
        }
        match self.draft.items.last_mut() {
            Some(Item::Copy { source, start, length })
                if *source == place.base && *start + *length == next =>
            {
                *length += more;
            }
            _ => self.push(Item::Copy { source: place.base, start: next, length: more }),
        }
    }

    fn push(&mut self, item: Item) {
        if self.draft.items.len() >= ENOUGH_INSTRUCTIONS {
            self.end_group();
        }
        self.draft.items.push(item);
    }

    /// Emits a segment; a long plain one in pieces.
    fn emit(&mut self, segment: &Segment) {
        let is_dense = match segment.kind {
            Kind::Plain => segment.length > SMALL && (self.is_dense)(segment),
            Kind::Frame | Kind::Deflate => segment.length >= segment.content,
            Kind::Opaque => true,
            Kind::List(_) => false,
        };
        if segment.kind != Kind::Plain {
            return self.emit_piece(segment.clone(), is_dense);
        }
        let mut done = 0;
        while done < segment.length {
            let length = (segment.length - done).min(MOST_SEGMENT);
            let piece = Segment {
                start: segment.start + done,
                length,
                tar: segment.tar + done,
                content: length,
                ..segment.clone()
            };
            self.emit_piece(piece, is_dense);
            done += length;
        }
    }

    fn emit_piece(&mut self, piece: Segment, is_dense: bool) {
        // What is stored verbatim may be longer than its content, and a list much shorter.
        let most = match piece.kind {
            Kind::List(_) => (piece.length * 8).clamp(1 << 20, MOST_CONTENT),
            _ => piece.length.max(piece.content),
        };
        if let Some((old, start)) = self.equal(&piece) {
            return self.take(piece, old, start, most);
        }
        let near = self.near(&piece);
        let effort = match (is_dense, near.is_empty()) {
            (false, false) => Effort::Full,
            (false, true) if self.is_fresh() => Effort::Fresh,
            (false, true) => Effort::Full,
            (true, false) => Effort::Try,
            (true, true) => Effort::None,
        };
        let is_other = effort != self.draft.effort && most > SMALL && self.content > 0;
        if is_other {
            self.end_group();
        }
        self.make_room(most);
        if most > SMALL || self.content == 0 {
            self.draft.effort = effort;
        }
        for (base, start, end) in near {
            if self.ranges.total() + (end - start) <= MOST_RANGES {
                self.ranges.insert(base, start, end);
            }
        }
        if let Kind::List(number) = piece.kind {
            self.refer_to_list(number);
        }
        self.content += most;
        self.push(Item::Emit { piece, reference: None });
    }

    /// Whether content without a reference follows much of its kind.
    fn is_fresh(&self) -> bool {
        let is_long = self.ranges.total() == 0 && self.content > FRESH;
        is_long || self.draft.effort == Effort::Fresh
    }

    fn make_room(&mut self, most: u64) {
        if self.content + most > MOST_CONTENT || self.ranges.total() > ENOUGH_REFERENCE {
            self.end_group();
        }
    }

    /// Where the other side has the content of a whole frame, compressed in another way.
    fn equal(&self, piece: &Segment) -> Option<(OldFile, u64)> {
        if !matches!(piece.kind, Kind::Plain | Kind::Frame) || piece.content == 0 {
            return None;
        }
        let file = self.overlapping(piece).next()?;
        let is_inside =
            file.start <= piece.tar && piece.tar + piece.content <= file.start + file.size;
        let old = self.bases.equal(file.content?, file.size).filter(|_| is_inside)?;
        Some((old, old.start + (piece.tar - file.start)))
    }

    /// Emits a piece whose content lies at `start` of a base's tar.
    fn take(&mut self, piece: Segment, old: OldFile, start: u64, most: u64) {
        self.make_room(most);
        let Some((from, to)) = self.bases.aligned(old.base, start, start + piece.content) else {
            self.content += most;
            return self.push(Item::Emit { piece, reference: None });
        };
        self.ranges.insert(old.base, from, to);
        if self.draft.items.len() >= ENOUGH_INSTRUCTIONS {
            self.end_group();
            self.ranges.insert(old.base, from, to);
        }
        self.taken.push((self.draft.items.len(), old.base, start));
        self.push(Item::Emit { piece, reference: None });
    }

    /// The files whose content is in a segment.
    fn overlapping(&self, piece: &Segment) -> impl Iterator<Item = &NewFile<'_>> {
        let first = self.files.partition_point(|file| file.start + file.size <= piece.tar);
        let end = piece.tar + piece.content;
        let (_, rest) = self.files.split_at(first.min(self.files.len()));
        rest.iter().take_while(move |file| file.start < end)
    }

    /// The ranges of bases that the content of a segment most likely resembles.
    fn near(&self, piece: &Segment) -> Vec<(usize, u64, u64)> {
        if piece.content == 0 {
            return Vec::new();
        }
        let mut near = Vec::new();
        let end = piece.tar + piece.content;
        for file in self.overlapping(piece) {
            let Some(old) = self.bases.similar(file.path, file.size) else { continue };
            let from = piece.tar.max(file.start) - file.start;
            let to = end.min(file.start + file.size) - file.start;
            let (start, end) = window(file.size, old.size, from, to);
            let start = if start == 0 { old.header() } else { old.start + start };
            near.extend(self.aligned(old.base, start, old.start + end));
        }
        // Headers resemble those of the same files.
        let next = self.files.partition_point(|file| file.start < end);
        if near.is_empty()
            && let Some(file) = self.files.get(next)
            && file.start - end < MOST_SEGMENT
            && let Some(old) = self.bases.similar(file.path, file.size)
        {
            near.extend(self.aligned(old.base, old.header(), old.start));
        }
        near
    }

    fn aligned(&self, base: usize, start: u64, end: u64) -> Option<(usize, u64, u64)> {
        self.bases.aligned(base, start, end).map(|(start, end)| (base, start, end))
    }

    /// Refers to the list of the base that most was copied from.
    fn refer_to_list(&mut self, number: usize) {
        let most = self.copied.iter().enumerate().max_by_key(|(_, copied)| **copied);
        if let Some((base, _)) = most
            && let Some(list) = self.bases.list(base, number)
            && list.length < MOST_CONTENT / 8
            && !self.lists.iter().any(|known| known.source == base && known.start == list.start)
        {
            self.lists.push(Reference {
                source: base,
                form: Form::List,
                start: list.start,
                length: list.length,
                // Known once it is read.
                content: 0,
            });
        }
    }

    /// Completes the current group.
    fn end_group(&mut self) {
        let mut draft = std::mem::take(&mut self.draft);
        let ranges = std::mem::take(&mut self.ranges);
        let mut offset = 0;
        let mut places = Vec::new();
        for (base, start, end) in ranges.iter() {
            let references = self.bases.references(base, start, end);
            places.push((base, start, end, offset));
            offset += references.iter().map(|reference| reference.content).sum::<u64>();
            draft.references.extend(references);
        }
        for (index, base, start) in std::mem::take(&mut self.taken) {
            let place = places
                .iter()
                .find(|(other, from, to, _)| *other == base && (*from..*to).contains(&start));
            if let (Some(Item::Emit { reference, .. }), Some((_, from, _, offset))) =
                (draft.items.get_mut(index), place)
            {
                *reference = Some(offset + (start - from));
            }
        }
        draft.references.append(&mut self.lists);
        self.content = 0;
        if !draft.items.is_empty() {
            self.drafts.push(draft);
        }
    }
}

/// The range of an old file of `old` bytes that the range `from..to` of a new one of `new` bytes is
/// compared with.
fn window(new: u64, old: u64, from: u64, to: u64) -> (u64, u64) {
    let most = (to - from).saturating_mul(MOST_TIMES).max(SMALL);
    if old <= WHOLE_FILE && old <= new.saturating_mul(MOST_TIMES).max(SMALL) {
        return (0, old);
    }
    // Content moves with what is inserted before it, about evenly.
    let scaled = |position: u64| {
        u64::try_from(u128::from(position) * u128::from(old) / u128::from(new.max(1)))
            .unwrap_or(old)
    };
    let around = AROUND.min(most / 2);
    let start = scaled(from).saturating_sub(around).min(old);
    let end = scaled(to).saturating_add(around).min(old);
    (start, end.min(start.saturating_add(most.max(2 * AROUND + MOST_SEGMENT))))
}
