//! Verifies a tree: every blob against its digest, every link and manifest against the content it
//! refers to. Changes nothing.

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::layout::{Facts, Layout, paths};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Hasher};
use imgctl_base::progress::{Reporter, Task, Unit};

/// Number of bytes read at once.
const BUFFER: usize = 1 << 20;

/// A problem in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `blob sha256:…`, `library/nginx:v1`, `library/nginx@sha256:…`.
    pub subject: String,
    pub detail: String,
}

/// Content that a scrub has checked, and the problems it found.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    pub blobs: u64,
    /// Total size of all blobs, in bytes.
    pub bytes: u64,
    pub repositories: u64,
    pub manifests: u64,
    pub tags: u64,
    /// Number of missing children of indexes. This is allowed: a copy may contain only some
    /// platforms.
    pub absent_children: u64,
    pub problems: Vec<Problem>,
}

impl ScrubReport {
    fn problem(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        self.problems.push(Problem { subject: subject.into(), detail: detail.into() });
    }
}

impl Layout {
    /// Verifies the tree. Problems are part of the result, not an error.
    pub fn scrub(&self, reporter: &dyn Reporter) -> Result<ScrubReport> {
        let mut report = ScrubReport::default();
        self.scrub_blobs(reporter, &mut report)?;
        let mut names = Vec::new();
        self.each_repository(&mut |repository| {
            names.push(repository.to_owned());
            Ok(())
        })?;
        for repository in &names {
            self.scrub_repository(repository, &mut report)?;
        }
        Ok(report)
    }

    fn scrub_blobs(&self, reporter: &dyn Reporter, report: &mut ScrubReport) -> Result<()> {
        let mut blobs = Vec::new();
        self.each_blob(&mut |digest| {
            match self.blob_size(digest) {
                Ok(Some(size)) => {
                    report.blobs += 1;
                    report.bytes += size;
                    blobs.push(digest.clone());
                }
                // A killed writer leaves an empty directory.
                Ok(None) => {}
                Err(error) => report.problem(format!("blob {digest}"), error.to_string()),
            }
            Ok(())
        })?;
        let task = reporter.start("hashing blobs", Unit::Bytes, Some(report.bytes));
        let next = AtomicUsize::new(0);
        let wrong = Mutex::new(Vec::new());
        let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..workers.min(blobs.len()) {
                scope.spawn(|| {
                    let mut buffer = vec![0; BUFFER];
                    while let Some(digest) = blobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.check_blob(digest, &mut buffer, &*task)
                            && let Ok(mut wrong) = wrong.lock()
                        {
                            wrong.push((digest.to_string(), error.to_string()));
                        }
                    }
                });
            }
        });
        task.done("");
        let mut wrong = wrong.into_inner().unwrap_or_default();
        wrong.sort();
        for (digest, detail) in wrong {
            report.problem(format!("blob {digest}"), detail);
        }
        Ok(())
    }

    fn check_blob(&self, digest: &Digest, buffer: &mut [u8], task: &dyn Task) -> Result<()> {
        let Some((mut file, _)) = self.open_blob(digest)? else {
            // The blob has just been removed.
            return Ok(());
        };
        let mut hasher = Hasher::with(digest.algorithm());
        loop {
            let count = file.read(buffer).doing(|| "its content cannot be read".to_owned())?;
            if count == 0 {
                break;
            }
            hasher.update(buffer.get(..count).unwrap_or_default());
            task.advance(count as u64);
        }
        let found = hasher.finish();
        if found != *digest {
            return Err(Error::bad_content(format!("its content is {found}")));
        }
        Ok(())
    }

    fn scrub_repository(&self, repository: &str, report: &mut ScrubReport) -> Result<()> {
        let directory = paths::repository(repository);
        let before = (report.manifests, report.tags);
        for (digest, _) in self.linked(&format!("{directory}/_layers"))? {
            let link = paths::layer_link(repository, &digest);
            if let Some(detail) = self.check_link(&link, &digest) {
                report.problem(format!("{repository} (blob {digest})"), detail);
            }
        }
        for (digest, _) in self.linked(&format!("{directory}/_manifests/revisions"))? {
            report.manifests += 1;
            let link = paths::revision_link(repository, &digest);
            let detail = self.check_link(&link, &digest);
            match detail {
                Some(detail) => report.problem(format!("{repository}@{digest}"), detail),
                None => self.scrub_manifest(repository, &digest, report)?,
            }
        }
        for tag in self.tree.directories(&paths::tags(repository))? {
            let subject = format!("{repository}:{tag}");
            match self.resolve_tag(repository, &tag) {
                Ok(Some(digest)) => {
                    report.tags += 1;
                    if !self.has_revision(repository, &digest).unwrap_or(false) {
                        report.problem(subject, format!("it refers to {digest}, which is missing"));
                    }
                }
                // Without a link it is not a tag yet: its writer was stopped before.
                Ok(None) if self.tree.metadata(&paths::tag_link(repository, &tag))?.is_none() => {}
                Ok(None) => report.problem(subject, "it refers to nothing"),
                Err(error) => report.problem(subject, error.to_string()),
            }
        }
        if before != (report.manifests, report.tags) {
            report.repositories += 1;
        }
        Ok(())
    }

    /// Returns the problem of a link that must contain `digest`.
    fn check_link(&self, link: &str, digest: &Digest) -> Option<String> {
        match self.read_link(link) {
            Err(error) => Some(error.to_string()),
            Ok(None) => Some("its link is empty".to_owned()),
            Ok(Some(found)) if found != *digest => Some(format!("its link says {found}")),
            Ok(Some(_)) => match self.blob_size(digest) {
                Ok(Some(_)) => None,
                Ok(None) => Some("its content is missing".to_owned()),
                Err(error) => Some(error.to_string()),
            },
        }
    }

    fn scrub_manifest(
        &self,
        repository: &str,
        digest: &Digest,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let subject = format!("{repository}@{digest}");
        let facts = match self
            .document(digest)
            .and_then(|document| document.map(|d| Facts::parse(&d.bytes)).transpose())
        {
            Ok(Some(facts)) => facts,
            Ok(None) => return Ok(()),
            Err(error) => {
                report.problem(subject, error.to_string());
                return Ok(());
            }
        };
        for part in facts.blobs.iter().filter(|part| !part.may_be_absent()) {
            let is_linked = self.has_layer(repository, &part.digest).unwrap_or(false);
            let size = self.blob_size(&part.digest).ok().flatten();
            match size {
                Some(size) if is_linked && size == part.size => {}
                Some(size) if is_linked => report.problem(
                    subject.clone(),
                    format!(
                        "it says that {} has {} bytes, but it has {size}",
                        part.digest, part.size
                    ),
                ),
                _ => report.problem(
                    subject.clone(),
                    format!("it refers to the blob {}, which is missing", part.digest),
                ),
            }
        }
        for part in &facts.manifests {
            if !self.has_revision(repository, &part.digest).unwrap_or(false) {
                report.absent_children += 1;
            }
        }
        Ok(())
    }
}
