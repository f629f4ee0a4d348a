//! Collects search results and sorts them at the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::found::{Found, FoundArchive, FoundImage, How, Place, Skipped};
use crate::search::names::{self, Reading, Trust};
use imgctl_base::image::Reference;

/// Why an image of `.sealignore` is left out.
const IGNORED: &str = "it is listed in .sealignore";

/// Everything found so far.
#[derive(Debug, Default)]
pub(super) struct Collector {
    images: BTreeMap<Reference, BTreeSet<Place>>,
    pub(super) archives: Vec<FoundArchive>,
    /// By file, line and text; the first reason recorded is kept.
    skipped: BTreeMap<(String, usize, String), (How, String)>,
    /// Names that may be images, with the reason to leave them out.
    doubts: Vec<(String, &'static str, Place)>,
    /// Lines of `.sealignore`, as written and, if they name an image, as a full reference.
    ignored: BTreeSet<String>,
}

impl Collector {
    /// Returns a collector that leaves out the references listed in `.sealignore`, one per line.
    pub(super) fn new(ignore_file: &str) -> Self {
        let mut ignored = BTreeSet::new();
        for (_, line) in entries(ignore_file) {
            ignored.insert(line.to_owned());
            ignored.extend(names::normalise(line).map(|name| name.to_string()));
        }
        Self { ignored, ..Self::default() }
    }

    /// Adds a string found in a place that may name an image.
    pub(super) fn text(&mut self, text: &str, trust: Trust, place: Place) {
        let text = text.trim();
        match names::read(text, trust) {
            Reading::Image(reference) => self.image(text, reference, place),
            Reading::Skipped(reason) => self.skip(text, reason, place),
            Reading::Nothing => {}
        }
    }

    /// Adds an image that was written as `text`.
    pub(super) fn image(&mut self, text: &str, reference: Reference, place: Place) {
        if self.is_ignored(text, &reference) {
            return self.skip(text, IGNORED, place);
        }
        self.wanted(reference, place);
    }

    /// Adds an image regardless of `.sealignore`.
    pub(super) fn wanted(&mut self, reference: Reference, place: Place) {
        let places = self.images.entry(reference).or_default();
        // A place found by structure takes precedence over the line scan of the same line.
        let is_told = place.how == How::Line
            && places.iter().any(|other| other.file == place.file && other.line == place.line);
        if !is_told {
            places.insert(place);
        }
    }

    /// Records that something was left out.
    pub(super) fn skip(&mut self, text: &str, reason: &str, place: Place) {
        let shown: String = text.chars().take(200).collect();
        self.skipped
            .entry((place.file, place.line, shown))
            .or_insert_with(|| (place.how, reason.to_owned()));
    }

    /// Records a name that is left out, unless another place names the same image.
    pub(super) fn doubt(&mut self, text: &str, reason: &'static str, place: Place) {
        self.doubts.push((text.to_owned(), reason, place));
    }

    /// sealos compares whole lines, with the text as written in lists and with the full name
    /// elsewhere; here, `nginx` and `docker.io/library/nginx:latest` are the same name everywhere.
    fn is_ignored(&self, text: &str, reference: &Reference) -> bool {
        let full = reference.to_string();
        let tagged = full.split('@').next().unwrap_or_default();
        [text, &full, tagged].iter().any(|name| self.ignored.contains(*name))
    }

    /// Returns the results, sorted.
    pub(super) fn finish(mut self) -> Found {
        for (text, reason, place) in std::mem::take(&mut self.doubts) {
            match names::normalise(&text) {
                Ok(reference) if self.images.contains_key(&reference) => {}
                Ok(reference) if self.is_ignored(&text, &reference) => {
                    self.skip(&text, IGNORED, place);
                }
                _ => self.skip(&text, reason, place),
            }
        }
        self.archives.sort_by(|a, b| (&a.reference, &a.path).cmp(&(&b.reference, &b.path)));
        self.archives.dedup();
        let image = |(reference, places): (Reference, BTreeSet<Place>)| FoundImage {
            reference,
            places: places.into_iter().collect(),
        };
        let skipped = |((file, line, text), (how, reason))| Skipped {
            text,
            place: Place { file, line, how },
            reason,
        };
        Found {
            images: self.images.into_iter().map(image).collect(),
            archives: self.archives,
            skipped: self.skipped.into_iter().map(skipped).collect(),
        }
    }
}

/// Numbers the lines, without blank lines, comments and anything after ` #`. A byte order mark,
/// which Windows editors add, is not part of the first line.
pub(super) fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().map(|(number, line)| {
        let comment = line.find(" #").into_iter().chain(line.find("\t#")).min();
        let line = comment.map_or(line, |at| &line[..at]);
        (number + 1, line.trim())
    });
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
