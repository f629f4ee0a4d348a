//! Removes what a tree no longer needs while registries serve it: given manifests and blobs, and nothing
//! that anything else in the tree refers to.
//!
//! Unlike [`super::gc`], it takes no lock, and leaves alone what it was not told about. References go
//! before content; it writes nothing, so that it works on a full disk.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use crate::layout::gc::keep_reachable;
use crate::layout::uploads::is_older;
use crate::layout::{Facts, Layout, paths};
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::Digest;

/// What may be removed.
#[derive(Clone, Debug, Default)]
pub struct Retire {
    /// Repositories and manifests.
    pub manifests: BTreeSet<(String, Digest)>,
    /// Repositories and tags that came with these manifests. Other tags keep a manifest.
    pub tags: BTreeSet<(String, String)>,
    pub blobs: HashSet<Digest>,
    /// What runs: digests of manifests, indexes or configs.
    pub digests: HashSet<Digest>,
    /// What runs: repositories with their tags.
    pub names: BTreeSet<(String, String)>,
    /// Content younger than this stays: it may belong to a push in progress.
    pub grace: Duration,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Repositories, and the manifests' digests.
    pub manifests: Vec<(String, Digest)>,
    pub blobs: u64,
    /// Total size of the blobs, in bytes.
    pub bytes: u64,
    /// Number of links to blobs that stay only because they are young.
    pub young: u64,
}

/// One repository.
struct Marked {
    young: u64,
    removed: Vec<Digest>,
    /// Links to blobs that go with the manifests.
    links: Vec<Digest>,
}

impl Layout {
    /// Removes what `old` names and nothing else needs; with `dry_run`, only determines it. Fails with
    /// `Busy`, and removes nothing, while an upload is open.
    pub fn retire(&self, old: &Retire, dry_run: bool) -> Result<Retired> {
        let mut names = Vec::new();
        self.each_repository(&mut |repository| {
            names.push(repository.to_owned());
            Ok(())
        })?;
        self.refuse_uploads(&names, old.grace)?;
        let mut needed = HashSet::new();
        let mut marked = Vec::new();
        for repository in &names {
            let found = self
                .marked(repository, old, &mut needed)
                .context(|| "nothing was removed".to_owned())?;
            marked.push((repository, found));
        }
        let mut retired = Retired::default();
        // An upload that has begun meanwhile may rely on any of the blobs.
        if !dry_run {
            self.refuse_uploads(&names, old.grace)?;
        }
        for (repository, Marked { removed, links, young }) in marked {
            retired.young += young;
            for digest in removed {
                if !dry_run {
                    self.delete_manifest(repository, &digest)?;
                }
                retired.manifests.push((repository.clone(), digest));
            }
            for digest in links.iter().filter(|_| !dry_run) {
                self.delete_layer(repository, digest)?;
            }
        }
        for digest in old.blobs.iter().filter(|digest| !needed.contains(digest)) {
            let data = paths::blob_data(digest);
            let Some(metadata) = self.tree.metadata(&data)? else { continue };
            if !dry_run {
                self.tree.discard(data.trim_end_matches("/data"))?;
            }
            retired.blobs += 1;
            retired.bytes += metadata.size;
        }
        Ok(retired)
    }

    fn refuse_uploads(&self, repositories: &[String], age: Duration) -> Result<()> {
        for repository in repositories {
            let directory = paths::uploads(repository);
            for id in self.tree.directories(&directory)? {
                let data = self.tree.metadata(&format!("{directory}/{id}/data"))?;
                let begun = self.tree.metadata(&format!("{directory}/{id}"))?;
                let last = data.into_iter().chain(begun).map(|metadata| metadata.mtime.0).max();
                if last.is_some_and(|last| !is_older(last, age)) {
                    return Err(Error::new(
                        Kind::Busy,
                        format!("an upload to {repository} is open in {}", self.path().display()),
                    )
                    .hint("run the same command again when the push has ended"));
                }
            }
        }
        Ok(())
    }

    /// Determines what goes from a repository, and adds what the rest of it needs to `needed`.
    fn marked(
        &self,
        repository: &str,
        old: &Retire,
        needed: &mut HashSet<Digest>,
    ) -> Result<Marked> {
        let directory = format!("{}/_manifests/revisions", paths::repository(repository));
        let mut facts = BTreeMap::new();
        let mut all = Vec::new();
        for (digest, _) in self.linked(&directory)? {
            if let Some(document) = self.document(&digest)? {
                let parsed = Facts::parse(&document.bytes)
                    .context(|| format!("manifest {digest} of {repository}"))?;
                facts.insert(digest.clone(), parsed);
            }
            all.push(digest);
        }
        let mut tags: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
        for tag in self.tags(repository, None, usize::MAX)?.unwrap_or_default() {
            if let Some(digest) = self.resolve_tag(repository, &tag)? {
                tags.entry(digest).or_default().push(tag);
            }
        }
        let is_old =
            |digest: &Digest| old.manifests.contains(&(repository.to_owned(), digest.clone()));
        let stays = |digest: &Digest| {
            let named = |tag: &String| {
                let name = (repository.to_owned(), tag.clone());
                !old.tags.contains(&name) || old.names.contains(&name)
            };
            !is_old(digest)
                || runs(digest, &facts, &old.digests)
                || tags.get(digest).is_some_and(|tags| tags.iter().any(named))
        };
        let roots: Vec<Digest> = all.iter().filter(|digest| stays(digest)).cloned().collect();
        let mut kept = BTreeSet::new();
        keep_reachable(roots, &facts, &mut kept);
        let mut named = HashSet::new();
        for digest in &kept {
            if let Some(facts) = facts.get(digest) {
                named.extend(facts.blobs.iter().map(|part| part.digest.clone()));
            }
        }
        needed.extend(kept.iter().cloned());
        let (mut links, mut young) = (Vec::new(), 0);
        for (digest, time) in self.linked(&format!("{}/_layers", paths::repository(repository)))? {
            let goes = old.blobs.contains(&digest)
                && !named.contains(&digest)
                && old.manifests.iter().any(|(name, _)| name == repository);
            if goes && is_older(time, old.grace) {
                links.push(digest);
            } else {
                young += u64::from(goes);
                needed.insert(digest);
            }
        }
        needed.extend(named);
        let removed = all.into_iter().filter(|digest| !kept.contains(digest)).collect();
        Ok(Marked { young, removed, links })
    }
}

/// Returns whether a container runs this manifest, or one that it lists.
fn runs(digest: &Digest, facts: &BTreeMap<Digest, Facts>, running: &HashSet<Digest>) -> bool {
    let own = |digest: &Digest| {
        let blobs = facts.get(digest).into_iter().flat_map(|facts| &facts.blobs);
        running.contains(digest) || blobs.into_iter().any(|part| running.contains(&part.digest))
    };
    let children = facts.get(digest).into_iter().flat_map(|facts| &facts.manifests);
    own(digest) || children.into_iter().any(|part| own(&part.digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::UploadSession as _;
    use imgctl_base::image::media_type;
    use serde_json::json;

    fn blob(layout: &Layout, repository: &str, text: &str) -> Digest {
        let digest = Digest::of(text.as_bytes());
        layout.put_blob(&mut text.as_bytes(), &digest, text.len() as u64).unwrap();
        layout.link_layer(repository, &digest).unwrap();
        digest
    }

    /// Stores an image with the given layers; returns its manifest and config.
    fn image(layout: &Layout, repository: &str, tag: &str, layers: &[&str]) -> (Digest, Digest) {
        let config = blob(layout, repository, &format!("config of {tag}"));
        let part = |digest: &Digest, size: usize| json!({"mediaType": "application/octet-stream", "digest": digest, "size": size});
        let layers: Vec<_> =
            layers.iter().map(|text| part(&blob(layout, repository, text), text.len())).collect();
        let text = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "layers": layers,
            "config": part(&config, format!("config of {tag}").len()),
        }))
        .unwrap();
        let digest = Digest::of(&text);
        let facts = Facts::parse(&text).unwrap();
        layout.put_manifest(repository, &[tag], &digest, &text, &facts).unwrap();
        (digest, config)
    }

    fn old(repository: &str, images: &[(&(Digest, Digest), &str)], layers: &[&str]) -> Retire {
        let mut old = Retire::default();
        for ((manifest, config), tag) in images {
            old.manifests.insert((repository.to_owned(), manifest.clone()));
            old.tags.insert((repository.to_owned(), (*tag).to_owned()));
            old.blobs.extend([manifest.clone(), config.clone()]);
        }
        old.blobs.extend(layers.iter().map(|text| Digest::of(text.as_bytes())));
        old
    }

    #[test]
    fn only_what_nothing_needs_goes() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::create(directory.path(), false).unwrap();
        let first = image(&layout, "app", "1", &["shared", "first"]);
        let second = image(&layout, "app", "2", &["shared", "second"]);
        let theirs = image(&layout, "users", "theirs", &["first-of-users"]);
        let has = |digest: &Digest| layout.blob_size(digest).unwrap().is_some();
        let layer = |text: &str| Digest::of(text.as_bytes());

        let old = old("app", &[(&first, "1")], &["shared", "first"]);
        // Whoever runs it, whichever way it is named, keeps it.
        for running in [&first.0, &first.1] {
            let digests = [running.clone()].into();
            let used = Retire { digests, ..old.clone() };
            assert_eq!(layout.retire(&used, false).unwrap(), Retired::default());
        }
        let named = Retire { names: [("app".into(), "1".into())].into(), ..old.clone() };
        assert_eq!(layout.retire(&named, false).unwrap(), Retired::default());
        // So does a tag that somebody else has set.
        let tagged = Retire { tags: BTreeSet::new(), ..old.clone() };
        assert_eq!(layout.retire(&tagged, false).unwrap(), Retired::default());
        // Nothing goes while an upload is open.
        let mut upload = layout.start_upload("other", None).unwrap();
        let careful = Retire { grace: Duration::from_secs(3600), ..old.clone() };
        assert_eq!(layout.retire(&careful, false).unwrap_err().kind(), Kind::Busy);
        upload.cancel().unwrap();
        // Young links stay, with their blobs.
        let young = layout.retire(&careful, true).unwrap();
        assert_eq!((young.manifests.len(), young.blobs, young.young), (1, 1, 2), "{young:?}");

        let planned = layout.retire(&old, true).unwrap();
        assert!(has(&first.0) && has(&layer("first")));
        assert_eq!(planned.manifests, [("app".to_owned(), first.0.clone())]);
        assert_eq!(planned.blobs, 3);
        assert_eq!(layout.retire(&old, false).unwrap(), planned);
        assert!(!has(&first.0) && !has(&first.1) && !has(&layer("first")));
        assert!(layout.resolve_tag("app", "1").unwrap().is_none());
        for (manifest, config) in [&second, &theirs] {
            assert!(has(manifest) && has(config));
        }
        assert!(has(&layer("shared")) && has(&layer("second")) && has(&layer("first-of-users")));
        assert!(layout.has_layer("app", &layer("shared")).unwrap());
        assert_eq!(layout.retire(&old, false).unwrap(), Retired::default());
        let report = layout.scrub(&imgctl_base::progress::Silent).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}
