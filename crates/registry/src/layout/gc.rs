//! Garbage collection: removes blobs that no manifest refers to and, with `untagged`, manifests
//! without a tag.
//!
//! Marks, then sweeps, removing references before content: if it is killed, everything that is
//! referenced still exists. Content younger than the grace period belongs to pushes in progress and
//! is kept.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use crate::layout::tree::TEMPORARY;
use crate::layout::uploads::is_older;
use crate::layout::{Facts, Layout, paths};
use imgctl_base::error::{Context, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::image::Digest;
use imgctl_base::progress::{Reporter, Unit};

/// Options of a garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// Report what would be removed, but remove nothing.
    pub dry_run: bool,
    /// Remove manifests that have no tag, that no kept index lists, and that refer to nothing kept.
    pub untagged: bool,
    /// Keep content younger than this.
    pub grace: Duration,
}

/// Content that was removed, or would be.
#[derive(Clone, Debug, Default)]
pub struct GcReport {
    /// Repositories and digests of removed manifests.
    pub manifests: Vec<(String, Digest)>,
    /// Number of removed repository links to blobs that none of the repository's manifests refers
    /// to.
    pub links: u64,
    /// Number of removed stale uploads.
    pub uploads: u64,
    pub blobs: u64,
    /// Total size of the removed blobs, in bytes.
    pub bytes: u64,
    /// Number of blobs kept.
    pub kept: u64,
}

/// Manifests to remove from one repository, and the blobs that it needs.
struct Marked {
    repository: String,
    removed: Vec<Digest>,
    /// Blobs that kept manifests refer to.
    named: HashSet<Digest>,
}

impl Layout {
    /// Collects garbage. Locks the tree exclusively: fails with `Busy` while an imgctl process
    /// serves it.
    pub fn gc(&self, options: &GcOptions, reporter: &dyn Reporter) -> Result<GcReport> {
        let _alone = if options.dry_run { None } else { Some(self.lock_alone()?) };
        let mut report = GcReport::default();
        let mut needed = HashSet::new();
        let task = reporter.start("reading manifests", Unit::Items, None);
        let mut names = Vec::new();
        self.each_repository(&mut |repository| {
            names.push(repository.to_owned());
            Ok(())
        })?;
        for repository in names {
            let marked = self
                .mark(repository, options, &mut needed)
                .context(|| "no blob was collected".to_owned())?;
            self.sweep_repository(marked, options, &mut needed, &mut report)?;
            task.advance(1);
        }
        task.done("");
        self.sweep_blobs(options, &needed, &mut report)?;
        Ok(report)
    }

    /// Determines which manifests of a repository stay, and adds them and their blobs to `needed`.
    fn mark(
        &self,
        repository: String,
        options: &GcOptions,
        needed: &mut HashSet<Digest>,
    ) -> Result<Marked> {
        let directory = format!("{}/_manifests/revisions", paths::repository(&repository));
        let revisions = self.linked(&directory)?;
        let mut facts = BTreeMap::new();
        for (digest, _) in &revisions {
            // A manifest whose bytes are missing can be pushed again. A damaged one stops the
            // collection, because the blobs it needs are unknown.
            if let Some(document) = self.document(digest).context(|| {
                format!(
                    "cannot determine what manifest {digest} of {repository} \
                                     needs"
                )
            })? {
                let parsed = Facts::parse(&document.bytes)
                    .context(|| format!("manifest {digest} of {repository}"))?;
                facts.insert(digest.clone(), parsed);
            }
        }
        let mut kept: BTreeSet<Digest> = BTreeSet::new();
        if options.untagged {
            let is_young = |seconds: i64| !is_older(seconds, options.grace);
            let young = revisions.iter().filter(|(_, time)| is_young(*time));
            let mut roots: Vec<Digest> = young.map(|(digest, _)| digest.clone()).collect();
            for tag in self.tags(&repository, None, usize::MAX)?.unwrap_or_default() {
                roots.extend(self.resolve_tag(&repository, &tag)?);
            }
            keep_reachable(roots, &facts, &mut kept);
        } else {
            kept.extend(revisions.iter().map(|(digest, _)| digest.clone()));
        }
        let mut named = HashSet::new();
        for digest in &kept {
            needed.insert(digest.clone());
            if let Some(facts) = facts.get(digest) {
                named.extend(facts.blobs.iter().map(|part| part.digest.clone()));
            }
        }
        needed.extend(named.iter().cloned());
        let removed = revisions
            .into_iter()
            .map(|(digest, _)| digest)
            .filter(|digest| !kept.contains(digest))
            .collect();
        Ok(Marked { repository, removed, named })
    }

    /// Removes the unneeded links and uploads of a repository.
    fn sweep_repository(
        &self,
        marked: Marked,
        options: &GcOptions,
        needed: &mut HashSet<Digest>,
        report: &mut GcReport,
    ) -> Result<()> {
        let Marked { repository, removed, named } = marked;
        for digest in removed {
            if !options.dry_run {
                self.remove_revision(&repository, &digest)?;
            }
            report.manifests.push((repository.clone(), digest));
        }
        let layers = format!("{}/_layers", paths::repository(&repository));
        for (digest, time) in self.linked(&layers)? {
            if named.contains(&digest) {
                continue;
            }
            if !is_older(time, options.grace) {
                needed.insert(digest);
                continue;
            }
            if !options.dry_run {
                self.delete_layer(&repository, &digest)?;
            }
            report.links += 1;
        }
        report.uploads +=
            if options.dry_run { 0 } else { self.sweep_uploads(&repository, options.grace)? };
        Ok(())
    }

    fn sweep_blobs(
        &self,
        options: &GcOptions,
        needed: &HashSet<Digest>,
        report: &mut GcReport,
    ) -> Result<()> {
        self.each_blob(&mut |digest| {
            let data = paths::blob_data(digest);
            let directory = data.trim_end_matches("/data");
            self.sweep_temporaries(directory, options)?;
            let Some(metadata) = self.tree.metadata(&data)? else {
                return Ok(());
            };
            if needed.contains(digest) || !is_older(metadata.mtime.0, options.grace) {
                report.kept += 1;
                return Ok(());
            }
            report.blobs += 1;
            report.bytes += metadata.size;
            if !options.dry_run {
                self.tree.discard(directory)?;
            }
            Ok(())
        })
    }

    /// Removes temporary files of killed writers.
    fn sweep_temporaries(&self, directory: &str, options: &GcOptions) -> Result<()> {
        for name in self.tree.list(directory)?.unwrap_or_default() {
            let Ok(name) = name.name.into_string() else {
                continue;
            };
            let path = format!("{directory}/{name}");
            if name.ends_with(TEMPORARY)
                && !options.dry_run
                && let Some(metadata) = self.tree.metadata(&path)?
                && is_older(metadata.mtime.0, options.grace)
            {
                self.tree.discard(&path)?;
            }
        }
        Ok(())
    }

    /// Calls `each` for the digest of every blob's directory.
    pub(super) fn each_blob(&self, each: &mut dyn FnMut(&Digest) -> Result<()>) -> Result<()> {
        let blobs = format!("{}/blobs", paths::BASE);
        for algorithm in self.tree.directories(&blobs)? {
            for prefix in self.tree.directories(&format!("{blobs}/{algorithm}"))? {
                let directory = format!("{blobs}/{algorithm}/{prefix}");
                for hex in self.tree.directories(&directory)? {
                    if let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}")) {
                        each(&digest)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the digests of `directory/<algorithm>/<hex>/link`, ordered by path, with the
    /// modification times of the links in seconds since 1970.
    pub(super) fn linked(&self, directory: &str) -> Result<Vec<(Digest, i64)>> {
        let mut found = Vec::new();
        for algorithm in self.tree.directories(directory)? {
            let directory = format!("{directory}/{algorithm}");
            for name in self.tree.list(&directory)?.unwrap_or_default() {
                let Ok(hex) = name.name.into_string() else {
                    continue;
                };
                let link = format!("{directory}/{hex}/link");
                if name.kind == FileKind::Directory
                    && let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}"))
                    && let Some(metadata) = self.tree.metadata(&link)?
                {
                    found.push((digest, metadata.mtime.0));
                }
            }
        }
        Ok(found)
    }
}

/// Follows indexes to their children and subjects to their referrers until nothing new is found.
pub(super) fn keep_reachable(
    roots: Vec<Digest>,
    facts: &BTreeMap<Digest, Facts>,
    kept: &mut BTreeSet<Digest>,
) {
    let mut referrers: BTreeMap<&Digest, Vec<&Digest>> = BTreeMap::new();
    for (digest, facts) in facts {
        if let Some(subject) = &facts.subject {
            referrers.entry(&subject.digest).or_default().push(digest);
        }
    }
    let mut pending = roots;
    while let Some(digest) = pending.pop() {
        if !kept.insert(digest.clone()) {
            continue;
        }
        let referring = referrers.get(&digest).into_iter().flatten();
        pending.extend(referring.map(|digest| (*digest).clone()));
        if let Some(facts) = facts.get(&digest) {
            pending.extend(facts.manifests.iter().map(|part| part.digest.clone()));
        }
    }
}
