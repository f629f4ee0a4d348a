//! Links: which repository may read which blob, and what its tags mean.

use crate::error::{Error, Result};
use crate::image::Digest;
use crate::registry::layout::tree::Fresh;
use crate::registry::layout::{Layout, names, paths};

/// More than any link holds, in bytes.
const MAX_LINK: u64 = 512;

impl Layout {
    /// Lets `repository` read a blob that is no manifest (layer or config).
    pub(crate) fn link_layer(&self, repository: &str, digest: &Digest) -> Result<()> {
        self.write_link(
            &paths::layer_link(names::repository(repository)?, digest),
            digest,
        )
    }

    /// Makes `tag` mean `digest`: the history first, then what counts.
    pub(crate) fn set_tag(&self, repository: &str, tag: &str, digest: &Digest) -> Result<()> {
        let (repository, tag) = (names::repository(repository)?, names::tag(tag)?);
        let history = self.new_link(&paths::tag_history_link(repository, tag, digest), digest)?;
        self.tree.commit(history.into_iter().collect())?;
        self.write_link(&paths::tag_link(repository, tag), digest)
    }

    /// What a tag means; `None` when there is no such tag.
    pub(crate) fn resolve_tag(&self, repository: &str, tag: &str) -> Result<Option<Digest>> {
        self.read_link(&paths::tag_link(
            names::repository(repository)?,
            names::tag(tag)?,
        ))
    }

    /// Whether `repository` may read the blob (which may yet be missing).
    pub(crate) fn has_layer(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let link = paths::layer_link(names::repository(repository)?, digest);
        Ok(self.read_link(&link)?.as_ref() == Some(digest))
    }

    /// Whether `repository` has the manifest (whose bytes may yet be missing).
    pub(crate) fn has_revision(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let link = paths::revision_link(names::repository(repository)?, digest);
        Ok(self.read_link(&link)?.as_ref() == Some(digest))
    }

    /// The digest in a link file. One that is empty was cut short by a power loss and does not count.
    pub(super) fn read_link(&self, path: &str) -> Result<Option<Digest>> {
        let Some(bytes) = self.tree.read(path, MAX_LINK)? else {
            return Ok(None);
        };
        // distribution writes no newline, but people do.
        let text = bytes.trim_ascii();
        if text.is_empty() {
            return Ok(None);
        }
        let digest = std::str::from_utf8(text)
            .ok()
            .and_then(|text| Digest::parse(text).ok());
        digest.map(Some).ok_or_else(|| {
            let path = self.tree.shown(path);
            Error::bad_content(format!("{} holds no digest", path.display()))
        })
    }

    /// Writes a link unless it is there already.
    fn write_link(&self, path: &str, digest: &Digest) -> Result<()> {
        let link = self.new_link(path, digest)?;
        self.tree.commit(link.into_iter().collect())
    }

    /// A link to be committed; `None` when it is there already.
    pub(super) fn new_link(&self, path: &str, digest: &Digest) -> Result<Option<Fresh>> {
        let text = digest.to_string();
        match self.tree.read(path, MAX_LINK) {
            Ok(Some(old)) if old == text.as_bytes() => Ok(None),
            _ => self.tree.prepare(path, text.as_bytes()).map(Some),
        }
    }
}
