//! Listing: repositories and tags, page by page, in memory bounded by the page.

use crate::error::Result;
use crate::registry::layout::{Layout, names, paths};

impl Layout {
    /// Up to `limit` repositories that have manifests, in order, those after `after` only. Names are
    /// compared component by component.
    pub(crate) fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut pending = self.below("")?;
        while let Some(name) = pending.pop() {
            if found.len() >= limit {
                break;
            }
            if after.is_some_and(|after| is_before(&name, after)) {
                continue;
            }
            let is_new = after.is_none_or(|after| name.split('/').gt(after.split('/')));
            let manifests = format!("{}/_manifests", paths::repository(&name));
            if is_new && self.tree.metadata(&manifests)?.is_some() {
                found.push(name.clone());
            }
            pending.extend(self.below(&name)?);
        }
        Ok(found)
    }

    /// Calls `each` for every name that could be a repository's, in order.
    pub(super) fn each_repository(&self, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let mut pending = self.below("")?;
        while let Some(name) = pending.pop() {
            each(&name)?;
            pending.extend(self.below(&name)?);
        }
        Ok(())
    }

    /// The names one component longer than `name`, last first.
    fn below(&self, name: &str) -> Result<Vec<String>> {
        let mut directory = paths::repository(name);
        directory.truncate(directory.trim_end_matches('/').len());
        let children = self.tree.directories(&directory)?;
        Ok(children
            .into_iter()
            .rev()
            .map(|child| match name {
                "" => child,
                name => format!("{name}/{child}"),
            })
            .filter(|name| names::is_repository(name))
            .collect())
    }

    /// Up to `limit` tags of a repository after `after`, in the order of their bytes; `None` when
    /// there is no such repository.
    pub(crate) fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        let directory = paths::repository(names::repository(repository)?);
        let mut tags = Vec::new();
        for tag in self
            .tree
            .directories(&format!("{directory}/_manifests/tags"))?
        {
            if tags.len() >= limit {
                break;
            }
            let is_after = after.is_none_or(|after| tag.as_str() > after);
            // A tag is there from the moment its link is.
            if is_after
                && names::is_tag(&tag)
                && self
                    .tree
                    .metadata(&paths::tag_link(repository, &tag))?
                    .is_some()
            {
                tags.push(tag);
            }
        }
        if tags.is_empty() && !self.is_repository(&directory)? {
            return Ok(None);
        }
        Ok(Some(tags))
    }

    fn is_repository(&self, directory: &str) -> Result<bool> {
        for inner in ["_manifests", "_layers"] {
            if self
                .tree
                .metadata(&format!("{directory}/{inner}"))?
                .is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether `name`, and with it everything below, comes before `after` in the walk.
fn is_before(name: &str, after: &str) -> bool {
    let is_parent = after
        .strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    !is_parent && name.split('/').lt(after.split('/'))
}
