//! Names of images in parts: a repository and its tag as members of one mapping, as settings with a common
//! beginning, or under a table that gives registry and tag to all below it.

use std::collections::HashMap;

use super::{Scan, is_image_field};
use crate::found::How;
use crate::search::names::{self, Reading, Trust};
use crate::search::yaml::NodeId;

/// Why a name in parts is left out.
const NO_TAG: &str = "it has no tag and no digest";

impl<'a> Scan<'a> {
    /// Returns the first member with one of the keys that is not empty.
    fn part(&self, mapping: NodeId, keys: &[&str]) -> Option<NodeId> {
        keys.iter()
            .filter_map(|key| self.tree.get(mapping, key))
            .find(|id| self.tree.scalar(*id).is_some_and(|text| !text.is_empty()))
    }

    fn part_text(&self, mapping: NodeId, keys: &[&str]) -> Option<&'a str> {
        let tree = self.tree;
        self.part(mapping, keys).and_then(|id| tree.scalar(id))
    }

    /// A name in parts: `repository` and `tag` (and `registry`, `digest`), as charts define them.
    pub(super) fn parts(&mut self, mapping: NodeId, parent: &str) {
        if self.in_directory(mapping) {
            return;
        }
        let part = |keys: &[&str]| self.part(mapping, keys);
        let in_image = parent == "image" || is_image_field(parent);
        let renamed = part(&["newTag", "digest"]).is_some() && part(&["newName"]).is_some();
        let base = if renamed {
            part(&["newName"])
        } else if in_image {
            part(&["repository", "name"])
        } else {
            part(&["repository"]).or_else(|| part(&["image"]))
        };
        let Some((base, name)) = base.and_then(|id| Some((id, self.tree.text(id)?))) else {
            return;
        };
        let is_image_key = self.tree.get(mapping, "image") == Some(base);
        let is_complete = is_complete(name);
        let text = |keys: &[&str]| self.part_text(mapping, keys);
        let tag = text(&["tag", "newTag", "imageTag"]).filter(|tag| is_tag(tag));
        let digest = text(&["digest", "sha"]).filter(|digest| digest.contains("sha256:"));
        if self.taken.contains(&base) || is_complete || (tag.is_none() && digest.is_none()) {
            if in_image && !is_complete && !is_image_key && !self.taken.contains(&base) {
                let place = self.place(base, How::Field);
                self.found.skip(name, NO_TAG, place);
            }
            return;
        }
        let full = joined(text(&["registry", "hub"]), name, tag, digest);
        // A pair that is not an image (a Git repository) is not reported.
        let reading = names::read(&full, Trust::Likely);
        if matches!(reading, Reading::Image(_)) || in_image || is_image_key {
            self.taken.insert(base);
            self.found.text(&full, Trust::Likely, self.place(base, How::Field));
        }
    }

    /// `image` beside a `repository` or `registry` that is its directory, as NVIDIA's resources have it;
    /// `version` is its tag then. Returns whether the mapping has this form.
    fn in_directory(&mut self, mapping: NodeId) -> bool {
        let Some(base) = self.part(mapping, &["image"]) else { return false };
        let text = |keys: &[&str]| self.part_text(mapping, keys);
        let registry = text(&["registry", "hub"]);
        let repository = text(&["repository"]);
        let Some(name) = self.tree.text(base) else { return false };
        let is_whole = name.contains([':', '@', '{', '$', '%'])
            || name.split_once('/').is_some_and(|(first, _)| first.contains('.'));
        let is_same = |repository: &str| repository.rsplit('/').next() == Some(name);
        let is_other = |text: &str| text.contains("://") || is_complete(text) || is_same(text);
        if is_whole || repository.is_some_and(is_other) || registry.or(repository).is_none() {
            return false;
        }
        let directory: Vec<&str> =
            [registry, repository].into_iter().flatten().map(|p| p.trim_matches('/')).collect();
        let tag = text(&["tag", "imageTag", "version"]);
        let (digest, tag) = match tag {
            Some(tag) if tag.starts_with("sha256:") => (Some(tag), None),
            tag => (text(&["digest", "sha"]), tag),
        };
        let digest = digest.filter(|digest| digest.contains("sha256:"));
        let tag = tag.filter(|tag| is_tag(tag));
        let full = joined(Some(&directory.join("/")), name, tag, digest);
        let place = self.place(base, How::Field);
        if !self.taken.insert(base) {
            return true;
        }
        if tag.is_none() && digest.is_none() {
            self.found.skip(&full, NO_TAG, place);
        } else {
            self.found.text(&full, Trust::Likely, place);
        }
        true
    }

    /// Returns whether a mapping has both `hub` and `tag`, which Istio's values give to the images below.
    pub(super) fn is_hub(&self, mapping: NodeId) -> bool {
        ["hub", "tag"].iter().all(|key| self.part(mapping, &[key]).is_some())
    }

    /// Returns the full name of a bare word below a table with `hub` and `tag`.
    pub(super) fn below_hub(&self, hub: Option<NodeId>, image: NodeId) -> Option<String> {
        let name = self.tree.text(image).filter(|name| is_bare(name))?;
        let text = |key| self.part_text(hub?, &[key]);
        let (hub, tag) = (text("hub")?, text("tag")?);
        let tag = match text("variant") {
            Some(variant) => format!("{tag}-{variant}"),
            None => tag.to_owned(),
        };
        is_tag(&tag).then(|| joined(Some(hub), name, Some(&tag), None))
    }

    /// Settings with a common beginning: `trivy.repository` and `trivy.tag`, `--x-image-repository=` and
    /// `--x-image-tag=`. Each has a name, a text and its place.
    pub(super) fn pairs(&mut self, settings: &[(&str, &str, NodeId)], how: How) {
        const REPOSITORY: &str = "repository";
        let lower = |name: &str| name.to_ascii_lowercase();
        if !settings.iter().any(|(name, ..)| lower(name).ends_with(REPOSITORY)) {
            return;
        }
        let by_name: HashMap<String, &str> =
            settings.iter().map(|(name, text, _)| (lower(name), *text)).collect();
        for (name, text, id) in settings {
            let name = lower(name);
            let Some(start) = name.strip_suffix(REPOSITORY) else { continue };
            let is_source = ["git", "chart", "helm"].iter().any(|word| start.contains(word));
            if start.is_empty() || is_source || is_complete(text) || self.taken.contains(id) {
                continue;
            }
            let value = |end: &str| {
                let value = by_name.get(&format!("{start}{end}")).copied();
                value.filter(|text| !text.is_empty())
            };
            let tag = value("tag").filter(|tag| is_tag(tag));
            let digest = value("digest").filter(|digest| digest.contains("sha256:"));
            if tag.is_none() && digest.is_none() {
                continue;
            }
            let full = joined(value("registry"), text, tag, digest);
            if matches!(names::read(&full, Trust::Likely), Reading::Image(_)) {
                self.taken.insert(*id);
                self.found.text(&full, Trust::Likely, self.place(*id, how));
            }
        }
    }
}

fn joined(directory: Option<&str>, name: &str, tag: Option<&str>, digest: Option<&str>) -> String {
    let mut full = String::new();
    if let Some(directory) = directory {
        full.push_str(directory.trim_end_matches('/'));
        full.push('/');
    }
    full.push_str(name);
    for (mark, value) in [(':', tag), ('@', digest)] {
        if let Some(value) = value {
            full.push(mark);
            full.push_str(value);
        }
    }
    full
}

/// Whether a name has its tag or digest.
fn is_complete(name: &str) -> bool {
    names::normalise(name).is_ok()
        && (name.contains('@') || name.rsplit('/').next().is_some_and(|n| n.contains(':')))
}

/// Whether a name has neither a registry nor a path, nor a tag.
fn is_bare(name: &str) -> bool {
    !name.contains(['/', ':', '@']) && names::normalise(name).is_ok()
}

fn is_tag(text: &str) -> bool {
    !text.is_empty() && names::normalise(&format!("x:{text}")).is_ok()
}
